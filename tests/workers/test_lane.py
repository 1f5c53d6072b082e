"""Which study a lane takes, and what becomes of studies that cause trouble."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from tuner.errors import ProbeError, StoreError, UnreadableStudyError, UsageError
from tuner.store import Store, WorkerIdentity
from tuner.store.tables import StudyRow
from tuner.study import Question, Study, StudyState, Terms
from workers import lane as lane_module
from workers.lane import Judged, Lane
from workers.stop import StopRequest

YES = Judged(takes=True)


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

    def __call__(self, study: Study) -> None:
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
def stop() -> StopRequest:
    return StopRequest()


@pytest.fixture
def work(store: Store, stop: StopRequest) -> Work:
    return Work(store, stop)


@pytest.fixture
def studies(store: Store, question: Question) -> list[str]:
    """Of no pool, of a pool, of no pool; in the order in which they were asked."""
    found = []
    for size, pool in ((4, ""), (8, "h100"), (16, "")):
        workload = replace(question.workload, global_batch_size=size)
        found.append(store.ask(replace(question, workload=workload), Terms(pool=pool)).id)
    return found


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets time pass for lanes, for which it stands still otherwise: half a minute a call."""
    now = [0.0]
    monkeypatch.setattr(lane_module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def wait() -> None:
        now[0] += 30.0

    return wait


@pytest.fixture
def lane(store: Store, stop: StopRequest, work: Work) -> Callable[..., Lane]:
    def make(judge: Callable[[Study], Judged] = lambda _: YES, *pools: str, **more: object) -> Lane:
        known = {"store": store, "stop": stop, "pools": pools, "judge": judge, "work": work}
        return Lane(**{**known, "look_s": 0.01, **more})

    return make


def test_those_asked_first_go_first_and_only_of_its_pools(lane, work, studies) -> None:
    lane().run(drains=True)
    assert work.done == [studies[0], studies[2]]
    lane(lambda _: YES, "a100", "h100").run(drains=True)
    assert work.done[2:] == [studies[1]]


def test_what_is_not_for_it_is_told_once_and_stays(store, lane, work, studies, caplog) -> None:
    caplog.set_level("INFO", logger="workers")
    judged = []

    def judge(study: Study) -> Judged:
        judged.append(study.id)
        return YES if study.id == studies[2] else Judged(takes=False, why="no GPU here")

    lane(judge).run(drains=True)
    assert work.done == [studies[2]]
    assert store.study(studies[0]).state is StudyState.QUEUED
    told = [r.getMessage() for r in caplog.records if "left to other workers" in r.getMessage()]
    assert told == [f"study {studies[0]} is left to other workers: no GPU here"]
    assert judged.count(studies[0]) == 1  # not again until something happens to it


def test_a_study_that_changes_is_looked_at_again(store, question, lane, work, studies) -> None:
    answers = {studies[0]: Judged(takes=False)}
    made = lane(lambda study: answers.get(study.id, YES))
    made.run(drains=True)
    assert work.done == [studies[2]]
    assert made.has_passed(store.study(studies[0]))
    answers.clear()
    assert not made.take_one()
    store.ask(store.study(studies[0]).question, Terms(max_probes=3))
    assert not made.has_passed(store.study(studies[0]))
    assert made.take_one()


def test_a_study_that_waits_for_others_is_left_and_taken_again(
    lane, work, studies, pass_time
) -> None:
    work.leaves, work.most = {studies[0]}, 4
    # it does not end while a study is open that it may be wanted for
    lane(idle=pass_time).run(drains=True)
    assert work.done == [studies[0], studies[2], studies[0], studies[0]]


def test_it_does_not_drain_while_a_study_waits_for_another_lane(store, lane, work, studies) -> None:
    """Passed over at the only look so far: that another lane is at it may not be known yet."""
    first: list[Judged] = [Judged(takes=False, again_s=0.05)]
    lane(lambda study: first.pop() if first else YES).run(drains=True)
    assert sorted(work.done) == sorted([studies[0], studies[2]])


def test_what_turns_out_not_to_be_done_here_is_left_for_a_while(
    store, lane, work, studies, pass_time, caplog
) -> None:
    work.planted[studies[0]] = ProbeError("the disk is full")
    work.most = 3
    lane(idle=pass_time).run()
    assert work.done == [studies[0], studies[2], studies[0]]
    assert "cannot be done here: the disk is full" in caplog.text
    assert store.study(studies[0]).state is StudyState.RUNNING  # whoever is at it goes on


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError()])
def test_a_trouble_of_the_machine_is_not_the_studys(store, lane, work, studies, error) -> None:
    work.planted[studies[0]] = error
    work.most = 2
    lane().run()
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
    store, lane, work, studies, error, reason, begins
) -> None:
    work.begins = begins
    work.planted[studies[0]] = error
    lane().run(drains=True)
    assert work.done == [studies[0], studies[2]]
    failed = store.study(studies[0])
    assert failed.state is StudyState.FAILED
    assert reason in failed.reason


