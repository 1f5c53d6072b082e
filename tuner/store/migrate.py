"""Brings a database to the schema of this version, checks that it is there, and copies it."""

import os
import shutil
import sqlite3
import tempfile
import time
from contextlib import closing, suppress
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
    Transactions,
    is_sqlite,
    make_engine,
    one_line,
    parse_url,
    shown_url,
    translated,
)
from tuner.store.tables import VERSION_TABLE, Base

if TYPE_CHECKING:
    from alembic.config import Config


# Alembic is imported only when there is something to migrate or to compare: it takes longer to
# import than most commands to run.


# All migrations, oldest first; the last is the schema of :mod:`tuner.store.tables`.
REVISIONS = ("0013",)

HEAD = REVISIONS[-1]

# Revisions of databases from before the first release, which no migration leads from.
BEFORE_RELEASE = tuple(f"{number:04}" for number in range(1, int(REVISIONS[0])))

METADATA = Base.metadata

_VERSION = text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608
# PostgreSQL's advisory lock of those who migrate: the product's name in ASCII.
_LOCK_KEY = 0x74756E6572


class SchemaState(StrEnum):
    """State of a database's schema, beside this version's."""

    EMPTY = "empty"  # no tables of ours yet
    OLD = "old"  # written by an earlier version
    CURRENT = "current"  # ready for use
    NEWER = "newer"  # written by a later version
    FOREIGN = "foreign"  # another program's


def prepare(engine: Engine) -> None:
    """Makes a database ready for use: SQLite's is made and migrated, another's must be current.

    Raises:
        UsageError: it cannot be written, or is not ours.
        StoreError: it is of a newer version, from before the first release, or not at head.
    """
    url = engine.url
    with translated(url):
        if is_sqlite(url):
            _write_ahead(engine)
        with engine.connect() as connection:
            state, revision = _state(connection)
        if state is SchemaState.CURRENT:
            return
        _refuse_unusable(state, revision, shown_url(url))
        if not is_sqlite(url):
            raise StoreError(
                f"the database {shown_url(url)} is not at this version's schema"
                f" (it is at {revision or 'none'}, needed is {HEAD}): run tuner db upgrade"
            )
        _migrate(engine)


def upgrade(url: str) -> list[str]:
    """Migrates the database to this version's schema, making a SQLite file that is absent; the
    revisions that were applied, oldest first.
    """
    parsed = parse_url(url)
    if is_sqlite(parsed):
        make_file(str(parsed.database))
    engine = make_engine(parsed)
    try:
        with translated(parsed):
            if is_sqlite(parsed):
                _write_ahead(engine)
            return _migrate(engine)
    finally:
        engine.dispose()


def check(url: str) -> list[str]:
    """Faults of the database, one line for each; empty when all is well."""
    parsed = parse_url(url)
    if is_sqlite(parsed):
        require_file(str(parsed.database))
    engine = make_engine(parsed)
    try:
        with translated(parsed), engine.connect() as connection:
            state, revision = _state(connection)
            if state is not SchemaState.CURRENT:
                try:
                    _refuse_unusable(state, revision, shown_url(parsed))
                except (StoreError, UsageError) as error:
                    return [f"{state}: {error}"]
                apart = f"{state}: its schema is at {revision or 'none'}, this version's is {HEAD}"
                return [f"{apart}: tuner db upgrade brings it there, and keeps what is in it"]
            found: list[str] = []
            if is_sqlite(parsed):
                lines = connection.exec_driver_sql("PRAGMA quick_check(10)").scalars().all()
                found += [f"damaged: {one_line(line)}" for line in lines if line != "ok"]
                orphans = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
                found += [
                    f"damaged: a row of {one[0]} points to none of {one[2]}" for one in orphans
                ]
            # differences between our tables and those that this version expects
            from alembic.autogenerate import compare_metadata
            from alembic.migration import MigrationContext

            def ours(name: str | None, kind: str, parents: Any) -> bool:
                return kind != "table" or name in METADATA.tables

            options = {"version_table": VERSION_TABLE, "include_name": ours, "compare_type": True}
            context = MigrationContext.configure(connection, opts=options)
            differences = compare_metadata(context, METADATA)
            return found + [f"different: {one_line(one)}" for one in differences]
    finally:
        engine.dispose()


def why_not_ready(transactions: Transactions) -> str:
    """The reason why this version cannot use an open database now; empty when it can.

    It costs one query, and looks for neither damage nor differences as :func:`check` does.
    """
    with transactions.read() as session:
        revision = session.scalar(_VERSION)
    if revision == HEAD:
        return ""
    return f"the database's schema is at {revision or 'none'}, this version's is {HEAD}"


def make_file(path: str) -> None:
    """Makes a SQLite file that is absent, empty, and its folder; UsageError if it cannot."""
    what = "its folder cannot be made"
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        what = "cannot be written"
        if not Path(path).exists():
            # hashes of keys, and everybody's questions, are nobody else's to read; the files that
            # SQLite makes beside it have the same rights
            Path(path).touch(mode=0o600)
    except OSError as error:
        raise UsageError("db", path, f"{what}: {error.strerror}") from error


def require_file(path: str) -> None:
    """Raises UsageError for a SQLite file that is absent."""
    if not Path(path).exists():
        raise UsageError("db", path, "there is no such database yet; `tuner suggest` makes it")


