"""Bringing a database to the schema of this version, and checking that it is there.

Alembic is imported only when there is something to migrate or to compare: it takes longer to
import than most commands to run.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, inspect, text
from sqlalchemy.exc import OperationalError

import tuner
from tuner.errors import StoreError, UsageError
from tuner.store.engine import (
    BEGIN_OPTION,
    BUSY_TIMEOUT_S,
    is_sqlite,
    make_engine,
    one_line,
    parse_url,
    shown_url,
    translated,
    writing,
)
from tuner.store.page_tables import METADATA
from tuner.store.tables import VERSION_TABLE

if TYPE_CHECKING:
    from alembic.config import Config

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009")
"""All migrations, oldest first; the last is the schema of :mod:`tuner.store.tables`."""

HEAD = REVISIONS[-1]

_LOCK_KEY = 0x74756E6572
"""PostgreSQL's advisory lock of those who migrate: the product's name in ASCII."""


class Standing(StrEnum):
    """How a database's schema stands to this version's."""

    EMPTY = "empty"  # no tables of ours yet
    OLD = "old"  # written by an earlier version
    CURRENT = "current"  # ready for use
    NEWER = "newer"  # written by a later version
    FOREIGN = "foreign"  # another program's


def prepare(engine: Engine) -> None:
    """Makes a database ready for use: SQLite's is made and migrated, another's must be current.

    Raises:
        UsageError: it cannot be written, or is not ours.
        StoreError: it is of a newer version, or not at head.
    """
    url = engine.url
    with translated(url):
        if is_sqlite(url):
            _write_ahead(engine)
        with engine.connect() as connection:
            standing, revision = _standing(connection)
        if standing is Standing.CURRENT:
            return
        _refuse_unusable(standing, revision, shown_url(url))
        if not is_sqlite(url):
            raise StoreError(
                f"the database {shown_url(url)} is not at this version's schema"
                f" (it is at {revision or 'none'}, needed is {HEAD}): run tuner db upgrade"
            )
        _migrate(engine)


def upgrade(url: str) -> list[str]:
    """Migrates the database to this version's schema, making a SQLite file that is absent.

    Returns:
        The revisions that were applied, oldest first; none when it was there already.

    Raises:
        UsageError: the address is wrong, or the database cannot be written, or is not ours.
        StoreError: it cannot be reached, or is of a newer version.
    """
    parsed = parse_url(url)
    make_file(parsed.database if is_sqlite(parsed) else None)
    engine = make_engine(parsed)
    try:
        with translated(parsed):
            if is_sqlite(parsed):
                _write_ahead(engine)
            return _migrate(engine)
    finally:
        engine.dispose()


def check(url: str) -> list[str]:
    """What is wrong with the database, one line for each; empty when all is well.

    Raises:
        UsageError: the address is wrong, there is no such file, or it is not a database.
        StoreError: it cannot be reached.
    """
    parsed = parse_url(url)
    if is_sqlite(parsed):
        require_file(str(parsed.database))
    engine = make_engine(parsed)
    try:
        with translated(parsed), engine.connect() as connection:
            standing, revision = _standing(connection)
            if standing is not Standing.CURRENT:
                found = f"its schema is at {revision or 'none'}, this version's is {HEAD}"
                return [f"{standing}: {found}"]
            return _damage(connection) + _differences(connection)
    finally:
        engine.dispose()


def make_file(path: str | None) -> None:
    """Makes a SQLite file that is absent, empty, and its folder.

    Raises:
        UsageError: it cannot be made.
    """
    if path is None:
        return
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("db", path, f"its folder cannot be made: {error.strerror}") from error
    try:
        if not Path(path).exists():
            Path(path).touch()
    except OSError as error:
        raise UsageError("db", path, f"cannot be written: {error.strerror}") from error


def require_file(path: str) -> None:
    """Refuses a SQLite file that is absent.

    Raises:
        UsageError: it is.
    """
    if not Path(path).exists():
        raise UsageError("db", path, "there is no such database yet; `tuner suggest` makes it")


def migrations_folder() -> Path:
    """Where the migration scripts are: in the installed package, or beside it in a checkout.

    Raises:
        StoreError: neither holds them.
    """
    package = Path(tuner.__file__).parent
    for folder in (package / "migrations", package.parent / "migrations"):
        if (folder / "env.py").is_file():
            return folder
    raise StoreError("the migration scripts are missing: install the product again")


def alembic_config(connection: Connection) -> "Config":
    """What Alembic's commands need to work on ``connection``."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


