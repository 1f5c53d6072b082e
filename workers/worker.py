"""The worker: plans a study's probes, has its executor run them, and ends the study."""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial

from tuner.client.advance import advance_from_cache, end_of
from tuner.core.measurement import PROBED, RAN, Fidelity, Outcome
from tuner.core.study import ProbeRequest, ProbeState, Study, StudyState
from tuner.dryrun import DryRunner
from tuner.errors import ProbeError, TunerError
from tuner.planner import Stop, Wait, next_probe
from tuner.planner.dry_runs import as_predicted
from tuner.planner.next import give_up_above_s
from tuner.planner.ranking import is_final
from tuner.planner.spending import device_time_is_spent, remaining_device_time_s, wall_is_spent
from tuner.store import EventKind, Store, WorkerIdentity
from workers.executor import Executor, WorkerOptions, Workplace
from workers.lease import retried
from workers.measuring.records import remove_leftovers
from workers.replicas import ReplicaTrainer
from workers.stop import INTERRUPTED, StopRequest

# Between two looks at a study whose probe another worker runs.
PAUSE_S = 0.5
# Said while replicas of the finalists are trained.
CHECKING = "checking the answer against one process"
# The reason to give a probe back for whose end the budget did not wait.
TIME_IS_SPENT = "the study's time is spent"
# For a study's first probe, which starts its ranks; of a small model it takes less.
PROBE_S = 30.0

log = logging.getLogger(__name__)