def alembic_config(connection: Connection) -> "Config":
    """The configuration with which Alembic's commands work on ``connection``."""
    from alembic.config import Config

    # In an installed package they are inside it, in a checkout beside it.
    package = Path(tuner.__file__).parent
    folders = [root / "migrations" for root in (package, package.parent)]
    found = [folder for folder in folders if (folder / "env.py").is_file()]
    if not found:
        raise StoreError("the migration scripts are missing: install the product again")
    config = Config()
    config.set_main_option("script_location", str(found[0]).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _migrate(engine: Engine) -> list[str]:
    """Applies the missing migrations in one transaction, in which nobody else migrates."""
    with Transactions(engine).writer.begin() as connection:
        if not is_sqlite(engine.url):
            connection.execute(text(f"SELECT pg_advisory_xact_lock({_LOCK_KEY})"))
        # Looked at again now that the lock is held: another process may have done it.
        state, revision = _state(connection)
        _refuse_unusable(state, revision, shown_url(engine.url))
        missing = REVISIONS[REVISIONS.index(revision) + 1 :] if revision else REVISIONS
        if missing:
            from alembic import command

            command.upgrade(alembic_config(connection), HEAD)
        return list(missing)


def _state(connection: Connection) -> tuple[SchemaState, str | None]:
    inspector = inspect(connection)
    if not inspector.has_table(VERSION_TABLE):
        names = set(inspector.get_table_names())
        ours = names if connection.dialect.name == "sqlite" else names & set(METADATA.tables)
        return (SchemaState.FOREIGN if ours else SchemaState.EMPTY), None
    revision = connection.execute(_VERSION).scalar()
    if revision is None:
        return SchemaState.EMPTY, None
    if revision == HEAD:
        return SchemaState.CURRENT, revision
    is_old = revision in REVISIONS or revision in BEFORE_RELEASE
    return (SchemaState.OLD if is_old else SchemaState.NEWER), str(revision)


def _refuse_unusable(state: SchemaState, revision: str | None, shown: str) -> None:
    if state is SchemaState.FOREIGN:
        raise UsageError("db", shown, "is a database of another program; name another")
    if state is SchemaState.NEWER:
        raise StoreError(
            f"the database {shown} was written by a newer version of tuner (its schema is"
            f" {revision}, this version's is {HEAD}): upgrade tuner, or name another with --db"
        )
    if revision in BEFORE_RELEASE:
        raise StoreError(
            f"the database {shown} was written before the first release of tuner (its schema is"
            f" {revision}, this version's is {HEAD}) and cannot be upgraded: delete it, or name"
            " another with --db; tuner db backup PATH keeps a copy of it first"
        )


def _write_ahead(engine: Engine) -> None:
    """Puts a SQLite file into WAL mode, which it keeps: readers and a writer do not wait."""
    # A file system without shared memory, such as a network's, refuses; then they do wait.
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    with engine.connect().execution_options(**{BEGIN_OPTION: ""}) as connection:
        while connection.exec_driver_sql("PRAGMA journal_mode").scalar() != "wal":
            try:
                connection.exec_driver_sql("PRAGMA journal_mode = WAL")
                return
            except OperationalError as error:
                # SQLite does not wait for other connections here, whatever its timeout.
                busy = getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY")
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(0.01)


def backup(url: str, path: str | Path) -> int:
    """Copies a SQLite database, as it is at one moment, to a file that does not exist yet; returns
    the copy's size in bytes.

    Others may read and write it meanwhile. The copy is checked, is on the disk when this returns,
    needs no other file beside it, and may be read by those who may read the database. It appears
    only once it is whole; nothing is ever overwritten.

    Raises:
        UsageError: the database is not SQLite's (the error names the command to use), or not
            there; the file is, or its folder is not.
        StoreError: the copy could not be made, or is damaged; nothing is left of it.
    """
    parsed = parse_url(url)
    if not is_sqlite(parsed):
        address = parsed.set(drivername="postgresql")._replace(password=None).render_as_string()
        command = f"pg_dump --format=custom --file=tuner.dump '{address}'"
        raise UsageError(
            "db", shown_url(parsed), f"PostgreSQL is backed up by its own tool: {command}"
        )
    require_file(str(parsed.database))
    source, target = Path(str(parsed.database)), Path(path).expanduser().absolute()
    if target.exists():
        raise UsageError("path", str(path), "is there already, and is not overwritten")
    if not target.parent.is_dir():
        raise UsageError("path", str(path), "must be in a folder that exists")
    name = ""
    try:
        # a file beside the target that was nobody else's to read
        handle, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        os.close(handle)
        _copy(source, Path(name))
        shutil.copymode(source, name)
        target.touch(exist_ok=False)  # refuses where a file has appeared meanwhile
        Path(name).replace(target)
        # the folder's entry is put on the disk; the file's contents are there since its commit
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except FileExistsError as error:
        raise UsageError("path", str(path), "is there already, and is not overwritten") from error
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"the backup {target} could not be made: {one_line(error)}") from error
    finally:
        for end in ("", "-journal", "-wal", "-shm") if name else ():
            with suppress(OSError):  # the first error is the one to tell
                Path(name + end).unlink(missing_ok=True)
    return target.stat().st_size


def _copy(source: Path, copy: Path) -> None:
    with (
        closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True)) as old,
        closing(sqlite3.connect(copy)) as new,
    ):
        old.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_S * 1000:.0f}")
        new.execute("PRAGMA synchronous = FULL")
        # SQLite's own backup is one read transaction, which makes no writer wait in WAL mode.
        # In one step: one of several starts again whenever another process has written meanwhile.
        old.backup(new, pages=-1)
        new.execute("PRAGMA journal_mode = DELETE")  # no other files; who opens it sets its own
        damage = new.execute("PRAGMA quick_check(1)").fetchone()[0]
    if damage != "ok":
        raise sqlite3.DatabaseError(f"the copy is damaged: {damage}")
