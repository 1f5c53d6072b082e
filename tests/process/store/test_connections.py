"""Connections to PostgreSQL that were idle, and those that a restart has broken."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, make_url, select, text

from tests.unit.store.conftest import ELSEWHERE, claimed, enter
from tuner.core.measurement import Fidelity
from tuner.core.study import Limits, StudyState
from tuner.errors import AwayError, StoreError
from tuner.store import engine as engine_module
from tuner.store import migrate, open_store
from tuner.store.engine import Transactions
from tuner.store.queue import Queue
from tuner.store.tables import AttemptRow, DeviceRow, EventRow, ProbeRow, StudyRow

pytestmark = pytest.mark.xdist_group("postgresql")

BREAK = text(
    "SELECT count(pg_terminate_backend(pid, 120000)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def store(new_postgresql):
    """A store on a server that nobody else uses."""
    url = new_postgresql()
    migrate.upgrade(url)
    with open_store(url) as opened:
        yield opened


def broken(store):
    """Breaks the store's connections, as a server does that ends; how many they were."""
    admin = create_engine(store.transactions.engine.url)
    with admin.connect() as connection:
        count = connection.scalar(BREAK)
    admin.dispose()
    return count


def waiting(store):
    """The server's process that waits for a lock."""
    with store.transactions.read() as session:  # anew: a transaction sees one moment of them
        return session.scalar(
            text("SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        )


def test_those_that_broke_while_idle_are_made_anew(store, monkeypatch):
    with store.transactions.read() as one, store.transactions.read() as other:
        assert [session.scalar(text("SELECT 1")) for session in (one, other)] == [1, 1]
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 0.0)
    assert broken(store) == 2
    assert store.count_open() == 0
    with store.transactions.read() as one, store.transactions.read() as other:
        assert [session.scalar(text("SELECT 1")) for session in (one, other)] == [1, 1]


def test_one_that_breaks_between_two_statements_is_an_error_once(store, monkeypatch):
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 1000.0)
    assert store.count_open() == 0
    assert broken(store) == 1
    with pytest.raises(StoreError, match="cannot be used"):
        store.count_open()
    assert store.count_open() == 0


def test_who_stops_inside_a_transaction_does_not_hold_up_others(store, question):
    study = store.ask(question, Limits())
    with (
        open_store(store.url) as sleeper,
        pytest.raises(StoreError, match="idle-in-transaction timeout"),
        sleeper.transactions.write() as session,
    ):
        session.get(StudyRow, study.id, with_for_update=True)
        allowed = session.scalar(text("SHOW idle_in_transaction_session_timeout"))
        assert allowed == f"{engine_module.IDLE_TIMEOUT_S}s"
        of_session = "SELECT count(*) FROM pg_settings WHERE name ~ '^tcp' AND source = 'session'"
        assert session.scalar(text(of_session)) == 4, "a client's machine may be gone, too"
        session.execute(text("SET idle_in_transaction_session_timeout = '1s'"))  # from here on
        assert store.move(study.id, StudyState.CANCELLED)  # waits until the lock is taken away
    assert store.study(study.id).state is StudyState.CANCELLED


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_claim_that_waits_for_its_study_claims_what_is_left_or_nothing(
    store, question, worker, requests, is_broken
):
    study = store.ask(question, Limits())
    first, second = enter(store, study, requests(2))
    assert store.move(study.id, StudyState.RUNNING, worker=worker)
    with ThreadPoolExecutor(1) as pool, store.transactions.write() as session:
        session.get(StudyRow, study.id, with_for_update=True)
        taking = pool.submit(store.claim, study.id, worker, devices=("GPU-0",))
        while (pid := waiting(store)) is None:
            time.sleep(0.01)
        if is_broken:
            session.execute(text("SELECT pg_terminate_backend(:pid, 120000)"), {"pid": pid})
            with pytest.raises(AwayError, match=r"cannot be used: .*connection"):
                taking.result()
        session.delete(session.get(ProbeRow, first.id))
    claim = store.claim(study.id, worker, devices=("GPU-0",)) if is_broken else taking.result()
    assert claim.probe.id == second.id