class Worker:
    """Works at one study until it is answered, or a stop is requested."""

    def __init__(
        self,
        store: Store,
        study_id: str,
        *,
        stop: StopRequest,
        options: WorkerOptions | None = None,
        dry_runner: DryRunner | None = None,
        name: str = "",
    ) -> None:
        """A worker that does nothing yet; dry runs are made by a process of its own, unless a
        ``dry_runner`` is given, which then stays. The ``name`` is shown to people."""
        self._store = store
        self._id = study_id
        self._stop = stop
        self._options = options or WorkerOptions()
        self._identity = WorkerIdentity.of_this_process(name)
        self._keeps_dry_runner = dry_runner is not None
        self._dry_runner = dry_runner or self._options.dry_runner()
        self._executor = Executor(store, stop, self._identity, self._options, self._dry_runner)
        self._replicas = ReplicaTrainer(
            pause=stop.wait, folder=self._options.folder, argv=self._options.replica_argv
        )
        self._request_began = "", time.monotonic()  # when it was asked, and our start at that
        self._spent = "", ""  # when the study was asked, and the budget that is spent since
        self._began = False
        self._study: Study | None = None  # as it was read last

    def run(self) -> int:
        """Works; the exit code.

        Raises:
            ProbeError: no probe can be run here. The study has failed if this worker began it, or
                is queued again where others may serve it.
            StoreError: the store did not answer for longer than a while.
        """
        remove_leftovers(self._options.folder)
        with nullcontext() if self._keeps_dry_runner else self._dry_runner, self._executor:
            try:
                while not (why := self._stop.wait(0)):
                    code = self._step()
                    if code is not None:
                        return code
            except ProbeError as error:
                with suppress(TunerError):  # the first error is the one to be told
                    self._executor.give_up(str(error))
                if self._began:
                    serves = self._options.serves
                    self._move(StudyState.QUEUED if serves else StudyState.FAILED, str(error))
                raise
            self._executor.close()
        log.info("%s", why)
        self._move(StudyState.QUEUED, "interrupted")
        return INTERRUPTED

    def _step(self) -> int | None:
        """Does the next thing; an exit code when there is nothing more to do."""
        executor = self._executor
        if self._study is not None and executor.is_full:  # nothing to decide before one ends
            self._watch(self._study, math.inf)
            return None
        executor.make_room()
        retried(self._store.reap, self._stop)
        self._study = study = retried(partial(self._store.study, self._id), self._stop)
        if study.state is StudyState.QUEUED:
            self._began = self._move(StudyState.RUNNING, expect=StudyState.QUEUED)
            return None  # to read it again
        if study.state is not StudyState.RUNNING:
            log.info("the study is %s: %s", study.state, study.reason)
            return 0
        fidelity = self._options.fidelity or study.limits.fidelity
        if self._options.predicts:
            fidelity = Fidelity.PREDICTED
        executor.prepare(study, fidelity)
        if why := self._why_spent(study):
            if executor.is_busy:
                executor.give_up(TIME_IS_SPENT)
                return None  # to read it again
            return self._finish(study, StudyState.DONE, why)
        queued = [p for p in study.at(fidelity).probes if p.state is ProbeState.QUEUED]
        if queued:
            return self._begin(study, fidelity, queued[0].request)
        if self._options.queued_only:
            return self._end_of_queue(study)
        return self._predict(study) if self._options.predicts else self._plan(study)

    def _watch(self, study: Study, seconds: float) -> None:
        """Waits until a probe ends, but not longer than budgets last: what runs then is ended."""
        self._executor.wait(min(seconds, self._time_left(study).of_running_s))
        if self._executor.is_busy and self._why_spent(study):
            self._executor.give_up(TIME_IS_SPENT)

    # Planning

    def _plan(self, study: Study) -> int | None:
        if study.limits.fidelity is Fidelity.PREDICTED:
            study = retried(partial(advance_from_cache, self._store, study), self._stop)
            if end := end_of(study):
                return self._finish(study, *end)
        all_done = all(probe.state is ProbeState.DONE for probe in study.probes)
        plan = next_probe(study, beside=not all_done and self._executor.can_start())
        if isinstance(plan, Wait):
            self._executor.release()
            return self._wait_for_others(study)
        if not isinstance(plan, Stop):
            self._enter(study, plan)
            return None
        if self._check_finalists(study):
            return None  # what failed is not suggested, and another may lead now
        if plan.failure:
            return self._finish(study, StudyState.FAILED, plan.failure)
        return self._finish(study, StudyState.DONE, plan.reason)

    def _predict(self, study: Study) -> int | None:
        """Makes the dry runs of a study that is probed, until its probes say more than they."""
        advance = partial(advance_from_cache, self._store, study, view=as_predicted)
        study = retried(advance, self._stop)
        predicted = as_predicted(study)
        plan = next_probe(predicted)
        if isinstance(plan, Wait):
            return self._wait_for_others(study)
        if isinstance(plan, Stop) or end_of(predicted):
            runs = any(probe.state is ProbeState.RUNNING for probe in study.probes)
            if self._began and not runs:  # its probes are others' to run
                self._move(StudyState.QUEUED)
            return 0
        self._enter(study, plan)
        return None

    def _enter(self, study: Study, plan: ProbeRequest) -> None:
        limit_bytes = study.limits.limit_bytes(study.question.cluster)
        store, revision = self._store, study.revision
        retried(partial(store.enter_probe, study.id, revision, plan, limit_bytes), self._stop)

    def _wait_for_others(self, study: Study) -> int | None:
        """Waits for a moment; an exit code instead where other studies may want this worker."""
        if self._options.serves and not self._executor.is_busy:
            return 0
        self._watch(study, PAUSE_S)
        return None

    def _check_finalists(self, study: Study) -> bool:
        """Trains the replicas of the answer and of its rivals; true to read the study again."""
        replicas = self._replicas.unchecked(study) if self._options.guards else []
        if not replicas:
            return False
        self._executor.end_ranks()  # nothing more is planned for them
        workplace = self._acquire(study, alone=True)
        if workplace is None:
            return True
        began = time.monotonic()
        try:
            # another worker may have trained them while this one waited for the machine
            study = self._store.study(study.id)
            replicas = self._replicas.unchecked(study)
            if study.state is not StudyState.RUNNING or not replicas:
                return True
            self._tell(study, CHECKING)
            time_s = self._time_left(study).seconds
            with closing(self._replicas.train_finalists(replicas, time_s)) as checks:
                for check in checks:
                    if check.outcome is not Outcome.CANCELLED:
                        retried(partial(self._store.keep_check, check), self._stop)
        finally:
            workplace.release()
        taken_s = time.monotonic() - began
        retried(partial(self._store.add_guard_time, study.id, taken_s), self._stop)
        return True

    # Running

    def _begin(self, study: Study, fidelity: Fidelity, queued: ProbeRequest) -> int | None:
        site = self._options.site
        if fidelity is not Fidelity.PREDICTED and site.left_s <= probe_s(study.at(fidelity)):
            # another probe could not end before its devices are taken away: all is ended now
            self._stop.request(f"the time of {site.name} ends before another probe could")
            return None
        alone = self._must_be_alone(study, queued)
        if (workplace := self._acquire(study, alone=alone)) is None:
            return None
        self._tell(study, "")
        task = self._executor.claim(study, fidelity, workplace)
        if task is None:  # another worker has it, or one of the devices
            return self._wait_for_others(study)
        request = task.claim.probe.request
        if not alone and self._must_be_alone(study, request):  # another one than was read
            self._executor.give_back(task.claim, "it has no neighbours")
            return None
        # a probe that was asked for is for its own sake, and a dry run has no time of its own
        if not self._options.queued_only and request.fidelity in PROBED:
            task = replace(task, give_up_above_s=give_up_above_s(study, request))
        self._executor.start(workplace, task)
        return None

    def _acquire(self, study: Study, *, alone: bool) -> Workplace | None:
        """The devices; ``None`` where another study has them still, which is told by its name."""
        found = self._executor.acquire(alone=alone)
        if found is None and self._executor.is_waiting:
            others = self._store.neighbours(study.id, self._identity.host)
            whom = ", ".join(others) or "another probe"
            doing = f"waiting for {whom} on this machine, of {self._executor.holder}"
            self._tell(study, doing, waits=self._identity)
        return found

    def _tell(self, study: Study, doing: str, *, waits: WorkerIdentity | None = None) -> None:
        if study.reason != doing:
            retried(partial(self._store.tell, study.id, doing, waits=waits), self._stop)

    def _must_be_alone(self, study: Study, request: ProbeRequest) -> bool:
        """True for a probe without neighbours on this machine: it was asked for by itself, or
        decides, or its tensors travel over the links that all GPUs share."""
        if request.fidelity is Fidelity.PREDICTED:
            return False
        by_itself = self._options.queued_only
        return by_itself or request.settings.cpu_offload or is_final(study, request)

    def _end_of_queue(self, study: Study) -> int | None:
        if any(probe.state is ProbeState.RUNNING for probe in study.probes):
            self._executor.wait(PAUSE_S)
            return None
        if not self._began:  # another worker is at the study, and goes on
            return 0
        # a search that was not at its end before these probes is not at its end after them
        events = retried(partial(self._store.events, study.id), self._stop)
        last = max(n for n, event in enumerate(events) if event.kind is EventKind.ASKED)
        moves = [event.data for event in events[:last] if event.kind is EventKind.STUDY]
        before = {"state": StudyState.QUEUED, "reason": "", **(moves[-1] if moves else {})}
        if not events[last].data["again"] or before["state"] == StudyState.DONE:
            return self._finish(study, StudyState.DONE, "the probes that were asked for are done")
        state = StudyState(before["state"])
        state = StudyState.QUEUED if state is StudyState.RUNNING else state
        return self._finish(study, state, before["reason"])

    # The study

    def _finish(self, study: Study, state: StudyState, reason: str) -> int | None:
        """Ends the study; no exit code if it was asked again, or moved, meanwhile."""
        if not self._move(state, reason, revision=study.revision):
            return None
        log.info("the study is %s: %s", state, reason)
        return 0

    def _move(
        self,
        to: StudyState,
        reason: str = "",
        *,
        expect: StudyState = StudyState.RUNNING,
        revision: int | None = None,
    ) -> bool:
        move = partial(self._store.move, self._id, to, reason, expect={expect})
        return retried(partial(move, revision=revision, worker=self._identity), self._stop)

    def _why_spent(self, study: Study) -> str:
        """The budget of time that is spent; once it is, it is so until the study is asked again."""
        asked_at, why = self._spent
        if asked_at != study.asked_at or not why:
            why = self._time_left(study).why_spent
            self._spent = study.asked_at, why
        return why

    def _time_left(self, study: Study) -> "TimeLeft":
        # a study's budget is for its search
        limited = not (self._options.queued_only or self._options.predicts)
        asked_at, since = self._request_began
        if asked_at != study.asked_at:
            since = time.monotonic() if asked_at else since  # what was done before is not for it
            self._request_began = study.asked_at, since
        worked_s = time.monotonic() - since
        return time_left(study, worked_s, self._executor.running_s, limited=limited)


