"""Claims that meet others, that are sent twice, and those of one statement.

Every test runs on each kind of database, but those of what only a server can do.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import insert, select, text

from tuner.errors import StoreError
from tuner.measurement import Fidelity, Measurement, Outcome
from tuner.store import (
    Claim,
    Event,
    Store,
    WorkerIdentity,
    claims,
    claims_at_once,
    open_store,
    queue,
)
from tuner.store.records import Wanted
from tuner.store.tables import AttemptRow, DeviceRow, StudyRow
from tuner.study import ProbeRequest, ProbeState, Question, Study, StudyState, Terms

Requests = Callable[[int], list[ProbeRequest]]

KEY = "0123456789abcdef0123456789abcdef"
PATIENCE_S = 120.0
ON_A_SERVER = pytest.mark.parametrize(
    "url", [pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))], indirect=True
)
"""For what only PostgreSQL can do."""


def enter(store: Store, study: Study, requests: list[ProbeRequest]) -> list[int]:
    """Ids of new probes."""
    entered = []
    for request in requests:
        probe = store.enter_probe(study.id, store.study(study.id).revision, request, 1000)
        assert probe is not None
        entered.append(probe.id)
    return entered


def attempts(store: Store) -> list[dict[str, Any]]:
    """Every attempt that was ever made, without the time."""
    times = {"started_at", "lease_until", "ended_at"}
    with store.transactions.read() as session:
        rows = session.scalars(select(AttemptRow).order_by(AttemptRow.id)).all()
        columns = [c.key for c in AttemptRow.__table__.columns if c.key not in times]
        return [{name: getattr(row, name) for name in columns} for row in rows]


def queued(store: Store, study: Study) -> list[int]:
    """Ids of probes that wait."""
    return [one.id for one in store.study(study.id).probes if one.state is ProbeState.QUEUED]


@pytest.fixture
def running(store: Store, study: Study, requests: Requests, worker: WorkerIdentity) -> Study:
    """A study that runs, with three queued probes."""
    assert store.move(study.id, StudyState.RUNNING, worker=worker)
    enter(store, study, requests(3))
    return study


@pytest.fixture(params=["running", "queued"])
def either(request: pytest.FixtureRequest, store: Store, running: Study) -> Study:
    """A study with queued probes that runs, or is queued: another kind of claim on PostgreSQL."""
    if request.param == "queued":
        assert store.move(running.id, StudyState.QUEUED)
    return running


# Sent twice


@contextmanager
def answers_lost(store: Store) -> Iterator[None]:
    """The next commit is made, and its answer does not come: the connection breaks."""
    dialect = store.transactions.engine.dialect
    commit, execute = dialect.do_commit, dialect.do_execute
    lost: list[bool] = []

    def lose(connection: Any) -> None:
        if not lost:
            lost.append(True)
            getattr(connection, "dbapi_connection", connection).close()
            raise dialect.loaded_dbapi.OperationalError("the connection is lost")

    def do_commit(connection: Any) -> None:
        commit(connection)
        lose(connection)

    def do_execute(cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        execute(cursor, statement, parameters, context)
        if statement.startswith("WITH study") and cursor.rowcount:  # committed by the server
            lose(cursor.connection)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialect, "do_commit", do_commit)
        patch.setattr(dialect, "do_execute", do_execute)
        yield
    assert lost


@pytest.mark.parametrize("devices", [(), ("GPU-0", "GPU-1")])
def test_a_claim_whose_answer_is_lost_is_had_by_claiming_again(
    store: Store, either: Study, worker: WorkerIdentity, devices: tuple[str, ...]
) -> None:
    first, *rest = queued(store, either)
    with answers_lost(store), pytest.raises(StoreError):
        store.claim(either.id, worker, devices=devices, key=KEY)
    told = store.events(either.id)
    claim = store.claim(either.id, worker, devices=devices, key=KEY)
    assert claim is not None
    assert (claim.probe.id, claim.probe.state) == (first, ProbeState.RUNNING)
    assert claim == store.claim(either.id, worker, devices=devices, key=KEY)
    assert [one["id"] for one in attempts(store)] == [claim.attempt_id]
    assert (queued(store, either), store.events(either.id)) == (rest, told)
    assert store.record(claim, Measurement(outcome=Outcome.OK))


def test_the_last_probes_claim_can_be_sent_again_too(
    store: Store, study: Study, requests: Requests, worker: WorkerIdentity
) -> None:
    enter(store, study, requests(1))
    claim = store.claim(study.id, worker, key=KEY)
    assert claim is not None
    assert store.claim(study.id, worker, key=KEY) == claim
    assert store.claim(study.id, worker) is None


def test_those_who_claim_at_once_by_one_key_have_one_probe(
    url: str, store: Store, either: Study, worker: WorkerIdentity
) -> None:
    barrier = threading.Barrier(4)

    def take(_: int) -> Claim | None:
        with open_store(url) as mine:
            barrier.wait(PATIENCE_S)
            return mine.claim(either.id, worker, key=KEY)

    with ThreadPoolExecutor(4) as pool:
        found = {claim and claim.attempt_id for claim in pool.map(take, range(4))}
    assert found == {one["id"] for one in attempts(store)}
    assert len(found) == 1


@pytest.mark.parametrize("how", ["give_back", "record"])
def test_a_claim_that_has_ended_is_not_had_again(
    store: Store, either: Study, worker: WorkerIdentity, how: str
) -> None:
    claim = store.claim(either.id, worker, key=KEY)
    assert claim is not None
    if how == "give_back":
        assert store.give_back(claim, "Ctrl-C")
    else:
        assert store.record(claim, Measurement(outcome=Outcome.OOM))
    assert store.claim(either.id, worker, key=KEY) is None
    assert store.claim(either.id, worker) is not None


def test_a_record_whose_answer_is_lost_is_made_once(
    store: Store, claim: Claim, found: Measurement
) -> None:
    strange = replace(found, losses=(10.5, float("nan")))
    with answers_lost(store), pytest.raises(StoreError):
        store.record(claim, strange)
    before = (attempts(store), store.events(claim.study_id), store.study(claim.study_id).revision)
    assert store.record(claim, strange)
    assert not store.record(claim, found), "it found something else"
    assert not store.give_back(claim, "it is done")
    after = (attempts(store), store.events(claim.study_id), store.study(claim.study_id).revision)
    assert after == before


def test_an_accident_whose_record_is_sent_again_is_tried_once_more(
    store: Store, claim: Claim, worker: WorkerIdentity
) -> None:
    crashed = Measurement(outcome=Outcome.CRASHED, detail="signal 11")
    with answers_lost(store), pytest.raises(StoreError):
        store.record(claim, crashed)
    assert store.record(claim, crashed)
    assert not store.record(claim, replace(crashed, detail="signal 9"))
    second = store.claim(claim.study_id, worker)
    assert second is not None
    assert store.record(claim, crashed), "also when another attempt runs"
    assert [one["state"] for one in attempts(store)] == ["done", "running"]


def test_what_is_given_back_twice_is_given_back(store: Store, claim: Claim) -> None:
    with answers_lost(store), pytest.raises(StoreError):
        store.give_back(claim, "Ctrl-C")
    told = store.events(claim.study_id)
    assert store.give_back(claim, "Ctrl-C")
    assert store.events(claim.study_id) == told
    assert not store.record(claim, Measurement(outcome=Outcome.OK))


# A study that ends meanwhile


def test_a_study_that_ends_while_it_is_claimed_has_nothing_queued(
    url: str, store: Store, question: Question, requests: Requests, worker: WorkerIdentity
) -> None:
    for number in range(8):
        study = store.ask(replace(question, knobs={"tp_size": (1 + number,)}), Terms())
        if number % 2:
            assert store.move(study.id, StudyState.RUNNING, worker=worker)
        enter(store, study, requests(6))
        barrier = threading.Barrier(4)

        def take(study: Study = study, barrier: threading.Barrier = barrier) -> int:
            with open_store(url) as mine:
                barrier.wait(PATIENCE_S)
                return sum(mine.claim(study.id, worker) is not None for _ in range(4))

        with ThreadPoolExecutor(3) as pool:
            taking = [pool.submit(take) for _ in range(3)]
            barrier.wait(PATIENCE_S)
            assert store.move(study.id, StudyState.CANCELLED, "enough")
            taken = sum(one.result() for one in taking)
        after = store.study(study.id)
        assert [one.state for one in after.probes] == [ProbeState.RUNNING] * taken


@ON_A_SERVER
@pytest.mark.parametrize("at_once", [True, False])
def test_a_claim_in_the_middle_of_which_its_study_ends_leaves_nothing_queued(
    store: Store,
    running: Study,
    worker: WorkerIdentity,
    monkeypatch: pytest.MonkeyPatch,
    at_once: bool,
) -> None:
    """It waits for a device, which another has written and then takes back."""
    if not at_once:
        monkeypatch.setattr(claims_at_once, "claim", lambda *_: None)
    first = store.claim(running.id, worker)
    assert first is not None
    with ThreadPoolExecutor(2) as pool:
        with store.transactions.engine.connect() as connection, connection.begin() as undone:
            device = {"device": "GPU-0", "attempt_id": first.attempt_id}
            connection.execute(insert(DeviceRow), device)
            claiming = pool.submit(store.claim, running.id, worker, devices=("GPU-0",))
            waits(store, 1)
            ending = pool.submit(store.move, running.id, StudyState.CANCELLED, "enough")
            waits(store, 2)
            undone.rollback()
        second = claiming.result(PATIENCE_S)
        assert ending.result(PATIENCE_S)
    assert second is not None
    assert not store.beat(second), "the study is cancelled"
    assert store.give_back(second, "it is cancelled")
    states = {one.id: one.state for one in store.study(running.id).probes}
    assert states == {
        first.probe.id: ProbeState.RUNNING, second.probe.id: ProbeState.DONE
    }, "the third was withdrawn"  # fmt: skip


def waits(store: Store, number: int) -> None:
    """Wait until so many wait for locks of the server."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with store.transactions.read() as session:
            if session.scalar(query) == number:
                return
        time.sleep(0.01)
    raise AssertionError("nobody waits")


