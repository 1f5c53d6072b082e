"""Addresses of databases, connections to them, and what their errors mean to a user."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    DisconnectionError,
    IntegrityError,
    InvalidatePoolError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from tuner.errors import AwayError, StoreError, TunerError, UsageError

BUSY_TIMEOUT_S = 30.0
"""How long a SQLite writer waits for the one before it. Our transactions take milliseconds, but a
busy machine may stop a writer in the middle of one."""

CONNECT_TIMEOUT_S = 10
"""How long to wait for PostgreSQL to answer; the library's own is minutes."""

IDLE_TIMEOUT_S = 20
"""After which PostgreSQL ends a transaction whose client says nothing, as one that is stopped or
whose network is gone: its locks would hold up all others for ever. Ours do nothing in between."""

KEPT_ALIVE = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""How soon a server whose machine is gone is noticed; the system's own is hours."""

PING_AFTER_S = 1.0
"""For how long a connection to PostgreSQL must have been idle to be asked whether it still works,
which takes as long as a short statement. A server is not ended and started again in that time."""

BEGIN_OPTION = "tuner_begin"
"""Execution option of a connection: the statement that opens its SQLite transactions."""

DURABLE_OPTION = "tuner_durable"
"""Execution option of a connection: whether its SQLite transactions outlive a power cut."""

SPELLINGS = "must be sqlite:///path/to/file.db or postgresql://user@host/database"

_WRITE_REFUSED = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "25006", "42501")
_DAMAGED = "the file is damaged; put a copy of it back, or name another with --db"
_PASSES = {
    "SQLITE_BUSY": f"another process has held its lock for {BUSY_TIMEOUT_S:.0f} s",
    "SQLITE_FULL": "the disk is full",
}


def default_url() -> str:
    """The database that is used when none is named: ``TUNER_DB``, or SQLite in the data folder."""
    if named := os.environ.get("TUNER_DB"):
        return named
    from platformdirs import user_data_path  # not needed when a database is named

    path = user_data_path("tuner", appauthor=False) / "tuner.db"
    return URL.create("sqlite", database=str(path)).render_as_string()


def parse_url(text: str) -> URL:
    """The address, with the driver that is used and, of SQLite, the absolute path.

    Raises:
        UsageError: not the address of a database that the product can use.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        shown = re.sub(r"//[^/]*@", "//***@", str(text))
        raise UsageError("db", shown, SPELLINGS) from error
    if url.drivername in ("postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
        return url.set(drivername="sqlite", database=str(_sqlite_path(url)))
    raise UsageError("db", shown_url(url), SPELLINGS)


def _sqlite_path(url: URL) -> Path:
    name = url.database or ""
    named = name and "\0" not in name and not name.startswith((":memory:", "file:"))
    if not named or url.host or url.query:
        allowed = "must name a file and nothing else, as in sqlite:///path/to/file.db"
        raise UsageError("db", shown_url(url), allowed)
    try:
        path = Path(name).expanduser().absolute()
        is_folder = path.is_dir()
    except (OSError, RuntimeError) as error:  # too long, not ours to see, of an unknown user
        raise UsageError("db", name, f"is not a usable path: {one_line(error)}") from error
    if is_folder:
        raise UsageError("db", str(path), "is a folder; name a file in it")
    return path


def is_sqlite(url: URL) -> bool:
    """Whether it is a file."""
    return url.drivername == "sqlite"


def shown_url(url: URL) -> str:
    """The address as it may be shown: a file's path, or without the password."""
    if is_sqlite(url) and url.database:
        return url.database
    return url.render_as_string(hide_password=True)


def make_engine(url: URL) -> Engine:
    """Connections to the database; nothing is opened yet.

    Raises:
        StoreError: the library for this kind of database is not installed.
    """
    if is_sqlite(url):
        return _sqlite_engine(url)
    return _postgresql_engine(url)


def writing(engine: Engine, *, durable: bool = True) -> Engine:
    """The same connections, for transactions that write.

    On SQLite they take the write lock at once. A transaction that reads first and then finds
    that another has written meanwhile fails, however long it would be ready to wait.

    Args:
        engine: connections to the database.
        durable: whether a commit is on the disk when it returns. On SQLite one that is not is safe
            from everything but a power cut, which undoes the last ones, in order; the next durable
            commit takes those before it to the disk. PostgreSQL's are always durable: it shows
            others what it has not yet written, and a crash of the server alone would undo it.
    """
    options = {BEGIN_OPTION: "BEGIN IMMEDIATE", DURABLE_OPTION: durable}
    return engine.execution_options(**options)


