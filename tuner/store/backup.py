"""Copies of a database that is in use."""

import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from tuner.errors import StoreError, UsageError
from tuner.store.engine import BUSY_TIMEOUT_S, is_sqlite, one_line, parse_url, shown_url
from tuner.store.migrate import require_file


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
