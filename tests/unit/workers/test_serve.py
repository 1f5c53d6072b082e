"""Queues of studies and what becomes of those that cause trouble; services, and their entries."""

import threading
from dataclasses import dataclass, field, replace
from functools import partialmethod
from types import SimpleNamespace

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from tests.unit.workers.fakes import FakeDryRunner, FakeLauncher
from tests.waiting import until
from tuner.core.cluster import parse_cluster
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import Limits, StudyState
from tuner.errors import AwayError, ProbeError, StoreError, UsageError
from tuner.explain.known import best_known
from tuner.machine import Machine
from tuner.store import Store, WorkerIdentity, open_store
from tuner.store.tables import StudyRow
from tuner.store.workers import Workers
from workers import serve as serve_module
from workers.executor import WorkerOptions
from workers.launchers.site import LocalSite
from workers.serve import (
    Fitness,
    Registration,
    Service,
    StudyQueue,
    Until,
    open_when_reachable,
    wants_dry_runs,
)
from workers.stop import StopRequest

YES = Fitness(takes=True)


@dataclass
class Work:
    """Notes what is worked at; a study is finished, or what is planted for it is raised."""

    store: Store
    stop: StopRequest
    planted: dict[str, Exception] = field(default_factory=dict)
    leaves: set[str] = field(default_factory=set)
    begins: bool = True
    done: list[str] = field(default_factory=list)
    most: int = 20

    def __call__(self, study):
        self.done.append(study.id)
        if len(self.done) >= self.most:
            self.stop.request("enough")
        if self.begins:
            self.store.move(study.id, StudyState.RUNNING, worker=WorkerIdentity.of_this_process())
        if study.id in self.planted:
            raise self.planted[study.id]
        if study.id not in self.leaves:
            self.store.move(study.id, StudyState.DONE, "by a test")


@pytest.fixture
def work(store, stop):
    return Work(store, stop)


@pytest.fixture
def studies(store, question):
    """Of no pool, of a pool, of no pool; in the order in which they were asked."""
    found = []
    for size, pool in ((4, ""), (8, "h100"), (16, "")):
        workload = replace(question.workload, global_batch_size=size)
        found.append(store.ask(replace(question, workload=workload), Limits(pool=pool)).id)
    return found


@pytest.fixture
def pass_time(monkeypatch):
    """Lets time pass for queues, for which it stands still otherwise: half a minute a call."""
    now = [0.0]
    monkeypatch.setattr(serve_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def wait():
        now[0] += 30.0

    return wait


@pytest.fixture
def queue(store, stop, work):
    def make(judge=lambda _: YES, *pools, **more):
        known = {"store": store, "stop": stop, "pools": pools, "judge": judge, "work": work}
        return StudyQueue(**{**known, "look_s": 0.01, **more})

    return make


def test_those_asked_first_go_first_and_only_of_its_pools(queue, work, studies):
    queue().run(drains=True)
    assert work.done == [studies[0], studies[2]]
    queue(lambda _: YES, "a100", "h100").run(drains=True)
    assert work.done[2:] == [studies[1]]


def test_what_is_not_for_it_is_told_once_and_stays(store, queue, work, studies, caplog):
    caplog.set_level("INFO", logger="workers")
    judged = []

    def judge(study):
        judged.append(study.id)
        return YES if study.id == studies[2] else Fitness(takes=False, why="no GPU here")

    queue(judge).run(drains=True)
    assert work.done == [studies[2]]
    assert store.study(studies[0]).state is StudyState.QUEUED
    told = [r.getMessage() for r in caplog.records if "left to other workers" in r.getMessage()]
    assert told == [f"study {studies[0]} is left to other workers: no GPU here"]
    assert judged.count(studies[0]) == 1  # not again until something happens to it


def test_a_study_that_changes_is_looked_at_again(store, question, queue, work, studies):
    answers = {studies[0]: Fitness(takes=False)}
    made = queue(lambda study: answers.get(study.id, YES))
    made.run(drains=True)
    assert work.done == [studies[2]]
    assert made.has_passed(store.study(studies[0]))
    answers.clear()
    assert not made.take_one()
    store.ask(store.study(studies[0]).question, Limits(max_probes=3))
    assert not made.has_passed(store.study(studies[0]))
    assert made.take_one()


def test_a_study_that_waits_for_others_is_left_and_taken_again(queue, work, studies, pass_time):
    work.leaves, work.most = {studies[0]}, 4
    # it does not end while a study is open that it may be wanted for
    queue(idle=pass_time).run(drains=True)
    assert work.done == [studies[0], studies[2], studies[0], studies[0]]


def test_what_turns_out_not_to_be_done_here_is_left_for_a_while(
    store, queue, work, studies, pass_time, caplog
):
    work.planted[studies[0]] = ProbeError("the disk is full")
    work.most = 3
    queue(idle=pass_time).run()
    assert work.done == [studies[0], studies[2], studies[0]]
    assert "cannot be done here: the disk is full" in caplog.text
    assert store.study(studies[0]).state is StudyState.RUNNING  # whoever is at it goes on


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_trouble_of_the_machine_is_not_the_studys(store, queue, work, studies, error):
    work.planted[studies[0]] = error
    work.most = 2
    queue().run()
    assert work.done == [studies[0], studies[2]]
    queued = store.study(studies[0])
    assert queued.state is StudyState.QUEUED
    assert "a worker could not go on" in queued.reason


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (UsageError("question", "x", "no settings are legal"), "no settings are legal"),
        (ValueError("a zero step"), "an error of the planner's or the worker's: ValueError"),
    ],
)
def test_a_study_that_nobody_can_go_on_with_fails_and_the_others_go_on(
    store, queue, work, studies, error, reason, begins
):
    work.begins = begins
    work.planted[studies[0]] = error
    queue().run(drains=True)
    assert work.done == [studies[0], studies[2]]
    failed = store.study(studies[0])
    assert failed.state is StudyState.FAILED
    assert reason in failed.reason


