"""Addresses, and what a user is told when a database cannot be used."""

import builtins
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine

from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Limits, Question, StudyState
from tuner.errors import AwayError, StoreError, TunerError, UsageError
from tuner.store import Store, WorkerIdentity, default_url, open_store
from tuner.store import engine as engine_module
from tuner.store.engine import parse_url, shown_url
from tuner.store.tables import StudyRow


def test_the_environment_names_another(monkeypatch: pytest.MonkeyPatch, sqlite_url: str) -> None:
    monkeypatch.setenv("TUNER_DB", sqlite_url)
    assert default_url() == sqlite_url
    with open_store() as store:
        assert store.url == sqlite_url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tuner.db",
        "/var/tuner.db",
        "http://host/name",
        "postgres://user@host/name",
        "postgresql+asyncpg://host/name",
        "postgresql://host:port/name",
        "mysql://host/name",
        "sqlite+aiosqlite:///tuner.db",
        "sqlite://",
        "sqlite:///",
        "sqlite:///:memory:",
        "sqlite:///file:tuner.db?uri=true",
        "sqlite:///tuner.db?mode=ro",
        "sqlite://folder/tuner.db",
        "sqlite:///nul\0.db",
        "sqlite:///~nobody-of-that-name/tuner.db",
        f"sqlite:///{'x' * 300}.db",
    ],
)
def test_other_addresses_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^db: got ") as caught:
        parse_url(text)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["mysql://user:secret@host/name", "postgresql://user:secret@host:port/name"]
)
def test_a_password_is_not_shown(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_url(text)
    assert "secret" not in str(caught.value)
    assert shown_url(parse_url("postgresql://user:secret@host/name")).count("***") == 1


def refused(url: str, kind: type[TunerError], match: str, *, create: bool = True) -> None:
    with pytest.raises(kind, match=match) as caught:
        open_store(url, create=create)
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, UsageError):
        assert caught.value.field == "db"


def test_a_file_that_is_absent_is_refused_when_it_must_not_be_made(sqlite_url: str) -> None:
    refused(sqlite_url, UsageError, "there is no such database yet", create=False)
    assert not Path(parse_url(sqlite_url).database or "").parent.exists()


