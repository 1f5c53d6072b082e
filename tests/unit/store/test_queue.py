"""Claims, leases, fences and lost workers: every test runs on each kind of database."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from tests.unit.store.conftest import ELSEWHERE, claimed, enter
from tuner.core.measurement import TRIED_AGAIN, Measurement, Outcome
from tuner.core.study import OPEN, Limits, ProbeState, StudyState
from tuner.store import Moments, engine, open_store, queue
from tuner.store.tables import AttemptRow, AttemptState


def test_a_claim_takes_the_oldest_probe_and_runs_the_study(store, study, requests, worker):
    first, second = enter(store, study, requests(2))
    claim = claimed(store, study, worker)
    assert claim.probe == replace(first, state=ProbeState.RUNNING)
    assert (claim.study_id, claim.worker) == (study.id, worker)
    assert store.study(study.id).state is StudyState.RUNNING
    assert claimed(store, study, worker).probe.id == second.id
    assert store.claim(study.id, worker) is None


@pytest.fixture
def patient(monkeypatch):
    """Those who open a file wait longer for its lock: many take it in turn, in no order."""
    monkeypatch.setattr(engine, "BUSY_TIMEOUT_S", 240.0)


@pytest.mark.usefixtures("patient")
def test_many_who_claim_at_once_get_each_probe_once(url, store, study, requests, worker):
    number = 32
    ids = [probe.id for probe in enter(store, study, requests(number))]
    done = Measurement(outcome=Outcome.OK)
    barrier = threading.Barrier(4)

    def work(_):
        taken = []
        with open_store(url) as mine:
            barrier.wait()
            while claim := mine.claim(study.id, worker):
                taken.append(claim.probe.id)
                assert mine.record(claim, done)
        return taken

    with ThreadPoolExecutor(4) as pool:
        taken = [probe for one in pool.map(work, range(4)) for probe in one]
    assert sorted(taken) == ids
    after = store.study(study.id)
    assert {probe.state for probe in after.probes} == {ProbeState.DONE}
    assert after.revision == study.revision + 2 * number
    events = store.events(study.id)
    assert len(events) == 1 + 1 + 3 * number
    assert [e.at for e in events] == sorted(e.at for e in events), "in the order of commits"


def test_a_study_tells_when_what_runs_began_and_when_it_ended(store, claim):
    began = store.events(claim.study_id)[-1].at
    moments = store.moments(store.study(claim.study_id))
    assert moments == Moments(began={claim.probe.id: began})
    assert store.record(claim, Measurement(outcome=Outcome.OK))
    assert store.moments(store.study(claim.study_id)) == Moments()
    assert store.move(claim.study_id, StudyState.DONE)
    ended = store.events(claim.study_id)[-1].at
    assert store.moments(store.study(claim.study_id)) == Moments(ended=ended)


def test_a_probe_has_one_running_attempt_at_most(store, claim):
    with (
        pytest.raises(IntegrityError),
        Session(store.transactions.writer) as session,
        session.begin(),
    ):
        row = session.get_one(AttemptRow, claim.attempt_id)
        second = AttemptRow(
            probe_id=row.probe_id,
            number=2,
            state=row.state,
            detail="",
            worker=row.worker,
            devices=[],
            started_at=row.started_at,
            lease_until=row.lease_until,
        )
        session.add(second)


def test_statuses_are_checked_by_the_database(store, study):
    statement = "UPDATE studies SET state = 'lost'"
    with pytest.raises(IntegrityError), store.transactions.writer.begin() as connection:
        connection.exec_driver_sql(statement)


def test_a_beat_extends_the_lease(store, claim, run_out):
    run_out()
    assert store.beat(claim)
    assert store.reap() == 0


def test_a_beat_tells_that_the_study_is_cancelled(store, claim):
    assert store.beat(claim)
    assert store.move(claim.study_id, StudyState.CANCELLED, "enough")
    assert not store.beat(claim)
    assert store.record(claim, Measurement(outcome=Outcome.CANCELLED)), "the claim still holds"
    assert store.study(claim.study_id).probes[0].state is ProbeState.DONE


def test_a_late_record_changes_nothing(store, study, requests, found, run_out):
    enter(store, study, requests(1))
    late = claimed(store, study, ELSEWHERE)
    run_out()
    assert store.reap() == 1
    before = (store.study(study.id), store.events(study.id))
    assert not store.beat(late)
    assert not store.record(late, found)
    assert not store.give_back(late, "late")
    assert (store.study(study.id), store.events(study.id)) == before
    second = claimed(store, study, ELSEWHERE)
    assert not store.record(late, found), "nor when another worker has it"
    assert store.record(second, Measurement(outcome=Outcome.OOM))
    assert not store.record(second, found), "nor twice"
    assert not store.record(late, found)
    [probe] = store.study(study.id).probes
    assert probe.measurement == Measurement(outcome=Outcome.OOM)


@pytest.mark.parametrize("accident", sorted(TRIED_AGAIN))
def test_an_accident_is_tried_once_more(store, claim, worker, study, accident):
    happened = Measurement(outcome=accident, detail="signal 11")
    assert store.record(claim, happened)
    [probe] = store.study(study.id).probes
    assert (probe.state, probe.measurement) == (ProbeState.QUEUED, None)
    assert store.record(claimed(store, study, worker), happened)
    [probe] = store.study(study.id).probes
    assert (probe.state, probe.measurement) == (ProbeState.DONE, happened)


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_times_that_cannot_be_are_not_recorded(store, claim, worker, study, found, seconds):
    wrong = replace(found, step_times_s={1: (0.5, seconds)})
    assert store.record(claim, wrong)
    assert store.study(study.id).probes[0].state is ProbeState.QUEUED  # it is tried once more
    assert store.record(claimed(store, study, worker), wrong)
    [probe] = store.study(study.id).probes
    assert probe.measurement.outcome is Outcome.CRASHED
    assert probe.measurement.detail.startswith("a time that cannot be: step of 1 micro-batches")
    assert probe.measurement.step_times_s == {}


def test_what_is_given_back_does_not_count(store, claim, worker, study):
    for _ in range(4):
        assert store.give_back(claim, "Ctrl-C")
        assert store.study(study.id).probes[0].state is ProbeState.QUEUED
        claim = claimed(store, study, worker)
    store.record(claim, Measurement(outcome=Outcome.CRASHED))
    assert store.study(study.id).probes[0].state is ProbeState.QUEUED
    told = [e.data.get("detail") for e in store.events(study.id)]
    assert told.count("Ctrl-C") == 4


def do_anything(store, question, requests, run_out, seed):
    """What workers and users do, in any order."""
    draw = random.Random(seed)
    study = store.ask(question, Limits())
    for number, request in enumerate(requests):
        worker = replace(ELSEWHERE, pid=draw.choice((1, 2, 3)))
        now = store.study(study.id)
        store.enter_probe(study.id, now.revision, request, None)
        claim = store.claim(study.id, worker)
        match draw.randrange(6):
            case 0 if claim:
                store.give_back(claim, "no")
            case 1 | 2 if claim:
                store.record(claim, Measurement(outcome=draw.choice(list(Outcome))))
            case 3:
                store.ask(question, Limits(max_probes=1 + number))
            case 4:
                store.move(study.id, draw.choice(list(StudyState)), str(number))
            case _:
                run_out()
                store.reap()


@pytest.mark.usefixtures("patient")
def test_those_who_do_anything_at_once_break_nothing(url, store, question, requests, run_out):
    def work(seed):
        # Nobody plans what another plans: the planner sees the probes of its revision.
        mine = [replace(one, repetition=1000 * seed + i) for i, one in enumerate(requests(10))]
        with open_store(url) as opened:
            do_anything(opened, question, mine, run_out, seed)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    study = store.find(question)
    with Session(store.transactions.engine) as session:
        running = session.scalars(
            select(AttemptRow.probe_id).where(AttemptRow.state == AttemptState.RUNNING)
        ).all()
    states = {state: {p.row_id for p in study.probes if p.state is state} for state in ProbeState}
    assert states[ProbeState.RUNNING] == set(running)
    assert states[ProbeState.DONE] == {p.row_id for p in study.probes if p.measurement}
    assert states[ProbeState.DONE]
    assert study.state in OPEN or not states[ProbeState.QUEUED]
    told = {e.data["number"]: e.data["state"] for e in store.events(study.id) if "number" in e.data}
    left = {probe: state for probe, state in told.items() if state != "withdrawn"}
    assert left == {probe.id: str(probe.state) for probe in study.probes}


def test_a_worker_that_beats_before_it_is_reaped_keeps_its_probe(
    store, study, requests, run_out, monkeypatch
):
    enter(store, study, requests(1))
    claim = claimed(store, study, ELSEWHERE)
    run_out()
    lose = queue._lose

    def beat_first(session, attempt_id):
        assert store.beat(claim)  # it is a suspect, and its row not locked yet
        return lose(session, attempt_id)

    monkeypatch.setattr(queue, "_lose", beat_first)
    assert store.reap() == 0
    assert store.study(study.id).probes[0].state is ProbeState.RUNNING


def test_a_worker_elsewhere_is_lost_when_its_lease_runs_out(store, study, requests, run_out):
    enter(store, study, requests(1))
    claimed(store, study, ELSEWHERE)
    assert store.reap() == 0
    run_out()
    assert store.reap() == 1
    after = store.study(study.id)
    assert after.probes[0].state is ProbeState.QUEUED
    assert after.state is StudyState.QUEUED
    assert store.reap() == 0


def test_a_probe_that_lost_three_workers_is_closed(store, study, requests, dead, worker):
    enter(store, study, requests(1))
    assert store.give_back(claimed(store, study, worker), "not a loss")
    for lost in range(3):
        assert store.study(study.id).probes[0].state is ProbeState.QUEUED, lost
        claimed(store, study, dead)
        assert store.reap() == 1
    [probe] = store.study(study.id).probes
    assert probe.state is ProbeState.DONE
    assert probe.measurement.outcome is Outcome.WORKER_LOST
    assert store.claim(study.id, worker) is None


def test_a_lost_attempt_is_counted_once_by_those_who_reap_at_once(
    url, store, study, requests, dead
):
    enter(store, study, requests(4))
    for _ in range(4):
        claimed(store, study, dead)
    barrier = threading.Barrier(4)

    def reap(_):
        with open_store(url) as mine:
            barrier.wait()
            return mine.reap()

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(reap, range(4))) == 4
    assert store.study(study.id).state is StudyState.QUEUED


def test_a_running_study_stays_with_the_worker_that_plans(store, study, worker, run_out):
    assert store.move(study.id, StudyState.RUNNING, worker=worker)
    run_out()
    store.reap()
    assert store.study(study.id).state is StudyState.RUNNING, "its process lives"


def test_a_running_study_without_a_sign_of_its_worker_is_put_back(store, study, run_out):
    assert store.move(study.id, StudyState.RUNNING, worker=ELSEWHERE)
    store.reap()
    assert store.study(study.id).state is StudyState.RUNNING
    run_out()
    store.reap()
    assert store.study(study.id).state is StudyState.QUEUED


def test_readers_of_events_miss_none_while_others_write(url, store, study, requests, worker):
    enter(store, study, requests(12))
    over = threading.Event()

    def work(_):
        with open_store(url) as mine:
            while claim := mine.claim(study.id, worker):
                mine.record(claim, Measurement(outcome=Outcome.OK))

    def read():
        seen = []
        while True:
            last = over.is_set()
            seen += [e.id for e in store.events(study.id, after=seen[-1] if seen else 0)]
            if last:
                return seen

    with ThreadPoolExecutor(5) as pool:
        reader = pool.submit(read)
        list(pool.map(work, range(4)))
        over.set()
        assert reader.result() == [e.id for e in store.events(study.id)]
