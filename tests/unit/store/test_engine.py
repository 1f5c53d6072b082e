"""Addresses, and what a user is told when a database cannot be used."""

import socket
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Limits
from tuner.errors import AwayError, StoreError, UsageError
from tuner.store import default_url, open_store
from tuner.store import engine as engine_module
from tuner.store.engine import parse_url, shown_url


def test_the_environment_names_another(monkeypatch, sqlite_url):
    monkeypatch.setenv("TUNER_DB", sqlite_url)
    assert default_url() == sqlite_url
    with open_store() as store:
        assert store.url == sqlite_url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tuner.db",
        "postgres://user@host/name",
        "postgresql://host:port/name",
        "mysql://host/name",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///tuner.db?mode=ro",
        "sqlite://folder/tuner.db",
        "sqlite:///nul\0.db",
        "sqlite:///~nobody-of-that-name/tuner.db",
        f"sqlite:///{'x' * 300}.db",
    ],
)
def test_other_addresses_are_refused(text):
    with pytest.raises(UsageError, match=r"^db: got ") as caught:
        parse_url(text)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["mysql://user:secret@host/name", "postgresql://user:secret@host:port/name"]
)
def test_a_password_is_not_shown(text):
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)
    assert shown_url(parse_url("postgresql://user:secret@host/name")).count("***") == 1


def refused(url, kind, match, *, create=True):
    with pytest.raises(kind, match=match) as caught:
        open_store(url, create=create)
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, UsageError):
        assert caught.value.field == "db"


def test_a_library_that_is_too_old_is_refused(sqlite_url, monkeypatch):
    open_store(sqlite_url).close()
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    refused(sqlite_url, StoreError, r"SQLite 3\.35 is needed; this is 3\.34\.1")


def test_a_file_that_is_no_database_is_refused(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 100)
    refused(f"sqlite:///{path}", UsageError, "is not a database")
    assert path.read_text() == "not a database\n" * 100


def test_a_damaged_file_is_an_error(tmp_path, question):
    path = tmp_path / "tuner.db"
    with open_store(f"sqlite:///{path}") as store:
        store.ask(question, Limits())
    size = path.stat().st_size
    page = int.from_bytes(path.read_bytes()[16:18], "big")
    with path.open("r+b") as file:
        file.seek(page)
        file.write(b"\xff" * (size - page))
    with (
        pytest.raises(StoreError, match="cannot be used: the file is damaged") as caught,
        open_store(f"sqlite:///{path}") as store,
    ):
        store.studies()
    assert not isinstance(caught.value, AwayError)


def test_another_programs_database_is_refused(tmp_path):
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
    connection.close()
    refused(f"sqlite:///{path}", UsageError, "is a database of another program")


def read_only(dbapi_connection, record):
    dbapi_connection.execute("PRAGMA query_only = ON")  # what follows from a file's permissions


def test_a_file_that_cannot_be_written_is_refused(sqlite_url, question):
    open_store(sqlite_url).close()
    event.listen(Engine, "connect", read_only)
    try:
        with open_store(sqlite_url) as store:
            assert store.studies() == [], "but it can be read"
            with pytest.raises(UsageError, match=r"^db: got .*cannot be written: attempt to write"):
                store.ask(question, Limits())
    finally:
        event.remove(Engine, "connect", read_only)


def test_a_writer_that_does_not_end_is_an_error(sqlite_url, question):
    with open_store(sqlite_url, patience_s=0.1) as store:
        other = sqlite3.connect(parse_url(sqlite_url).database or "", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AwayError, match="another process has held its lock"):
            store.ask(question, Limits())
        other.execute("ROLLBACK")
        other.close()
        assert store.ask(question, Limits()).probes == ()


def test_postgresql_that_is_not_there_is_an_error():
    pytest.importorskip("psycopg")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://me:secret@127.0.0.1:{unused.getsockname()[1]}/tuner"
        with pytest.raises(AwayError, match=r"cannot be used: .*connection") as caught:
            open_store(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sqlite_is_set_up_to_lose_nothing(sqlite_url, monkeypatch):
    monkeypatch.setattr(engine_module, "DURABLY", "FULL")
    with open_store(sqlite_url) as store, store.transactions.engine.connect() as connection:

        def pragma(name):
            return connection.exec_driver_sql(f"PRAGMA {name}").scalar()

        assert pragma("journal_mode") == "wal"
        assert pragma("synchronous") == 2, "FULL"
        assert pragma("foreign_keys") == 1
        assert pragma("busy_timeout") == 30_000


def test_what_a_power_cut_ends_anyway_does_not_wait_for_the_disk(
    sqlite_url, question, requests, worker, monkeypatch
):
    monkeypatch.setattr(engine_module, "DURABLY", "FULL")
    waits = {}

    def note(conn, *_):
        how = conn.exec_driver_sql("PRAGMA synchronous").scalar()
        waits.setdefault(doing, []).append("waits" if how == 2 else "goes on")

    with open_store(sqlite_url) as store:
        event.listen(Engine, "commit", note)
        try:
            doing = "ask"
            study = store.ask(question, Limits())
            doing = "enter"
            [request] = requests(1)
            store.enter_probe(study.id, study.revision, request, None)
            doing = "claim"
            claim = store.claim(study.id, worker)
            assert claim is not None
            doing = "beat"
            store.beat(claim)
            doing = "record"
            store.record(claim, Measurement(outcome=Outcome.OOM))
        finally:
            event.remove(Engine, "commit", note)
    goes_on = {doing for doing, hows in waits.items() if hows == ["goes on"]}
    assert goes_on == {"claim", "beat"}
    assert {doing for doing, hows in waits.items() if hows == ["waits"]} == set(waits) - goes_on


def test_a_file_that_is_away_is_missed_and_not_made_again(sqlite_url, question):
    path = Path(parse_url(sqlite_url).database or "")
    with open_store(sqlite_url) as store:
        study = store.ask(question, Limits())
        moved = path.parent.rename(path.parent.with_name("moved"))
        path.parent.mkdir()
        for call in (store.studies, lambda: store.ask(question, Limits())):
            with pytest.raises(StoreError, match="there is no such file"):
                call()
        assert not list(path.parent.iterdir())
        path.parent.rmdir()
        moved.rename(path.parent)
        assert store.study(study.id) == study
        assert store.ask(question, Limits(max_probes=1)).revision == study.revision + 1


def test_a_file_that_is_made_is_nobody_elses_to_read(sqlite_url, question):
    with open_store(sqlite_url) as store:
        store.ask(question, Limits())
        folder = Path(str(parse_url(sqlite_url).database)).parent
        assert {oct(one.stat().st_mode & 0o777) for one in folder.iterdir()} == {"0o600"}
