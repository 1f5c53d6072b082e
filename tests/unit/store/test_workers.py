"""Registered workers: every test runs on each kind of database."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from tests.unit.store.conftest import ELSEWHERE
from tuner.machine import Machine, ReportedGpu
from tuner.store import workers as module
from tuner.store.tables import WorkerRow
from tuner.store.workers import KEPT_S, Workers

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