def test_a_study_of_another_version_holds_up_no_other(store, queue, work, studies, caplog):
    """A row of the database that this version does not understand, nor ever will."""
    caplog.set_level("INFO", logger="workers")
    question = store.study(studies[0]).question.as_dict()
    question["workload"]["precision"] = "fp4"
    with Session(store.transactions.writer) as session, session.begin():
        session.execute(update(StudyRow).where(StudyRow.id == studies[0]).values(question=question))
    made = queue()
    made.run(drains=True)
    assert work.done == [studies[2]]
    assert [one.id for one in store.open_studies(())] == [studies[0]]  # others may do it
    (told,) = [r.getMessage() for r in caplog.records if studies[0] in r.getMessage()]
    assert "is left to other workers" in told
    assert "cannot be read by this version" in told
    assert "fp4" in told


def test_a_store_that_is_away_is_waited_for_with_growing_pauses(
    store, queue, work, studies, monkeypatch
):
    reap, failures = Store.reap, [StoreError("no answer"), UsageError("db", "x", "read-only")]
    pauses = []

    def fails(self):
        if failures:
            raise failures.pop(0)
        return reap(self)

    class Noting(StopRequest):
        def wait(self, seconds):
            if seconds:
                pauses.append(seconds)
            return super().wait(0)

    monkeypatch.setattr(Store, "reap", fails)
    queue(stop=Noting(), look_s=1.0).run(drains=True)
    assert pauses == [1.0, 2.0]
    assert work.done == [studies[0], studies[2]]


def test_probes_of_workers_that_are_lost_are_told_of(queue, studies, monkeypatch, caplog):
    lost = [2]
    monkeypatch.setattr(Store, "reap", lambda self: lost.pop() if lost else 0)
    queue().run(drains=True)
    told = [one.getMessage() for one in caplog.records if "lost" in one.getMessage()]
    assert told == ["2 probes taken from workers that are lost"]


def test_a_store_that_goes_away_during_work_is_no_fault_of_the_study(store, queue, work, studies):
    work.planted[studies[0]] = StoreError("no answer")
    work.most = 2
    queue().run()
    assert work.done == [studies[0]] * 2
    assert store.study(studies[0]).state is StudyState.RUNNING


@pytest.fixture
def launcher():
    return FakeLauncher()


@pytest.fixture
def serve(store, tmp_path, launcher):
    """Serves in this process until nothing is left; the exit code."""

    def run(*, stop=None, **more):
        options = WorkerOptions(
            folder=tmp_path / "probes",
            lock=tmp_path / "probes.lock",
            site=LocalSite(launcher=launcher),
            dry_runner=FakeDryRunner,
            guards=False,
        )
        known = {"until": Until.DRAINED, "options": options, **more}
        return Service(store, stop=stop or StopRequest(), **known).run()

    return run


@pytest.fixture
def quick(monkeypatch):
    """Services look again at once."""
    monkeypatch.setattr(serve_module, "AGAIN_S", 0.01)
    monkeypatch.setattr(StudyQueue, "run", partialmethod(_run_quickly, StudyQueue.run))


def _run_quickly(self, run, *, drains=False):
    self.look_s = 0.01
    run(self, drains=drains)


def on(question, cluster, batch=4):
    workload = replace(question.workload, global_batch_size=batch)
    return replace(question, workload=workload, cluster=parse_cluster(cluster))


