"""Addresses of databases, connections and transactions, and the errors that users see of them."""

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping
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
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from tuner.errors import AwayError, StoreError, UsageError

# Our transactions take milliseconds, but a busy machine may stop a writer in the middle of one.
# Seconds that a SQLite writer waits for the one before it.
BUSY_TIMEOUT_S = 30.0
# For what may be left out: nobody's answer waits longer for that.
OPTIONAL_S = 0.25

# Seconds to wait for PostgreSQL to answer; the library's own are minutes.
CONNECT_TIMEOUT_S = 10

# Its locks would hold up all others for ever. Ours do nothing in between.
# Seconds after which PostgreSQL ends a transaction whose client is stopped or cut off.
IDLE_TIMEOUT_S = 20

# The system's own settings would take hours to notice a server whose machine is gone; and the
# server as long to notice a client's, whose locks it keeps until then.
KEPT_ALIVE = {
    "keepalives_idle": 15,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
# Run on each new connection to PostgreSQL. Of Unix sockets the server ignores all but the first.
SET_UP = f"""
SET idle_in_transaction_session_timeout = '{IDLE_TIMEOUT_S}s';
SET tcp_keepalives_idle = {KEPT_ALIVE["keepalives_idle"]};
SET tcp_keepalives_interval = {KEPT_ALIVE["keepalives_interval"]};
SET tcp_keepalives_count = {KEPT_ALIVE["keepalives_count"]};
SET tcp_user_timeout = {KEPT_ALIVE["tcp_user_timeout"]}
"""

# The question takes as long as a short statement, and no server ends and starts again in a second.
# Seconds without use after which a connection to PostgreSQL is asked if it still works.
PING_AFTER_S = 1.0

# Claims return the rows that they change.
OLDEST_SQLITE = (3, 35)

# How a durable commit of SQLite waits for the disk, which takes milliseconds: fully. Without that a
# power cut would undo measurements that took minutes each.
DURABLY = "FULL"

# Execution option of a connection: the statement that opens its SQLite transactions.
BEGIN_OPTION = "tuner_begin"

# Execution option of a connection: true if its SQLite transactions outlive a power cut.
DURABLE_OPTION = "tuner_durable"

# Execution option of a connection: seconds that its SQLite transactions wait for the write lock.
PATIENCE_OPTION = "tuner_patience"

SPELLINGS = "must be sqlite:///path/to/file.db or postgresql://user@host/database"

_WRITE_REFUSED = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "25006", "42501")
_PASSING = {
    "SQLITE_BUSY": "another process has held its lock for too long",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_CANTOPEN": "there is no such file",
}


def default_url() -> str:
    """The database that is used when none is named: ``TUNER_DB``, or SQLite in the data folder."""
    if named := os.environ.get("TUNER_DB"):
        return named
    from platformdirs import user_data_path  # not needed when a database is named

    path = user_data_path("tuner", appauthor=False) / "tuner.db"
    return URL.create("sqlite", database=str(path)).render_as_string()


def parse_url(text: str) -> URL:
    """The address, with the driver that is used and, of SQLite, the absolute path."""
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        shown = re.sub(r"//[^/]*@", "//***@", str(text))
        raise UsageError("db", shown, SPELLINGS) from error
    if url.drivername in ("postgresql", "postgresql+psycopg"):
        return url.set(drivername="postgresql+psycopg")
    if url.drivername in ("sqlite", "sqlite+pysqlite"):
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
        return url.set(drivername="sqlite", database=str(path))
    raise UsageError("db", shown_url(url), SPELLINGS)


def is_sqlite(url: URL) -> bool:
    return url.drivername == "sqlite"


def shown_url(url: URL) -> str:
    """The address as it may be shown: a file's path, or without the password."""
    if is_sqlite(url) and url.database:
        return url.database
    return url.render_as_string(hide_password=True)


