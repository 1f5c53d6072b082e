"""The worker: plans a study's probes, has its slots run them, and ends the study."""

import logging
import math
import time
from contextlib import ExitStack, closing, nullcontext, suppress
from functools import partial

from tuner.answering.advance import advance_from_cache, end_of
from tuner.answering.known import as_predicted
from tuner.errors import ProbeError, TunerError
from tuner.measurement import RAN, Fidelity, Outcome
from tuner.planner import Stop, Wait, next_probe
from tuner.planner.early import give_up_above_s
from tuner.planner.finals import is_final
from tuner.store import Store, WorkerIdentity
from tuner.study import ProbeRequest, ProbeState, Study, StudyState
from workers.dry_runs import DryRuns
from workers.finalists import Finalists
from workers.guard import Guard
from workers.machine import check_machine, judged
from workers.measuring.folders import remove_leftovers
from workers.options import Options
from workers.retrying_store import Held, RetryingStore
from workers.scripts.slot import ScriptSlot
from workers.slot import DeviceSlot, DrySlot, Order
from workers.slot_setup import device_slots
from workers.slots import Slots
from workers.stop import StopRequest
from workers.time_left import TimeLeft

PAUSE_S = 0.5
"""Between two looks at a study whose probe another worker runs."""
INTERRUPTED = 130
"""Exit code after a request to stop, as shells have it for Ctrl-C."""
TIME_IS_SPENT = "the study's time is spent"
"""Why a probe is given back whose end the budget did not wait for."""

PROBE_S = 30.0
"""For a study's first probe, which starts its ranks; of a small model it takes less."""

log = logging.getLogger(__name__)


def probe_s(study: Study) -> float:
    """Seconds that a probe may take: as many as the longest one of those whose steps ran."""
    ran = (one.measurement for one in study.probes if one.measurement)
    return max((one.wall_s for one in ran if one.outcome in RAN), default=PROBE_S)