def _sqlite_engine(url: URL) -> Engine:
    """Connections to a file that exists, and is the one that the path names.

    A file that is moved away or put back from a copy is noticed when a connection is next used:
    those to the file that was there are closed. None makes a file, which would take the place of
    the one that is away, and undo what its write-ahead log holds.
    """
    path = Path(str(url.database))
    arguments = {"timeout": BUSY_TIMEOUT_S, "uri": True}
    engine = create_engine(url, connect_args=arguments)

    def open_it(dialect: object, record: object, args: list[str], named: object) -> None:
        args[0] = f"{path.as_uri()}?mode=rw"

    def set_up(connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["file"] = _file_at(path)
        _set_up_sqlite(connection)

    def look(connection: object, record: ConnectionPoolEntry, proxy: object) -> None:
        if record.info["file"] != _file_at(path):
            raise DisconnectionError("the file is another one")

    event.listen(engine, "do_connect", open_it)
    event.listen(engine, "connect", set_up)
    event.listen(engine, "checkout", look)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _postgresql_engine(url: URL) -> Engine:
    """Connections to a server. When one of those that were idle does not work any more, as after
    the server's restart, all of them are made anew."""
    wanted = {"connect_timeout": CONNECT_TIMEOUT_S, **KEPT_ALIVE}
    given = {name: value for name, value in wanted.items() if name not in url.query}
    try:
        engine = create_engine(url, connect_args=given)
    except ImportError as error:
        needed = "PostgreSQL needs psycopg: pip install 'tuner[postgres]'"
        raise StoreError(f"db: {needed} ({one_line(error)})") from error

    def note(connection: object, record: ConnectionPoolEntry) -> None:
        record.info["used_at"] = time.monotonic()

    def look(connection: Any, record: ConnectionPoolEntry, proxy: object) -> None:
        used_at = record.info.get("used_at")  # by nobody, of a connection that is new
        if used_at is None or time.monotonic() < used_at + PING_AFTER_S:
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError(f"the server is gone: {error}") from error

    event.listen(engine, "connect", _set_up_postgresql)
    event.listen(engine, "checkin", note)
    event.listen(engine, "checkout", look)
    return engine


def _file_at(path: Path) -> tuple[int, int] | None:
    """What tells a file from every other one; ``None`` if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _set_up_sqlite(connection: Any) -> None:
    # The driver would open transactions late, and none around DDL: "begin" events do it instead.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")


def _set_up_postgresql(connection: Any, record: object) -> None:
    connection.autocommit = True
    connection.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s'")
    connection.autocommit = False


def _begin_sqlite(connection: Connection) -> None:
    options = connection.get_execution_options()
    if begin := options.get(BEGIN_OPTION, "BEGIN"):
        _synchronize(connection, "FULL" if options.get(DURABLE_OPTION, True) else "NORMAL")
        connection.exec_driver_sql(begin)


def _synchronize(connection: Connection, how: str) -> None:
    """Says what a commit waits for; outside transactions alone can that be said.

    FULL waits for the disk, which takes milliseconds: without it a power cut would undo
    measurements that took minutes each. Under NORMAL, which the file's write-ahead log keeps from
    damage all the same, it waits for nothing.
    """
    if connection.info.get("synchronous") != how:
        connection.exec_driver_sql(f"PRAGMA synchronous = {how}")
        connection.info["synchronous"] = how


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turns the database's errors into the product's; broken constraints are our own bugs.

    Raises:
        UsageError: it cannot be written, or is not a database.
        StoreError: it is damaged.
        AwayError: any other trouble with it: it may pass.
    """
    try:
        yield
    except IntegrityError:
        raise
    except DBAPIError as error:
        raise _translation(error, url) from error


def _translation(error: DBAPIError, url: URL) -> TunerError:
    cause = error.orig
    code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""
    shown = shown_url(url)
    if code == "SQLITE_CANTOPEN" and not Path(shown).exists():
        return AwayError(f"the database {shown} cannot be used: there is no such file")
    if code.startswith(_WRITE_REFUSED):
        return UsageError("db", shown, f"cannot be written: {one_line(cause)}")
    if code == "SQLITE_NOTADB":
        return UsageError("db", shown, "is not a database")
    if code.startswith("SQLITE_CORRUPT"):
        return StoreError(f"the database {shown} cannot be used: {_DAMAGED}")
    for begin, meaning in _PASSES.items():
        if code.startswith(begin):
            return AwayError(f"the database {shown} cannot be used: {meaning}")
    return AwayError(f"the database {shown} cannot be used: {one_line(cause)}")


def one_line(error: object, most: int = 200) -> str:
    """An error's text, or any other, fit to be shown and stored in one line."""
    text = " ".join(str(error).replace("\0", "").split())
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 3] + "..."
