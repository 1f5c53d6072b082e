"""Copies of databases, made while they are in use."""

import os
import sqlite3
import stat
import threading
from contextlib import closing
from pathlib import Path

import pytest

from tuner.core.study import Limits
from tuner.errors import StoreError, UsageError
from tuner.store import open_store
from tuner.store.migrate import backup, check


@pytest.fixture
def target(tmp_path):
    return tmp_path / "copies" / "copy.db"


@pytest.fixture(autouse=True)
def folder(target):
    target.parent.mkdir()
    return target.parent


def test_a_copy_holds_what_the_database_holds(sqlite_url, question, target):
    with open_store(sqlite_url) as store:
        study = store.ask(question, Limits(max_probes=3))
        size_bytes = backup(sqlite_url, target)
    assert size_bytes == target.stat().st_size > 0
    assert list(target.parent.iterdir()) == [target]
    assert check(f"sqlite:///{target}") == []
    with open_store(f"sqlite:///{target}") as copy:
        assert copy.study(study.id) == study


def test_a_copy_is_of_one_moment_while_others_write(sqlite_url, folder):
    """Two rows are always written together; no copy has one of them."""
    open_store(sqlite_url).close()
    path = sqlite_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE pairs (number INTEGER, filler BLOB)")
    stop, written = threading.Event(), threading.Semaphore(0)

    def write():
        with closing(sqlite3.connect(path, timeout=120)) as connection:
            number = 0
            while not stop.is_set():
                with connection:
                    for _ in range(2):
                        row = (number, os.urandom(20_000))
                        connection.execute("INSERT INTO pairs VALUES (?, ?)", row)
                number += 1
                written.release()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        counts = []
        for number in range(5):
            for _ in range(5):
                assert written.acquire(timeout=120)
            backup(sqlite_url, folder / f"{number}.db")
            with closing(sqlite3.connect(folder / f"{number}.db")) as copy:
                counts.append(copy.execute("SELECT count(*) FROM pairs").fetchone()[0])
    finally:
        stop.set()
        writer.join()
    assert all(count % 2 == 0 for count in counts)
    assert counts == sorted(counts)
    assert counts[-1] > counts[0] > 0


def test_a_file_that_appears_meanwhile_is_not_overwritten(sqlite_url, target, monkeypatch):
    open_store(sqlite_url).close()
    monkeypatch.setattr(
        "tuner.store.migrate.shutil.copymode", lambda *_: target.write_text("precious")
    )
    with pytest.raises(UsageError, match="is there already"):
        backup(sqlite_url, target)
    assert target.read_text() == "precious"
    assert list(target.parent.iterdir()) == [target]


def test_who_may_not_read_the_database_may_not_read_the_copy(sqlite_url, target):
    open_store(sqlite_url).close()
    Path(sqlite_url.removeprefix("sqlite:///")).chmod(0o640)
    backup(sqlite_url, target)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_damaged_database_leaves_no_copy(sqlite_url, target):
    open_store(sqlite_url).close()
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    contents = bytearray(path.read_bytes())
    contents[4096:8192] = b"\xff" * 4096
    path.write_bytes(contents)
    with pytest.raises(StoreError, match="could not be made"):
        backup(sqlite_url, target)
    assert list(target.parent.iterdir()) == []


def test_postgresql_has_its_own_tool(target):
    with pytest.raises(UsageError) as refused:
        backup("postgresql://user:secret@host/tuner", target)
    assert "pg_dump --format=custom --file=tuner.dump 'postgresql://user@host/tuner'" in str(
        refused.value
    )
    assert "secret" not in str(refused.value)