def outcomes(study, fidelity):
    return [p.measurement and p.measurement.outcome for p in study.at(fidelity).probes]


@pytest.mark.usefixtures("quick")
def test_it_does_what_it_can_and_leaves_the_rest(store, question, serve, caplog):
    caplog.set_level("INFO", logger="workers")
    predicted = {"fidelity": Fidelity.PREDICTED, "max_probes": 2}
    here = store.ask(on(question, "cpu:2"), Limits(max_probes=2)).id
    anywhere = store.ask(on(question, "8xa100-80gb"), Limits(**predicted)).id
    of_our_pool = store.ask(on(question, "8xa100-80gb", 8), Limits(pool="ours", **predicted)).id
    no_gpus = store.ask(on(question, "4xh100-80gb"), Limits()).id
    others = store.ask(on(question, "cpu:2", 8), Limits(pool="h100")).id
    assert wants_dry_runs(store.study(no_gpus))
    assert serve(pools=("ours",)) == 0
    states = [store.study(name).state for name in (here, anywhere, of_our_pool)]
    assert states == [StudyState.DONE] * 3
    assert outcomes(store.study(here), Fidelity.MEASURED) == [Outcome.OK] * 2
    for name in (no_gpus, others):
        assert store.study(name).state is StudyState.QUEUED
        assert not store.study(name).at(Fidelity.MEASURED).probes
    assert not store.study(others).probes
    # what nobody here can probe has its prediction all the same
    assert best_known(store.study(no_gpus)).best is not None
    assert not wants_dry_runs(store.study(no_gpus))
    told = [r.getMessage() for r in caplog.records if "left to other workers" in r.getMessage()]
    assert len(told) == 1
    assert "4xh100-80gb is asked about" in told[0]


def test_once_is_the_study_that_was_asked_first(store, question, serve):
    first, second = (store.ask(on(question, "cpu:2", n), Limits(max_probes=2)).id for n in (4, 8))
    for ended, waits in (([first], [second]), ([first, second], [])):
        assert serve(until=Until.ONCE) == 0
        assert all(store.study(name).state is StudyState.DONE for name in ended)
        assert not any(store.study(name).probes for name in waits)
    assert serve(until=Until.ONCE) == 0  # none is open


MACHINE = Machine(name="node7", gpus=(), cores=8, memory_bytes=2**33)


def living(store):
    return Workers(store.transactions).living()


class Soon(threading.Event):
    """Waits for no more than a moment."""

    def wait(self, timeout=None):
        return super().wait(0.02)


@pytest.fixture
def entry(store, monkeypatch):
    """With beats that follow each other soon; the last one is still waited for."""
    made = Registration(store, WorkerIdentity.of_this_process("w1"), ("h100",), MACHINE)
    monkeypatch.setattr(made, "_done", Soon())
    return made


def test_it_lives_while_it_is_entered(store, entry):
    with entry:
        (found,) = living(store)
        assert (found.name, found.pools) == ("w1", ("h100",))
        assert Machine.from_dict(found.machine) == MACHINE
        assert "torch" in found.versions
        until(lambda: living(store)[0].seen_at > found.seen_at)
    assert living(store) == []


def test_a_store_that_fails_holds_up_nothing(store, entry, monkeypatch):
    failures = []

    def fail(self, *given):
        failures.append(1)
        raise StoreError("no answer")

    monkeypatch.setattr(Workers, "register", fail)
    with entry:
        until(lambda: len(failures) > 2)
        assert living(store) == []
        monkeypatch.undo()
        until(lambda: living(store))
        monkeypatch.setattr(Workers, "stopped", fail)


@pytest.fixture
def away(monkeypatch):
    """Has opening the database fail with these errors, one after the other."""

    def plan(*errors):
        left = list(errors)

        def open_it(*args, **more):
            if left:
                raise left.pop(0)
            return open_store(*args, **more)

        monkeypatch.setattr(serve_module, "open_store", open_it)

    return plan


def test_it_is_waited_for_with_growing_pauses(away, tmp_path, stop, clock):
    away(*[AwayError("not there")] * 7)
    url = f"sqlite:///{tmp_path}/tuner.db"
    store = open_when_reachable(url, stop)
    with store:
        assert store.url == url
    assert clock.moved == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]


@pytest.mark.parametrize("error", [StoreError("of a newer version"), UsageError("db", "x", "no")])
def test_what_does_not_pass_is_told_at_once(away, stop, error):
    away(AwayError("not there"), error)
    with pytest.raises(type(error), match=str(error)):
        open_when_reachable(None, stop)