# In one statement, where there is a server


def left_by(store: Store, study: Study, claim: Claim | None) -> tuple[Any, ...]:
    """What a claim has written, without the time, ids and its key."""
    assert claim is not None
    [attempt] = [one for one in attempts(store) if one["id"] == claim.attempt_id]
    told: list[Event] = [one for one in store.events(study.id) if "attempt" in one.data]
    with store.transactions.read() as session:
        row = session.get_one(StudyRow, study.id)
        devices = select(DeviceRow.device).where(DeviceRow.attempt_id == claim.attempt_id)
        at_it, held = (row.worker, row.state), sorted(session.scalars(devices))
        moments = session.get_one(AttemptRow, claim.attempt_id)
        lease_s = (moments.lease_until - moments.started_at).total_seconds()
        assert row.worker_seen_at == moments.started_at
    return (
        {**attempt, "id": 0, "probe_id": 0, "claim_key": len(attempt["claim_key"])},
        {**told[-1].data, "probe": claim.probe.id - attempt["probe_id"], "repetition": 0},
        list(told[-1].data), at_it, held, lease_s, replace(claim.probe, id=0).request.fidelity,
    )  # fmt: skip


@ON_A_SERVER
@pytest.mark.parametrize("name", ["w1", 'é "quoted" \\ \udc80 \u2028 {}%s:x'])
@pytest.mark.parametrize("fidelity", [None, Fidelity.MEASURED])
@pytest.mark.parametrize("devices", [(), ("GPU-1", "GPU-0")])
def test_one_statement_writes_what_several_do(
    store: Store,
    running: Study,
    worker: WorkerIdentity,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    fidelity: Fidelity | None,
    devices: tuple[str, ...],
) -> None:
    named = replace(worker, name=name)
    with monkeypatch.context() as patch:
        patch.setattr(claims, "_claim", None)
        quick = store.claim(running.id, named, fidelity, devices)
    seen = left_by(store, running, quick)
    assert quick is not None
    assert quick.worker == named
    assert store.give_back(quick, "once more")
    with store.transactions.write() as session:
        session.execute(text("DELETE FROM attempts"))
    monkeypatch.setattr(claims_at_once, "claim", lambda *_: None)
    slow = store.claim(running.id, named, fidelity, devices)
    assert slow is not None
    assert slow.probe == quick.probe
    assert left_by(store, running, slow) == seen