class Worker:
    """Works at one study until it is answered, or a stop is requested."""

    def __init__(
        self,
        store: Store,
        study_id: str,
        *,
        stop: StopRequest,
        options: Options | None = None,
        dry_runs: DryRuns | None = None,
        name: str = "",
    ) -> None:
        """A worker.

        Args:
            store: where the study is.
            study_id: its id.
            stop: asked all the while.
            options: how to work.
            dry_runs: the process that dry-runs, which then stays; one of its own unless given.
            name: what people see; host and process number unless given.
        """
        self._store = store
        self._id = study_id
        self._stop = stop
        self._options = options or Options()
        identity = WorkerIdentity.of_this_process(name)
        self._retrying = RetryingStore(store, stop, identity, self._options.folder)
        self._slots = Slots(self._retrying)
        self._dry_runs = dry_runs or DryRuns(self._options.dry_runner)
        self._keeps_dry_runs = dry_runs is not None
        self._asking = "", time.monotonic()  # when it was asked, and since when it is worked at
        self._finalists = Finalists(
            Guard(pause=stop.wait, folder=self._options.folder, argv=self._options.twin_argv)
        )
        self._began = False
        self._fidelity: Fidelity | None = None  # of the slots's slots
        self._study: Study | None = None  # as it was read last
        self._spent = "", ""  # when the study was asked, and which budget is spent since

    def run(self) -> int:
        """Work; the exit code.

        Raises:
            ProbeError: no probe can be run here. The study has failed if this worker began it, or
                is queued again where others may serve it.
            StoreError: the store did not answer for longer than a while.
            UsageError: there is no such study.
        """
        remove_leftovers(self._options.folder)
        with nullcontext() if self._keeps_dry_runs else self._dry_runs, self._slots:
            try:
                while not (why := self._stop.wait(0)):
                    code = self._step()
                    if code is not None:
                        return code
            except ProbeError as error:
                with suppress(TunerError):  # the first error is the one to be told
                    self._slots.give_up(str(error))
                if self._began:
                    serves = self._options.serves
                    self._move(StudyState.QUEUED if serves else StudyState.FAILED, str(error))
                raise
            self._slots.dismiss()
        log.info("%s", why)
        self._move(StudyState.QUEUED, "interrupted")
        return INTERRUPTED

    def _step(self) -> int | None:
        """Do the next thing; an exit code when there is nothing more to do."""
        if self._study is not None and self._slots.is_full:  # nothing to decide before one ends
            self._look_on(self._study, math.inf)
            return None
        self._slots.make_room()
        self._retrying.patiently(self._store.reap)
        self._study = study = self._retrying.patiently(partial(self._store.study, self._id))
        if study.state is StudyState.QUEUED:
            self._began = self._move(StudyState.RUNNING, expect=StudyState.QUEUED)
            return None  # to read it again
        if study.state is not StudyState.RUNNING:
            log.info("the study is %s: %s", study.state, study.reason)
            return 0
        fidelity = self._prepare(study)
        if why := self._why_spent(study):
            if self._slots.is_busy:
                self._slots.give_up(TIME_IS_SPENT)
                return None  # to read it again
            return self._finish(study, StudyState.DONE, why)
        queued = [p for p in study.at(fidelity).probes if p.state is ProbeState.QUEUED]
        if queued:
            return self._begin(study, fidelity, queued[0].request)
        if self._options.queued_only:
            return self._run_out(study)
        return self._foresee(study) if self._options.foresees else self._plan(study)

    def _look_on(self, study: Study, seconds: float) -> None:
        """Wait until a probe ends, but not longer than budgets last: what runs then is ended."""
        self._slots.wait(min(seconds, self._time_left(study).of_running_s))
        if self._slots.is_busy and self._why_spent(study):
            self._slots.give_up(TIME_IS_SPENT)

    # Planning

    def _plan(self, study: Study) -> int | None:
        if study.terms.fidelity is Fidelity.PREDICTED:
            study = self._retrying.patiently(partial(advance_from_cache, self._store, study))
            if end := end_of(study):
                return self._finish(study, *end)
        plan = next_probe(study, beside=self._has_room(study))
        if isinstance(plan, Wait):
            self._slots.rest()
            return self._wait_for_others(study)
        if isinstance(plan, Stop):
            return self._end(study, plan)
        self._enter(study, plan)
        return None

    def _foresee(self, study: Study) -> int | None:
        """Make the dry runs of what is known of the study until its probes say more."""
        advance = partial(advance_from_cache, self._store, study, view=as_predicted)
        study = self._retrying.patiently(advance)
        foreseen = as_predicted(study)
        plan = next_probe(foreseen)
        if isinstance(plan, Wait):
            return self._wait_for_others(study)
        if isinstance(plan, Stop) or end_of(foreseen):
            runs = any(probe.state is ProbeState.RUNNING for probe in study.probes)
            if self._began and not runs:  # its probes are others' to run
                self._move(StudyState.QUEUED)
            return 0
        self._enter(study, plan)
        return None

    def _enter(self, study: Study, plan: ProbeRequest) -> None:
        limit_bytes = study.terms.limit_bytes(study.question.cluster)
        enter = partial(self._store.enter_probe, study.id, study.revision, plan, limit_bytes)
        self._retrying.patiently(enter)

    def _wait_for_others(self, study: Study) -> int | None:
        """Look on for a moment; the exit code where other studies may want this worker."""
        if self._options.serves and not self._slots.is_busy:
            return 0
        self._look_on(study, PAUSE_S)
        return None

    def _has_room(self, study: Study) -> bool:
        """Whether another probe could begin at once, beside those on their way."""
        if all(probe.state is ProbeState.DONE for probe in study.probes):
            return False
        return self._slots.take_free() is not None

    def _end(self, study: Study, plan: Stop) -> int | None:
        """End a study of which nothing more is to be probed, after a look at its finalists."""
        if self._guard_finalists(study):
            return None  # what failed is not suggested, and another may lead now
        if plan.failure:
            return self._finish(study, StudyState.FAILED, plan.failure)
        return self._finish(study, StudyState.DONE, plan.reason)

    def _guard_finalists(self, study: Study) -> bool:
        """Train the twins of the answer and of its rivals; whether to read the study again."""
        asked = self._finalists.wanted(study) if self._options.guards else []
        if not asked:
            return False
        self._slots.end_ranks()  # nothing more is planned for them
        slot = self._slots.take(alone=True)
        if slot is None:
            return True
        began = time.monotonic()
        try:
            with closing(self._finalists.train(asked, self._time_left(study).seconds)) as verdicts:
                for verdict in verdicts:
                    if verdict.outcome is not Outcome.CANCELLED:
                        self._retrying.patiently(partial(self._store.keep_verdict, verdict))
        finally:
            slot.rest()
        taken_s = time.monotonic() - began
        self._retrying.patiently(partial(self._store.add_guard_time, study.id, taken_s))
        return True

    def _run_out(self, study: Study) -> int | None:
        """Nothing is queued, and nothing is to be planned."""
        if any(probe.state is ProbeState.RUNNING for probe in study.probes):
            self._slots.wait(PAUSE_S)
            return None
        if not self._began:  # another worker is at the study, and goes on
            return 0
        return self._finish(study, StudyState.DONE, "the probes that were asked for are done")

    # Running

    def _prepare(self, study: Study) -> Fidelity:
        """Have slots for probes of the fidelity that is run here."""
        fidelity = self._options.fidelity or study.terms.fidelity
        if self._options.foresees:
            fidelity = Fidelity.PREDICTED
        if fidelity is self._fidelity:
            return fidelity
        if fidelity is Fidelity.PREDICTED:
            self._dry_runs.start()  # it imports torch while the study is planned
            self._slots.hire([DrySlot(self._retrying, self._dry_runs)], ExitStack())
        else:
            cluster, there = study.question.cluster, judged(self._options.site)
            stands_in = check_machine(study.question, fidelity, there)
            slots = device_slots(
                self._retrying,
                cluster,
                fidelity,
                options=self._options,
                stands_in=stands_in,
                place_for=_place_for(study, self._options),
            )
            self._slots.hire(*slots)
        self._fidelity = fidelity
        return fidelity

    def _begin(self, study: Study, fidelity: Fidelity, queued: ProbeRequest) -> int | None:
        """Claim a queued probe, and have it run, when it is our turn on its devices."""
        if self._leaves(study, fidelity):
            return None
        alone = self._must_be_alone(study, queued)
        slot = self._slots.take(alone=alone)
        if slot is None:
            return None
        held = self._retrying.claim(study.id, fidelity, slot.devices)
        if held is None:  # another worker has it, or one of the devices
            self._slots.put_last(slot)
            return self._wait_for_others(study)
        request = held.claim.probe.request
        if not alone and self._must_be_alone(study, request):  # another one than was seen
            self._retrying.give_back(held.claim, "it has no neighbours")
            return None
        self._slots.start(slot, self._order(study, held, request))
        return None

    def _leaves(self, study: Study, fidelity: Fidelity) -> bool:
        """Whether another probe could not end before its devices are taken away.

        All that this worker does is ended then.
        """
        site = self._options.site
        if fidelity is Fidelity.PREDICTED or site.left_s > probe_s(study.at(fidelity)):
            return False
        self._stop.request(f"the time of {site.name} ends before another probe could")
        return True

    def _order(self, study: Study, held: Held, request: ProbeRequest) -> Order:
        # A probe that was asked for is for its own sake, and a dry run has no time of its own.
        is_asked = self._options.queued_only or request.fidelity is Fidelity.PREDICTED
        limit_s = None if is_asked else give_up_above_s(study, request)
        return Order(study=study, held=held, give_up_above_s=limit_s)

    def _must_be_alone(self, study: Study, request: ProbeRequest) -> bool:
        """Whether a probe is run without neighbours on this machine.

        It is one that was asked for by itself, one that decides, or one whose tensors travel over
        the links that all GPUs share.
        """
        if request.fidelity is Fidelity.PREDICTED:
            return False
        asked_for = self._options.queued_only
        return asked_for or request.settings.cpu_offload or is_final(study, request)

    # The study

    def _finish(self, study: Study, state: StudyState, reason: str) -> int | None:
        """End the study; no exit code if it was asked again, or moved, meanwhile."""
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
        worker = self._retrying.identity
        return self._retrying.patiently(partial(move, revision=revision, worker=worker))

    def _why_spent(self, study: Study) -> str:
        """Which budget of time is spent: once it is, it is so until the study is asked again."""
        asked_at, why = self._spent
        if asked_at != study.asked_at or not why:
            why = self._time_left(study).why_spent
            self._spent = study.asked_at, why
        return why

    def _time_left(self, study: Study) -> TimeLeft:
        # A study's budget is for its search.
        limited = not (self._options.queued_only or self._options.foresees)
        asked_at, since = self._asking
        if asked_at != study.asked_at:
            since = time.monotonic() if asked_at else since  # what was done before is not for it
            self._asking = study.asked_at, since
        worked_s = time.monotonic() - since
        return TimeLeft(study, worked_s, self._slots.running_s, limited=limited)


def _place_for(study: Study, options: Options) -> type[DeviceSlot]:
    """What runs a study's probes.

    Raises:
        ProbeError: they are of a script, and would not run on this machine.
    """
    if study.question.script is None:
        return DeviceSlot
    if not options.site.is_here:
        raise ProbeError(
            "a script is probed on the machine where it was asked about, and probes run on the"
            f" nodes of {options.site.name} here: ask in an allocation of one node"
        )
    return ScriptSlot