@contextmanager
def migration_lock(engine: Engine) -> Iterator[Connection]:
    """A transaction in which nobody else migrates; all of a migration is done, or none.

    SQLite enforces foreign keys at its end only: changing a table means dropping it and filling
    a new one, which would delete the rows that point to it.
    """
    with writing(engine).connect() as connection:
        if is_sqlite(engine.url):
            _foreign_keys(connection, on=False)
        try:
            with connection.begin():
                if not is_sqlite(engine.url):
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})"))
                yield connection
                if is_sqlite(engine.url):
                    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                    assert not broken, f"a migration broke {len(broken)} references"
        finally:
            if is_sqlite(engine.url):
                _foreign_keys(connection, on=True)


def _migrate(engine: Engine) -> list[str]:
    """Applies what is missing, once the lock is held: another process may have done it."""
    with migration_lock(engine) as connection:
        standing, revision = _standing(connection)
        _refuse_unusable(standing, revision, shown_url(engine.url))
        missing = REVISIONS[REVISIONS.index(revision) + 1 :] if revision else REVISIONS
        if missing:
            from alembic import command

            command.upgrade(alembic_config(connection), HEAD)
        return list(missing)


def _standing(connection: Connection) -> tuple[Standing, str | None]:
    inspector = inspect(connection)
    if not inspector.has_table(VERSION_TABLE):
        names = set(inspector.get_table_names())
        ours = names if connection.dialect.name == "sqlite" else names & set(METADATA.tables)
        return (Standing.FOREIGN if ours else Standing.EMPTY), None
    version = text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608
    revision = connection.execute(version).scalar()
    if revision is None:
        return Standing.EMPTY, None
    if revision not in REVISIONS:
        return Standing.NEWER, str(revision)
    return (Standing.CURRENT if revision == HEAD else Standing.OLD), str(revision)


def _refuse_unusable(standing: Standing, revision: str | None, shown: str) -> None:
    if standing is Standing.NEWER:
        raise StoreError(
            f"the database {shown} was written by a newer version of tuner (its schema is"
            f" {revision}, this version's is {HEAD}): upgrade tuner, or name another with --db"
        )
    if standing is Standing.FOREIGN:
        raise UsageError("db", shown, "is a database of another program; name another")


def _write_ahead(engine: Engine) -> None:
    """Puts a SQLite file into WAL mode, which it keeps: readers and a writer do not wait.

    A file system without shared memory, such as a network's, refuses; then they do wait.
    """
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    with engine.connect().execution_options(**{BEGIN_OPTION: ""}) as connection:
        while _pragma(connection, "journal_mode") != "wal":
            try:
                _pragma(connection, "journal_mode = WAL")
                return
            except OperationalError as error:
                # SQLite does not wait for other connections here, whatever its timeout.
                busy = getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def _foreign_keys(connection: Connection, *, on: bool) -> None:
    """Switches enforcement, which SQLite does outside transactions only."""
    driver = connection.connection.driver_connection
    assert driver is not None
    driver.execute(f"PRAGMA foreign_keys = {'ON' if on else 'OFF'}")


def _pragma(connection: Connection, name: str) -> Any:
    return connection.exec_driver_sql(f"PRAGMA {name}").scalar()


def _damage(connection: Connection) -> list[str]:
    if connection.dialect.name != "sqlite":
        return []
    found = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
    orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    lines = [f"damaged: {one_line(line)}" for line in found if line != "ok"]
    return lines + [f"damaged: a row of {row[0]} points to none of {row[2]}" for row in orphans]


def _differences(connection: Connection) -> list[str]:
    """How our tables differ from what this version expects."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    def ours(name: str | None, kind: str, parents: Any) -> bool:
        return kind != "table" or name in METADATA.tables

    options = {"version_table": VERSION_TABLE, "include_name": ours, "compare_type": True}
    context = MigrationContext.configure(connection, opts=options)
    return [f"different: {one_line(found)}" for found in compare_metadata(context, METADATA)]