@ON_A_SERVER
def test_the_usual_claim_is_one_statement(
    store: Store,
    running: Study,
    worker: WorkerIdentity,
    count_statements: Callable[[], list[str]],
) -> None:
    statements = count_statements()
    assert store.claim(running.id, worker, Fidelity.MEASURED, ("GPU-0",)) is not None
    assert len(statements) == 1
    assert statements[0].startswith("WITH study")


@ON_A_SERVER
def test_what_is_not_usual_is_left_to_a_transaction(
    store: Store, running: Study, worker: WorkerIdentity
) -> None:
    def at_once(devices: tuple[str, ...] = (), fidelity: Fidelity | None = None) -> object:
        wanted = Wanted(
            study_id=running.id, worker=worker, fidelity=fidelity, devices=devices,
            lease_s=60.0, key=KEY,
        )  # fmt: skip
        with store.transactions.alone() as connection:
            return claims_at_once.claim(connection, wanted)

    assert at_once(fidelity=Fidelity.EMULATED) is None
    lost = store.claim(running.id, worker, devices=("GPU-0",))
    assert lost is not None
    assert at_once(("GPU-1", "GPU-0")) is None
    assert store.record(lost, Measurement(outcome=Outcome.DEVICE_LOST))
    for _ in range(2):
        other = store.claim(running.id, worker)
        assert other is not None
        assert store.record(other, Measurement(outcome=Outcome.OOM))
    assert queued(store, running) == [lost.probe.id]
    assert at_once() is None
    assert store.move(running.id, StudyState.DONE)
    assert at_once() is None


@ON_A_SERVER
def test_a_probe_that_is_tried_while_a_claim_waits_has_the_next_number(
    store: Store, study: Study, requests: Requests, worker: WorkerIdentity
) -> None:
    """The statement counts what there was when it was sent."""
    assert store.move(study.id, StudyState.RUNNING, worker=worker)
    [probe_id] = enter(store, study, requests(1))
    wanted = Wanted(
        study_id=study.id, worker=worker, fidelity=None, devices=(), lease_s=60.0, key=KEY
    )
    with ThreadPoolExecutor(1) as pool:
        with store.transactions.write() as session:
            first = claims._claim(session, wanted)
            assert first is not None
            assert queue.give_back(session, first, "no")
            session.flush()
            claiming = pool.submit(store.claim, study.id, worker)
            waits(store, 1)
        second = claiming.result(PATIENCE_S)
    assert second is not None
    assert second.probe.id == probe_id
    assert [(one["number"], one["state"]) for one in attempts(store)] == [
        (1, "given_back"), (2, "running"),
    ]  # fmt: skip