def test_a_library_that_is_too_old_is_refused(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_store(sqlite_url).close()
    monkeypatch.setattr(sqlite3, "sqlite_version", "3.34.1")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    refused(sqlite_url, StoreError, r"SQLite 3\.35 is needed; this is 3\.34\.1")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database\n" * 100)
    refused(f"sqlite:///{path}", UsageError, "is not a database")
    assert path.read_text() == "not a database\n" * 100


def test_a_damaged_file_is_an_error(tmp_path: Path, question: Question) -> None:
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


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
    connection.close()
    refused(f"sqlite:///{path}", UsageError, "is a database of another program")


def read_only(dbapi_connection: sqlite3.Connection, record: object) -> None:
    dbapi_connection.execute("PRAGMA query_only = ON")  # what follows from a file's permissions


def test_a_file_that_cannot_be_written_is_refused(sqlite_url: str, question: Question) -> None:
    open_store(sqlite_url).close()
    event.listen(Engine, "connect", read_only)
    try:
        with open_store(sqlite_url) as store:
            assert store.studies() == [], "but it can be read"
            with pytest.raises(UsageError, match=r"^db: got .*cannot be written: attempt to write"):
                store.ask(question, Limits())
    finally:
        event.remove(Engine, "connect", read_only)


def test_a_writer_that_does_not_end_is_an_error(
    sqlite_url: str, question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.store.engine.BUSY_TIMEOUT_S", 0.1)
    with open_store(sqlite_url) as store:
        other = sqlite3.connect(parse_url(sqlite_url).database or "", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AwayError, match="another process has held its lock"):
            store.ask(question, Limits())
        other.execute("ROLLBACK")
        other.close()
        assert store.ask(question, Limits()).probes == ()


def test_postgresql_that_is_not_there_is_an_error() -> None:
    pytest.importorskip("psycopg")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"postgresql://me:secret@127.0.0.1:{unused.getsockname()[1]}/tuner"
        with pytest.raises(AwayError, match=r"cannot be used: .*connection") as caught:
            open_store(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_postgresql_without_psycopg_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    really = builtins.__import__

    def without(name: str, *args: object, **kwargs: object) -> object:
        if name.partition(".")[0] == "psycopg":
            raise ModuleNotFoundError("No module named 'psycopg'")
        return really(name, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StoreError, match=r"pip install 'tuner\[postgres\]'"):
        open_store("postgresql://host/name")


def test_sqlite_is_set_up_to_lose_nothing(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "DURABLY", "FULL")
    with open_store(sqlite_url) as store, store.transactions.engine.connect() as connection:

        def pragma(name: str) -> object:
            return connection.exec_driver_sql(f"PRAGMA {name}").scalar()

        assert pragma("journal_mode") == "wal"
        assert pragma("synchronous") == 2, "FULL"
        assert pragma("foreign_keys") == 1
        assert pragma("busy_timeout") == 30_000


def test_what_a_power_cut_ends_anyway_does_not_wait_for_the_disk(
    sqlite_url: str,
    question: Question,
    requests: object,
    worker: WorkerIdentity,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_module, "DURABLY", "FULL")
    waits: dict[str, list[str]] = {}

    def note(conn: Connection, *_: object) -> None:
        how = conn.exec_driver_sql("PRAGMA synchronous").scalar()
        waits.setdefault(doing, []).append("waits" if how == 2 else "goes on")

    with open_store(sqlite_url) as store:
        event.listen(Engine, "commit", note)
        try:
            doing = "ask"
            study = store.ask(question, Limits())
            doing = "enter"
            [request] = requests(1)  # type: ignore[operator]
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


def test_a_file_that_is_away_is_missed_and_not_made_again(
    sqlite_url: str, question: Question
) -> None:
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


def test_what_is_written_goes_into_the_file_that_the_path_names(
    sqlite_url: str, tmp_path: Path, question: Question
) -> None:
    """Also when a copy was put in its place meanwhile."""
    path = Path(parse_url(sqlite_url).database or "")
    with open_store(sqlite_url) as store:
        copied = tmp_path / "copy.db"
        with store.transactions.engine.connect() as connection:
            connection.connection.driver_connection.execute(  # type: ignore[union-attr]
                f"VACUUM INTO '{copied}'"
            )
        copied.replace(path)
        for name in ("-wal", "-shm"):
            path.with_name(path.name + name).unlink(missing_ok=True)
        study = store.ask(question, Limits())
    with open_store(sqlite_url, create=False) as other:
        assert other.study(study.id) == study


def test_who_stops_inside_a_transaction_does_not_hold_up_others(
    url: str, question: Question
) -> None:
    if "postgresql" not in url:
        pytest.skip("a file's lock ends with the process that holds it, and nobody can take it")
    with open_store(url) as store:
        study = store.ask(question, Limits())
        with (
            open_store(url) as sleeper,
            pytest.raises(StoreError, match="idle-in-transaction timeout"),
            sleeper.transactions.write() as session,
        ):
            session.get(StudyRow, study.id, with_for_update=True)
            allowed = session.scalar(text("SHOW idle_in_transaction_session_timeout"))
            assert allowed == f"{engine_module.IDLE_TIMEOUT_S}s"
            session.execute(text("SET idle_in_transaction_session_timeout = '1s'"))  # from here on
            assert store.move(study.id, StudyState.CANCELLED)  # waits until the lock is taken away
        assert store.study(study.id).state is StudyState.CANCELLED


KILLED_WHILE_WRITING = """
import os, signal, sys
from sqlalchemy import text
from tuner.store import open_store
store = open_store(sys.argv[1])
with store.transactions.writer.begin() as connection:
    connection.execute(text("UPDATE studies SET reason = 'half', revision = 1000"))
    connection.execute(text("DELETE FROM events"))
    os.kill(os.getpid(), signal.SIGKILL)
"""


KILLED_AFTER_WRITING = """
import os, signal, sys
from tuner.core.measurement import Measurement, Outcome
from tuner.store import WorkerIdentity, open_store
store = open_store(sys.argv[1])
claim = store.claim(sys.argv[2], WorkerIdentity.of_this_process())
assert store.record(claim, Measurement(outcome=Outcome.OOM))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_recorded_survives_a_kill(
    store: Store, question: Question, requests: object
) -> None:
    study = store.ask(question, Limits())
    [request] = requests(1)  # type: ignore[operator]
    assert store.enter_probe(study.id, study.revision, request, None)
    arguments = [sys.executable, "-c", KILLED_AFTER_WRITING, store.url, study.id]
    assert subprocess.run(arguments, check=False).returncode == -9
    store.reap()
    after = store.study(study.id)
    assert after.probes[0].measurement is not None
    assert after.state.value == "queued", "its worker is gone"