def test_a_judge_that_fails_lets_the_work_say_why(store, lane, work, studies) -> None:
    def judge(study: Study) -> Judged:
        raise ValueError(study.id)

    work.planted[studies[0]] = ValueError("the same")
    lane(judge).run(drains=True)
    assert store.study(studies[0]).state is StudyState.FAILED
    assert store.study(studies[2]).state is StudyState.DONE


def test_a_study_that_cannot_be_read_holds_up_no_other(
    store, lane, work, studies, monkeypatch
) -> None:
    read = Store.study

    def fails(self: Store, study_id: str) -> Study:
        if study_id == studies[0]:
            raise KeyError("workload")
        return read(self, study_id)

    monkeypatch.setattr(Store, "study", fails)
    lane().run(drains=True)
    assert work.done == [studies[2]]


def test_a_study_of_another_version_holds_up_no_other(store, lane, work, studies, caplog) -> None:
    """A row of the database that this version does not understand, nor ever will."""
    caplog.set_level("INFO", logger="workers")
    question = store.study(studies[0]).question.as_dict()
    question["workload"]["precision"] = "fp4"
    with Session(store.transactions.writer) as session, session.begin():
        session.execute(update(StudyRow).where(StudyRow.id == studies[0]).values(question=question))
    made = lane()
    made.run(drains=True)
    assert work.done == [studies[2]]
    assert [one.id for one in store.open_studies(())] == [studies[0]]  # others may do it
    (told,) = [r.getMessage() for r in caplog.records if studies[0] in r.getMessage()]
    assert "is left to other workers" in told
    assert "cannot be read by this version" in told
    assert "fp4" in told


def test_a_study_that_becomes_unreadable_at_work_is_left_and_does_not_fail(
    store, lane, work, studies
) -> None:
    work.planted[studies[0]] = UnreadableStudyError("by this version")
    work.most = 2
    lane().run()
    assert work.done == [studies[0], studies[2]]
    assert store.study(studies[0]).state is StudyState.RUNNING


def test_a_store_that_is_away_is_waited_for_with_growing_pauses(
    store, lane, work, studies, monkeypatch
) -> None:
    reap, failures = Store.reap, [StoreError("no answer"), UsageError("db", "x", "read-only")]
    pauses: list[float] = []

    def fails(self: Store) -> int:
        if failures:
            raise failures.pop(0)
        return reap(self)

    class Noting(StopRequest):
        def wait(self, seconds: float) -> str:
            if seconds:
                pauses.append(seconds)
            return super().wait(0)

    monkeypatch.setattr(Store, "reap", fails)
    lane(stop=Noting(), look_s=1.0).run(drains=True)
    assert pauses == [1.0, 2.0]
    assert work.done == [studies[0], studies[2]]


def test_a_store_that_goes_away_during_work_is_no_fault_of_the_study(
    store, lane, work, studies
) -> None:
    work.planted[studies[0]] = StoreError("no answer")
    work.most = 2
    lane().run()
    assert work.done == [studies[0]] * 2
    assert store.study(studies[0]).state is StudyState.RUNNING


def test_it_drains_when_others_of_its_set_have_done(lane, work, studies, stop) -> None:
    at = {"st-of-another-lane"}
    looks: list[int] = []

    def idle() -> None:
        looks.append(1)
        if len(looks) == 3:
            at.clear()

    lane(at=at, idle=idle).run(drains=True)
    assert len(looks) == 3
    assert stop.wait(0) == ""