@contextmanager
def narrow_way(url):
    """An address by which the server is reached, and a way to it: ``sent`` counts the bytes that
    it took from clients, and it passes on no more than ``most`` of them."""
    server = make_url(url)
    way = SimpleNamespace(sent=0, most=10**9)
    ends = []

    def pump(take, give, is_clients):
        with suppress(OSError):
            while data := take.recv(65536):
                passed = data[: max(0, way.most - way.sent)] if is_clients else data
                give.sendall(passed)
                way.sent += len(data) if is_clients else 0
        give.shutdown(socket.SHUT_RDWR)

    with (
        TemporaryDirectory() as folder,
        ExitStack() as stack,
        socket.socket(socket.AF_UNIX) as door,
        ThreadPoolExecutor(9) as pool,
    ):
        door.bind(f"{folder}/.s.PGSQL.5432")
        door.listen()

        def serve():
            with suppress(OSError):
                while True:
                    client, _ = door.accept()
                    there = stack.enter_context(socket.socket(socket.AF_UNIX))
                    there.connect(f"{server.query['host']}/.s.PGSQL.5432")
                    ends.extend([stack.enter_context(client), there])
                    pool.submit(pump, client, there, True)
                    pool.submit(pump, there, client, False)

        pool.submit(serve)

        def close():
            for end in ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

        way.close = close
        try:
            yield server.update_query_dict({"host": folder}).render_as_string(False), way
        finally:
            close()
            door.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 1.0])
def test_who_is_cut_off_inside_a_claim_does_not_hold_up_others(
    store, question, worker, requests, monkeypatch, part
):
    monkeypatch.setattr(engine_module, "PING_AFTER_S", 1000.0)
    study = store.ask(question, Limits())
    enter(store, study, requests(3))
    assert store.move(study.id, StudyState.RUNNING, worker=worker)
    with narrow_way(store.url) as (url, way), open_store(url) as cut, ThreadPoolExecutor(1) as pool:
        assert cut.claim(study.id, worker)  # connected
        before = way.sent
        assert cut.claim(study.id, worker)
        most = int(part * (way.sent - before)) - (part == 1)  # all but one
        way.most = way.sent + most
        taking = pool.submit(cut.claim, study.id, worker)
        try:
            while way.sent < way.most:
                time.sleep(0.01)
            for _ in range(20):  # the server has had time to lock it
                time.sleep(0.01)
                with store.transactions.write() as session:
                    session.get(StudyRow, study.id, with_for_update={"nowait": True})
        finally:
            way.close()
        with pytest.raises(AwayError):
            taking.result()
    assert store.claim(study.id, worker) is not None, "it was not claimed"


OF_OTHERS = ("studies.id", "probes.study_id", "events.study_id", "studies.created_at")
OF_OTHERS += ("studies.asked_at", "probes.created_at")


def left_by_claim(store):
    """The newest row of each table that a claim writes; moments are whole seconds from its
    beginning, as a clock that is read twice may show the next millisecond."""
    with store.transactions.read() as session:
        attempt = session.scalars(select(AttemptRow).order_by(AttemptRow.id.desc())).first()
        event = session.scalars(select(EventRow).order_by(EventRow.id.desc())).first()
        rows = [attempt, event, session.scalar(select(ProbeRow)), session.scalar(select(StudyRow))]
        rows += session.scalars(select(DeviceRow).order_by(DeviceRow.device))
        kept = [
            (str(column), getattr(row, column.key))
            for row in rows
            for column in row.__table__.columns
            if str(column) not in OF_OTHERS
        ]
        began = attempt.started_at
    return [
        (name, round((one - began).total_seconds()) if isinstance(one, datetime) else one)
        for name, one in kept
    ]


@pytest.mark.parametrize("fidelity", [None, Fidelity.MEASURED])
def test_a_claim_in_one_message_writes_what_the_statements_of_both_do(
    new_postgresql, question, worker, requests, monkeypatch, fidelity
):
    found = []
    for patched in ((Queue, "_claim", None), (Transactions, "takes_messages", False)):
        url = new_postgresql()
        migrate.upgrade(url)
        with open_store(url) as store, monkeypatch.context() as patch:
            study = store.ask(question, Limits())
            enter(store, study, requests(1))
            assert store.move(study.id, StudyState.RUNNING, worker=ELSEWHERE)
            assert store.give_back(claimed(store, study, ELSEWHERE, "GPU-2"), "Ctrl-C")
            patch.setattr(*patched)
            claim = store.claim(study.id, worker, fidelity, ("GPU-1", "GPU-0"))
            found.append((replace(claim, study_id=""), left_by_claim(store)))
    assert found[0] == found[1]
    assert ("attempts.number", 2) in found[0][1]


def test_who_asks_in_vain_sends_one_message(store, question, worker, requests, monkeypatch):
    study = store.ask(question, Limits())
    monkeypatch.setattr(Queue, "_claim", None)
    assert store.claim(study.id, worker) is None
    enter(store, study, requests(1))
    assert store.claim(study.id, worker, Fidelity.PREDICTED) is None
    with pytest.raises(TypeError):
        store.claim(study.id, worker)
