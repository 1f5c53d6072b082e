"""Devices that claims hold: every test runs on each kind of database."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import event, select
from sqlalchemy.engine import Engine

from tests.unit.store.conftest import claimed, enter
from tuner.core import lease
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Limits, ProbeState, StudyState
from tuner.store import WorkerIdentity, open_store
from tuner.store.tables import AttemptRow, DeviceRow, StudyRow

GPUS = ("GPU-0", "GPU-1", "GPU-2", "GPU-3")
LOST = Measurement(outcome=Outcome.DEVICE_LOST, detail="GPU-0 fell off the bus")


@pytest.fixture
def queued(store, study, requests):
    """Ids of four probes that wait."""
    return [probe.id for probe in enter(store, study, requests(4))]


def held(store):
    with store.transactions.read() as session:
        return {row.device: row.attempt_id for row in session.scalars(select(DeviceRow))}


@pytest.mark.usefixtures("queued")
def test_a_device_is_held_by_one_claim(store, study, worker):
    both = claimed(store, study, worker, "GPU-1", "GPU-0")
    assert held(store) == {"GPU-0": both.attempt_id, "GPU-1": both.attempt_id}
    before = (store.study(study.id), store.events(study.id))
    for devices in (("GPU-1",), ("GPU-1", "GPU-2"), ("GPU-2", "GPU-0")):
        assert store.claim(study.id, worker, devices=devices) is None
    assert (store.study(study.id), store.events(study.id)) == before
    assert claimed(store, study, worker, "GPU-2").probe.id == both.probe.id + 1
    assert len(held(store)) == 3


@pytest.mark.usefixtures("queued")
@pytest.mark.parametrize("end", ["record", "again", "give_back", "lose", "cascade"])
def test_a_device_is_free_when_the_attempt_ends(store, study, worker, dead, end):
    claim = claimed(store, study, dead if end == "lose" else worker, *GPUS)
    assert sorted(held(store)) == list(GPUS)
    match end:
        case "record":
            store.record(claim, Measurement(outcome=Outcome.OOM))
        case "again":
            store.record(claim, Measurement(outcome=Outcome.CRASHED))
        case "give_back":
            store.give_back(claim, "Ctrl-C")
        case "lose":
            assert store.reap() == 1
        case "cascade":
            with store.transactions.write() as session:
                session.delete(session.get_one(StudyRow, study.id))
    assert held(store) == {}
    if end != "cascade":
        claimed(store, study, worker, *GPUS)
        with store.transactions.read() as session:
            assert session.get_one(AttemptRow, claim.attempt_id).devices == list(GPUS)


@pytest.mark.usefixtures("queued")
def test_of_those_who_claim_a_device_at_once_one_has_it(url, store, study, question, requests):
    """Each looks before any has written, so that only the key is left to guard."""
    other = store.ask(replace(question, knobs={"tp_size": (1,)}), Limits())
    enter(store, other, requests(4))
    barrier = threading.Barrier(2, timeout=120)
    together = "postgresql" in url  # SQLite lets one writer in at a time

    def wait(conn, cursor, statement, *rest):
        if together and statement.startswith("INSERT INTO devices"):
            barrier.wait()

    def take(study_id, worker):
        with open_store(url) as mine:
            claim = mine.claim(study_id, worker, devices=("GPU-1", "GPU-0"))
        return 0 if claim is None else claim.attempt_id

    me = WorkerIdentity.of_this_process()
    event.listen(Engine, "before_cursor_execute", wait)
    try:
        with ThreadPoolExecutor(2) as pool:
            got = sorted(pool.map(lambda one: take(one, me), (study.id, other.id)))
    finally:
        event.remove(Engine, "before_cursor_execute", wait)
    assert got[0] == 0
    assert got[1] > 0
    assert held(store) == {"GPU-0": got[1], "GPU-1": got[1]}
    with store.transactions.read() as session:
        assert session.scalars(select(AttemptRow.id)).all() == [got[1]], "the other left nothing"
    states = {store.study(one.id).state for one in (study, other)}
    assert states == {StudyState.RUNNING, StudyState.QUEUED}


def test_what_lost_a_device_is_tried_again_on_others(store, study, worker, queued):
    assert store.record(claimed(store, study, worker, "GPU-0", "GPU-1"), LOST)
    taken = [claimed(store, study, worker, f"GPU-{n}").probe.id for n in (2, 3, 4)]
    assert taken == queued[1:], "those that lost none go first"
    assert store.claim(study.id, worker, devices=("GPU-1",)) is None
    assert claimed(store, study, worker, "GPU-5").probe.id == queued[0]
    assert store.study(study.id).probes[0].state is ProbeState.RUNNING


def test_what_lost_a_node_is_tried_again_on_the_others(store, study, worker, requests):
    probe_id = enter(store, study, requests(1))[0].id
    lost = replace(LOST, lost_devices=("GPU-1", "GPU-0", "GPU-9"))
    claim = claimed(store, study, worker, *GPUS)
    assert store.record(claim, lost)
    assert store.record(claim, lost), "sent again"
    assert held(store) == {}
    assert store.claim(study.id, worker, devices=("GPU-1", "GPU-2")) is None
    again = claimed(store, study, worker, "GPU-2", "GPU-3", "GPU-9")
    assert again.probe.id == probe_id, "it never had the last of these"
    assert held(store).keys() == {"GPU-2", "GPU-3", "GPU-9"}


def test_what_lost_devices_that_it_did_not_hold_has_lost_all(store, study, worker, requests):
    enter(store, study, requests(1))
    lost = replace(LOST, lost_devices=("GPU-9",))
    assert store.record(claimed(store, study, worker, "GPU-0", "GPU-1"), lost)
    assert store.claim(study.id, worker, devices=("GPU-1",)) is None


def test_what_lost_a_device_may_be_tried_where_none_are_named(store, study, worker, requests):
    probe_id = enter(store, study, requests(1))[0].id
    assert store.record(claimed(store, study, worker, "GPU-0"), LOST)
    assert store.claim(study.id, worker, Fidelity.EMULATED) is None
    assert store.claim(study.id, worker, Fidelity.MEASURED, ("GPU-0",)) is None
    claim = store.claim(study.id, worker, Fidelity.MEASURED)
    assert claim.probe.id == probe_id


def test_what_lost_two_devices_is_closed(store, study, worker, requests):
    enter(store, study, requests(1))
    for gpu in GPUS[:2]:
        assert store.record(claimed(store, study, worker, gpu), LOST)
    assert store.study(study.id).probes[0].measurement == LOST


def test_what_crashed_on_a_device_may_have_it_again(store, study, worker, queued):
    store.record(claimed(store, study, worker, "GPU-0"), Measurement(outcome=Outcome.CRASHED))
    assert claimed(store, study, worker, "GPU-0").probe.id == queued[0]


def test_what_nobody_can_take_elsewhere_is_closed_after_a_lease(
    store, study, requests, worker, monkeypatch
):
    probe_id = enter(store, study, requests(1))[0].id
    attempt = claimed(store, study, worker, "GPU-0")
    assert store.record(attempt, replace(LOST, wall_s=3.0))
    before = store.study(study.id)
    assert store.claim(study.id, worker, devices=("GPU-0",)) is None
    assert store.study(study.id) == before, "others have a lease's time to take it"
    monkeypatch.setattr(lease, "LEASE_S", 0.0)
    assert store.claim(study.id, worker, devices=("GPU-0",)) is None
    after = store.study(study.id)
    assert after.revision == before.revision + 1
    [probe] = after.probes
    assert (probe.measurement.outcome, probe.measurement.detail) == (LOST.outcome, LOST.detail)
    told = store.events(study.id)[-1].data
    assert (told["number"], told["state"], told["outcome"]) == (probe_id, "done", "device_lost")