class Transactions:
    """Opens transactions on a database, from any number of threads.

    They raise :class:`tuner.errors.StoreError` when the database fails, and
    :class:`tuner.errors.UsageError` with the field ``db`` when it cannot be written.
    """

    def __init__(self, engine: Engine) -> None:
        # SQLite's writers take the write lock at once: a transaction that reads first, and then
        # finds that another has written meanwhile, fails however long it would wait.
        self.engine = engine
        self.writer = engine.execution_options(**{BEGIN_OPTION: "BEGIN IMMEDIATE"})
        self._quick_writer = self.writer.execution_options(**{DURABLE_OPTION: False})
        self._optional = self._quick_writer.execution_options(**{PATIENCE_OPTION: OPTIONAL_S})
        self.write_failed_at = float("-inf")  # by ``time.monotonic()``: a disk was full, or locked
        self._autocommit = engine.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def read(self) -> Iterator[Session]:
        with translated(self.engine.url), Session(self.engine) as session:
            yield session

    @contextmanager
    def write(self, *, durable: bool = True) -> Iterator[Session]:
        """Opens a transaction that writes; it is rolled back when an exception leaves it.

        Args:
            durable: false for what means nothing without the processes that a power cut ends: the
                commit does not wait for SQLite's disk. A power cut undoes the last such ones, in
                order; the next durable commit takes those before it to the disk. PostgreSQL's are
                all durable: a crash of the server alone would undo what others have seen.
        """
        engine = self.writer if durable else self._quick_writer
        with self._noting_failure(), Session(engine) as session, session.begin():
            yield session

    @contextmanager
    def write_if_free(self) -> Iterator[Session]:
        """Opens a transaction like :meth:`write` for what may be left out, and is not durable."""
        with translated(self.engine.url), Session(self._optional) as session, session.begin():
            yield session

    @contextmanager
    def _noting_failure(self) -> Iterator[None]:
        try:
            with translated(self.engine.url):
                yield
        except (AwayError, UsageError) as error:
            if isinstance(error, AwayError) or error.field == "db":
                self.write_failed_at = time.monotonic()
            raise

    @contextmanager
    def write_rows(self) -> Iterator[Connection]:
        """Opens a transaction like :meth:`write` that is not durable, and without objects: a
        session takes longer than four statements of SQLite."""
        engine = self._quick_writer
        with self._noting_failure(), engine.connect() as connection, connection.begin():
            yield connection

    @property
    def takes_messages(self) -> bool:
        """True where :meth:`message` works: on PostgreSQL."""
        return self.engine.dialect.name == "postgresql"

    def message(self, statements: str, values: Mapping[str, Any], prepared: str) -> Any:
        """Sends PostgreSQL statements as one message, which is a transaction of its own.

        The server runs none before it has the message to its end, so no client that stops or is
        cut off leaves one half done. Pipelines would not do: psycopg sends each statement of one
        as it comes (3.3.9, ``_cursor_base.py``, ``_execute_gen``).

        Args:
            prepared: a ``PREPARE`` of what they execute, which each connection is sent once.

        Returns:
            The first row of the last statement.
        """
        dbapi: Any = self.engine.dialect.loaded_dbapi
        with translated(self.engine.url), self._autocommit.connect() as connection:
            driver: Any = connection.connection.driver_connection
            try:
                cursor = dbapi.ClientCursor(driver)  # puts the values into the text: one message
                if "prepared" not in connection.info:
                    driver.execute(prepared, prepare=False)
                    connection.info["prepared"] = True
                try:
                    cursor.execute(statements, values)
                except dbapi.errors.InvalidSqlStatementName:
                    # psycopg puts away its own, and this one with them, after a ROLLBACK
                    driver.execute(prepared, prepare=False)
                    cursor.execute(statements, values)
                while cursor.nextset():
                    pass
                return cursor.fetchone()
            except dbapi.Error as error:  # which SQLAlchemy has not seen
                if driver.closed:
                    connection.invalidate(error)
                raise DBAPIError.instance(None, None, error, dbapi.Error) from error