def probe_s(study: Study) -> float:
    """Seconds that a probe may take: as many as the longest one of those whose steps ran."""
    ran = (one.measurement for one in study.probes if one.measurement)
    return max((one.wall_s for one in ran if one.outcome in RAN), default=PROBE_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLeft:
    seconds: float = math.inf  # until its worker must end; infinite without a budget
    of_running_s: float = math.inf
    """For which the probes may run on: what they hold devices for counts too."""
    why_spent: str = ""  # the budget that is spent; empty while none is


def time_left(
    study: Study, worked_s: float, running_s: Sequence[float] = (), *, limited: bool = True
) -> TimeLeft:
    """The rest of a study's budgets, unless it is not ``limited``: they are for its search.

    ``worked_s`` are the seconds that the worker has been at this request, by a clock that nobody
    sets: neither those that a study waits for a worker, nor those of earlier requests.
    ``running_s`` are those for which each probe of the worker's runs already.
    """
    if not limited:
        return TimeLeft()
    limits, study = study.limits, study.at(study.limits.fidelity)
    seconds = math.inf if limits.wall_s is None else limits.wall_s - worked_s
    devices_s = math.inf  # of one probe more: a dry run or a rehearsal holds none
    if limits.fidelity in PROBED:
        devices_s = remaining_device_time_s(study) - math.fsum(running_s)
    why = ""
    if limits.wall_s is not None and seconds <= 0:
        why = wall_is_spent(limits.wall_s)
    elif limits.device_s is not None and devices_s <= 0:
        why = device_time_is_spent(limits.device_s)
    of_running_s = min(seconds, devices_s / max(len(running_s), 1))
    return TimeLeft(seconds=seconds, of_running_s=of_running_s, why_spent=why)
