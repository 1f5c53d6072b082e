"""Addresses of databases, connections to them, and what their errors mean to a user."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError

from tuner.errors import StoreError, TunerError, UsageError

BUSY_TIMEOUT_S = 30.0
"""How long a SQLite writer waits for the one before it. Our transactions take milliseconds, but a
busy machine may stop a writer in the middle of one."""

CONNECT_TIMEOUT_S = 10
"""How long to wait for PostgreSQL to answer; the library's own is minutes."""

BEGIN_OPTION = "tuner_begin"
"""Execution option of a connection: the statement that opens its SQLite transactions."""

SPELLINGS = "must be sqlite:///path/to/file.db or postgresql://user@host/database"

_WRITE_REFUSED = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "25006", "42501")
_OTHER_TROUBLE = {
    "SQLITE_BUSY": f"another process has held its lock for {BUSY_TIMEOUT_S:.0f} s",
    "SQLITE_CORRUPT": "the file is damaged; put a copy of it back, or name another with --db",
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
        shown = re.sub(r"//[^/]*@", "//***@", text)
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
        engine = create_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S})
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
        return engine
    timeout = {} if "connect_timeout" in url.query else {"connect_timeout": CONNECT_TIMEOUT_S}
    try:
        return create_engine(url, connect_args=timeout, pool_pre_ping=True)
    except ImportError as error:
        needed = "PostgreSQL needs psycopg: pip install 'tuner[postgres]'"
        raise StoreError(f"db: {needed} ({one_line(error)})") from error


def writing(engine: Engine) -> Engine:
    """The same connections, for transactions that write.

    On SQLite they take the write lock at once. A transaction that reads first and then finds
    that another has written meanwhile fails, however long it would be ready to wait.
    """
    return engine.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})


def _set_up_sqlite(connection: Any, record: object) -> None:
    # The driver would open transactions late, and none around DDL: "begin" events do it instead.
    connection.isolation_level = None
    connection.execute("PRAGMA foreign_keys = ON")
    # A commit is on the disk when it returns. Without that a power cut may undo measurements that
    # took minutes each; writes are few, and each costs milliseconds.
    connection.execute("PRAGMA synchronous = FULL")


def _begin_sqlite(connection: Connection) -> None:
    begin = connection.get_execution_options().get(BEGIN_OPTION, "BEGIN")
    if begin:
        connection.exec_driver_sql(begin)


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turns the database's errors into the product's; broken constraints are our own bugs.

    Raises:
        UsageError: it cannot be written, or is not a database.
        StoreError: any other trouble with it.
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
    if code.startswith(_WRITE_REFUSED):
        return UsageError("db", shown, f"cannot be written: {one_line(cause)}")
    if code == "SQLITE_NOTADB":
        return UsageError("db", shown, "is not a database")
    for begin, meaning in _OTHER_TROUBLE.items():
        if code.startswith(begin):
            return StoreError(f"the database {shown} cannot be used: {meaning}")
    return StoreError(f"the database {shown} cannot be used: {one_line(cause)}")


def one_line(error: object, most: int = 200) -> str:
    """An error's text, or any other, fit to be shown and stored in one line."""
    text = " ".join(str(error).replace("\0", "").split())
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 3] + "..."