def _sqlite_engine(url: URL, patience_s: float | None) -> Engine:
    """Connections to a file that exists, and is the one that the path names."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise StoreError(f"db: SQLite {oldest} is needed; this is {sqlite3.sqlite_version}")
    # A file that is moved away or put back from a copy is noticed when a connection is next used:
    # those to the file that was there are closed. None makes a file, which would take the place of
    # the one that is away, and undo what its write-ahead log holds.
    path = Path(str(url.database))
    usual_s = BUSY_TIMEOUT_S if patience_s is None else patience_s
    arguments = {"timeout": usual_s, "uri": True}
    engine = create_engine(url, connect_args=arguments)

    def identity() -> tuple[int, int] | None:
        try:
            found = path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def open_it(dialect: object, record: object, args: list[str], named: object) -> None:
        args[0] = f"{path.as_uri()}?mode=rw"

    def set_up(connection: Any, record: ConnectionPoolEntry) -> None:
        record.info["file"] = identity()
        # The driver would open transactions late, and none around DDL: "begin" events do it.
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    def look(connection: object, record: ConnectionPoolEntry, proxy: object) -> None:
        if record.info["file"] != identity():
            raise DisconnectionError("the file is another one")

    def begin_it(connection: Connection) -> None:
        options = connection.get_execution_options()
        if not (begin := options.get(BEGIN_OPTION, "BEGIN")):
            return
        wait_s = options.get(PATIENCE_OPTION, usual_s)
        if connection.info.get("patience", usual_s) != wait_s:
            connection.exec_driver_sql(f"PRAGMA busy_timeout = {wait_s * 1000:.0f}")
            connection.info["patience"] = wait_s
        # Under NORMAL, which the write-ahead log keeps from damage all the same, a commit waits for
        # nothing. It can be said outside transactions alone.
        how = DURABLY if options.get(DURABLE_OPTION, True) else "NORMAL"
        if connection.info.get("synchronous") != how:
            connection.exec_driver_sql(f"PRAGMA synchronous = {how}")
            connection.info["synchronous"] = how
        connection.exec_driver_sql(begin)

    event.listen(engine, "do_connect", open_it)
    event.listen(engine, "connect", set_up)
    event.listen(engine, "checkout", look)
    event.listen(engine, "begin", begin_it)
    return engine


def make_engine(url: URL, patience_s: float | None = None) -> Engine:
    """Connections to the database; nothing is opened yet. SQLite's wait ``patience_s`` for a writer
    before them, by default :data:`BUSY_TIMEOUT_S`."""
    if is_sqlite(url):
        return _sqlite_engine(url, patience_s)
    # When an idle one does not work any more, as after the server's restart, all are made anew.
    wanted = {"connect_timeout": CONNECT_TIMEOUT_S, **KEPT_ALIVE}
    given = {name: value for name, value in wanted.items() if name not in url.query}
    try:
        engine = create_engine(url, connect_args=given)
    except ImportError as error:
        needed = "PostgreSQL needs psycopg: pip install 'tuner[postgres]'"
        raise StoreError(f"db: {needed} ({one_line(error)})") from error

    def set_up(connection: Any, record: object) -> None:
        connection.autocommit = True
        connection.execute(SET_UP)
        connection.autocommit = False

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

    event.listen(engine, "connect", set_up)
    event.listen(engine, "checkin", note)
    event.listen(engine, "checkout", look)
    return engine


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
        cause = error.orig
        code = getattr(cause, "sqlite_errorname", None) or getattr(cause, "sqlstate", None) or ""
        shown = shown_url(url)
        unusable = f"the database {shown} cannot be used: "
        if code.startswith(_WRITE_REFUSED) and (code != "SQLITE_CANTOPEN" or Path(shown).exists()):
            refused = f"cannot be written: {one_line(cause)}"
            raise UsageError("db", shown, refused) from error
        if code == "SQLITE_NOTADB":
            raise UsageError("db", shown, "is not a database") from error
        if code.startswith("SQLITE_CORRUPT"):
            restore = "the file is damaged; put a copy of it back, or name another with --db"
            raise StoreError(unusable + restore) from error
        meanings = (meaning for prefix, meaning in _PASSING.items() if code.startswith(prefix))
        raise AwayError(unusable + next(meanings, one_line(cause))) from error


def one_line(error: object, most: int = 200) -> str:
    """An error's text, or any other, fit to be shown and stored in one line."""
    text = " ".join(str(error).replace("\0", "").split())
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else text[: most - 3] + "..."
