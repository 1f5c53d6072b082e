"""Registered workers: every test runs on each kind of database."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from tests.unit.store.conftest import ELSEWHERE, enter
from tuner.core import lease
from tuner.core.study import ProbeState, StudyState
from tuner.machine import Machine, ReportedGpu
from tuner.store import workers as module
from tuner.store.figures import read_figures
from tuner.store.tables import AttemptRow, AttemptState, WorkerRow
from tuner.store.workers import KEPT_S, SILENT, Workers

GPU = ReportedGpu(name="NVIDIA L4", memory_mib=23034, uuid="GPU-1")
MACHINE = Machine(name="elsewhere", gpus=(GPU, GPU), cores=8, memory_bytes=2**36)
VERSIONS = {"torch": "2.13.0"}


@pytest.fixture
def workers(store):
    return Workers(store.transactions)


def register(workers, *pools, who=ELSEWHERE):
    return workers.register(who, pools, MACHINE.as_dict(), VERSIONS)


def age(store, seconds):
    with store.transactions.write() as session:
        seen_at = module.clock(session) - timedelta(seconds=seconds)
        session.execute(update(WorkerRow).values(seen_at=seen_at))


def living(workers, pool=""):
    return [worker.id for worker in workers.living(pool)]


def test_a_worker_comes_back_as_it_registered(workers):
    made = register(workers, "b", "a")
    [found] = workers.living()
    assert (found.id, found.name, found.identity) == (made, "elsewhere:1", ELSEWHERE)
    assert (found.pools, found.versions) == (("a", "b"), VERSIONS)
    there = Machine.from_dict(found.machine)
    assert there == MACHINE
    assert [gpu.uuid for gpu in there.gpus] == ["GPU-1", "GPU-1"]
    assert found.started_at == found.seen_at


def test_workers_serve_their_pools_and_studies_of_none(workers):
    one, other = register(workers), register(workers, "a100")
    assert living(workers) == [one, other]
    assert living(workers, "a100") == [other]
    assert living(workers, "a10") == []


def test_a_worker_without_a_sign_does_not_live(workers, store, monkeypatch):
    with store.transactions.read() as session:
        now = module.clock(session)
    monkeypatch.setattr(module, "clock", lambda session: now)
    made = register(workers)
    age(store, 59)
    assert living(workers) == [made]
    age(store, 61)
    assert living(workers) == []
    assert workers.seen(made)
    assert living(workers) == [made]


def test_a_worker_that_stopped_does_not_live(workers):
    made = register(workers)
    assert workers.stopped(made)
    assert living(workers) == []
    assert workers.seen(made), "it may go on"
    assert living(workers) == [made]


def test_a_process_of_this_machine_that_is_gone_does_not_live(workers, dead, worker):
    register(workers, who=dead)
    made = register(workers, who=worker)
    assert living(workers) == [made]


def test_workers_are_forgotten_after_a_week(workers, store):
    old = register(workers)
    age(store, KEPT_S + 1)
    new = register(workers, who=replace(ELSEWHERE, pid=2))
    assert not workers.seen(old)
    assert not workers.stopped(old)
    assert living(workers) == [new]
    assert new != old


def test_what_a_worker_left_is_told_before_another_one_comes(store, claim, run_out):
    """Nothing is written: whoever reads goes by the lease."""
    before = store.status(claim.study_id)
    assert (before.state, before.reason) == (StudyState.RUNNING, "")
    run_out()
    status, study, (listed,) = (
        store.status(claim.study_id),
        store.study(claim.study_id),
        store.studies(),
    )
    for told in (status, study, listed, *store.open_studies()):
        assert told.state is StudyState.QUEUED
        assert re.fullmatch(
            r"its worker gave no sign of life since \d\d:\d\d:\d\d UTC", told.reason
        )
    assert [probe.state for probe in study.probes] == [ProbeState.QUEUED]
    assert status.newest_event == before.newest_event
    known = {claim.study_id: (before.newest_event, before.state, before.reason)}
    assert store.changes(known, 9) == {claim.study_id: (status, [])}
    found = read_figures(store.transactions)
    assert (found.attempts[AttemptState.RUNNING], found.attempts[AttemptState.LOST]) == (0, 1)
    assert (found.studies[StudyState.RUNNING], found.probes[ProbeState.RUNNING]) == (0, 0)
    assert (found.studies[StudyState.QUEUED], found.probes[ProbeState.QUEUED]) == (1, 1)
    assert store.beat(claim), "it was stopped, and goes on"
    assert store.status(claim.study_id) == before


def test_a_worker_that_missed_two_renewals_is_told_of_before_its_lease_ends(store, claim):
    before = store.status(claim.study_id)
    with store.transactions.write() as session:
        until = module.clock(session) + timedelta(seconds=lease.LEASE_S * (1 - SILENT) - 1)
        session.execute(update(AttemptRow).values(lease_until=until))
    status, study, (listed,) = (
        store.status(claim.study_id),
        store.study(claim.study_id),
        store.studies(),
    )
    since = until - timedelta(seconds=lease.LEASE_S)
    for told in (status, study, listed):
        assert told.state is StudyState.RUNNING
        assert told.reason == (
            f"its worker has not been heard of since {since:%H:%M:%S} UTC; its probe is given up"
            f" at {until:%H:%M:%S}"
        )
    silence = store.moments(study).silent[claim.probe.id]
    assert abs(silence.until - until) < timedelta(milliseconds=1)
    known = {claim.study_id: (before.newest_event, before.state, before.reason)}
    assert store.changes(known, 9) == {claim.study_id: (status, [])}, "who listens is told"
    assert store.beat(claim)
    assert store.status(claim.study_id) == before
    assert store.moments(store.study(claim.study_id)).silent == {}


def test_a_worker_that_renews_any_of_its_leases_is_heard_of(store, claim, worker, requests):
    enter(store, store.study(claim.study_id), requests(2)[1:])
    other = store.claim(claim.study_id, worker)
    with store.transactions.write() as session:
        now = module.clock(session)
        until = now + timedelta(seconds=lease.LEASE_S / 2)
        for one, end in ((claim, until), (other, until - timedelta(seconds=9))):
            its = update(AttemptRow).where(AttemptRow.id == one.attempt_id)
            session.execute(its.values(lease_until=end))
    reason = store.status(claim.study_id).reason
    assert reason.endswith(f"is given up at {until:%H:%M:%S}"), "by the lease that was renewed last"
    assert store.beat(other)
    assert store.status(claim.study_id).reason == ""


def test_a_worker_elsewhere_that_gives_signs_is_at_its_study_between_probes(
    store, workers, study, run_out
):
    store.move(study.id, StudyState.RUNNING, worker=ELSEWHERE)
    run_out()
    assert store.status(study.id).state is StudyState.QUEUED
    register(workers)
    assert store.status(study.id).state is StudyState.RUNNING
    assert store.reap() == 0
    age(store, 61)
    assert store.status(study.id).state is StudyState.QUEUED
