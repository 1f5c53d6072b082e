"""The store: studies, their probes and the queue, in one database."""

from typing import Self

from sqlalchemy import Engine

from tuner.store import migrate
from tuner.store.caches import Caches
from tuner.store.engine import Transactions, default_url, is_sqlite, make_engine, parse_url
from tuner.store.studies import Studies


class Store(Studies, Caches):
    """An open database, at this version's schema. A context manager; see :func:`open_store`.

    Each method is one short transaction of its own, and any number of processes and threads may
    call them at once. Methods raise :class:`tuner.errors.StoreError` when the database fails, and
    :class:`tuner.errors.UsageError` with the field ``db`` when it cannot be written.
    """

    def __init__(self, engine: Engine) -> None:
        self.transactions = Transactions(engine)

    @property
    def url(self) -> str:
        """The address, whole: a file's absolute path, or with the password."""
        return self.transactions.engine.url.render_as_string(hide_password=False)

    def close(self) -> None:
        """Closes all connections."""
        self.transactions.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def open_store(url: str | None = None, *, create: bool = True) -> Store:
    """Opens a database, the default one unless ``url`` names another.

    A SQLite file is made, with its folder, when absent, and migrated when it is of an earlier
    version. Any other database must be at this version's schema already.

    Args:
        create: false to refuse a SQLite file that is absent.

    Raises:
        UsageError: the address is wrong, or it cannot be written, or is not ours, or is absent.
        StoreError: it cannot be reached, is of a newer version, from before the first release, or
            not migrated.
    """
    parsed = parse_url(url if url is not None else default_url())
    if is_sqlite(parsed):
        path = str(parsed.database)
        migrate.make_file(path) if create else migrate.require_file(path)
    engine = make_engine(parsed)
    try:
        migrate.prepare(engine)
    except BaseException:
        engine.dispose()
        raise
    return Store(engine)
