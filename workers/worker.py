"""The worker: plans a study's probes, runs them one at a time, and records what they found."""

import logging
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

from tuner.advance import (
    advance_from_cache,
    end_of,
    kept_dry_run,
    measurement_of,
    plan_here,
)
from tuner.dryrun import NotDryRunError, StoppedError
from tuner.errors import ProbeError, StoreError, TunerError, UsageError
from tuner.measurement import Fidelity, Measurement, Outcome
from tuner.planner import Stop, Wait, next_probe
from tuner.planner.early import give_up_above_s
from tuner.store import LEASE_S, Claim, Store, WorkerIdentity
from tuner.study import ProbeRequest, ProbeState, Study, StudyState
from workers.dry_runs import DryRuns
from workers.files import write_result
from workers.finalists import Finalists
from workers.folders import keep_folder, make_folder, remove_leftovers
from workers.guard import Guard
from workers.launchers.base import Launcher
from workers.launchers.local import LocalLauncher
from workers.lease import Lease
from workers.machine import Turn, check_machine
from workers.measure import measure
from workers.options import Options
from workers.stop import StopRequest
from workers.time_left import TimeLeft
from workers.warm import WarmRanks

T = TypeVar("T")

PAUSE_S = 0.5
"""Between two looks at a study whose probe another worker runs."""
TURN_S = 2.0
"""Of waiting for another study's probe on this machine, between two looks at one's own study."""
ROOM_S = 0.2
"""For another study to take the turn that it waits for: it looks more often than this."""
STORE_PATIENCE_S = 60.0
"""For a store that does not answer: as long as a lease, after which probes are others'."""
RECORD_PATIENCE_S = 600.0
"""For recording what a probe has found, which cost minutes of devices."""
RETRY_S = 1.0
"""Between two tries of the store."""
INTERRUPTED = 130
"""Exit code after a request to stop, as shells have it for Ctrl-C."""

log = logging.getLogger(__name__)


class Worker:
    """Works at one study until it is answered, or a stop is requested."""

    def __init__(
        self,
        store: Store,
        study_id: str,
        *,
        stop: StopRequest,
        launcher: Launcher | None = None,
        options: Options | None = None,
    ) -> None:
        self._store = store
        self._id = study_id
        self._stop = stop
        self._options = options or Options()
        self._ranks = WarmRanks(
            launcher=launcher or LocalLauncher(),
            argv=self._options.argv,
            folder=self._options.folder,
            keep=not self._options.cold,
        )
        self._identity = WorkerIdentity.of_this_process()
        self._turn = Turn(self._options.lock)
        self._dry_runs = DryRuns(self._options.dry_runner)
        self._started = time.monotonic()
        self._finalists = Finalists(
            Guard(pause=stop.wait, folder=self._options.folder, argv=self._options.twin_argv)
        )
        self._waiting = False
        self._began = False
        self._stands_in: bool | None = None  # not known until the machine was checked

    def run(self) -> int:
        """Work; the exit code.

        Raises:
            ProbeError: no probe can be run here; the study has failed if this worker began it.
            StoreError: the store did not answer for longer than a while.
            UsageError: there is no such study.
        """
        remove_leftovers(self._options.folder)
        try:
            with self._dry_runs, self._ranks:
                while not (why := self._stop.wait(0)):
                    code = self._step()
                    if code is not None:
                        return code
        except ProbeError as error:
            if self._began:
                self._move(StudyState.FAILED, str(error))
            raise
        finally:
            self._turn.give()
        log.info("%s", why)
        self._move(StudyState.QUEUED, "interrupted")
        return INTERRUPTED

    def _step(self) -> int | None:
        """Do the next thing; an exit code when there is nothing more to do."""
        self._make_room()
        self._patiently(self._store.reap)
        study = self._patiently(lambda: self._store.study(self._id))
        if study.state is StudyState.QUEUED:
            self._began = self._move(StudyState.RUNNING, expect=StudyState.QUEUED)
            return None  # to read it again
        if study.state is not StudyState.RUNNING:
            log.info("the study is %s: %s", study.state, study.reason)
            return 0
        fidelity = self._prepare(study)
        if why := self._time_left(study).why_spent:
            return self._finish(study, StudyState.DONE, why)
        if any(probe.state is ProbeState.QUEUED for probe in study.at(fidelity).probes):
            self._run_next(study, fidelity)
            return None
        return self._run_out(study) if self._options.queued_only else self._plan(study)

    def _prepare(self, study: Study) -> Fidelity:
        """Check that probes can be run here; the fidelity of those that are."""
        fidelity = self._options.fidelity or study.terms.fidelity
        if fidelity is Fidelity.PREDICTED:
            self._dry_runs.start()  # it imports torch while the study is planned
        elif self._stands_in is None:
            self._stands_in = check_machine(study.question, fidelity)
        return fidelity

    def _plan(self, study: Study) -> int | None:
        if study.terms.fidelity is Fidelity.PREDICTED:
            study = self._patiently(partial(advance_from_cache, self._store, study))
            if end := end_of(study):
                return self._finish(study, *end)
        plan = next_probe(study)
        if isinstance(plan, Stop):
            if self._guard_finalists(study):
                return None  # what failed is not suggested, and another may lead now
            if plan.nothing_fits:
                reason = f"{plan.reason}: {plan.nothing_fits}"
                return self._finish(study, StudyState.FAILED, reason)
            return self._finish(study, StudyState.DONE, plan.reason)
        if isinstance(plan, Wait):
            self._stop.wait(PAUSE_S)
            return None
        limit_bytes = study.terms.limit_bytes(study.question.cluster)
        enter = partial(self._store.enter_probe, study.id, study.revision, plan, limit_bytes)
        self._patiently(enter)
        return None

    def _guard_finalists(self, study: Study) -> bool:
        """Train the twins of the answer and of its rivals; whether to read the study again."""
        asked = self._finalists.wanted(study) if self._options.guards else []
        if not asked:
            return False
        self._ranks.end()  # nothing more is planned for them
        if not self._take_turn():
            return True
        try:
            with closing(self._finalists.train(asked, self._time_left(study).seconds)) as verdicts:
                for verdict in verdicts:
                    if verdict.outcome is not Outcome.CANCELLED:
                        self._patiently(partial(self._store.keep_verdict, verdict))
        finally:
            self._turn.give()
        return True

    def _run_out(self, study: Study) -> int | None:
        """Nothing is queued, and nothing is to be planned."""
        if any(probe.state is ProbeState.RUNNING for probe in study.probes):
            self._stop.wait(PAUSE_S)
            return None
        if not self._began:  # another worker is at the study, and goes on
            return 0
        return self._finish(study, StudyState.DONE, "the probes that were asked for are done")

    def _run_next(self, study: Study, fidelity: Fidelity) -> None:
        """Claim a queued probe and run it, when it is our turn on this machine.

        Dry runs wait for no turn: nothing of theirs is timed.
        """
        is_dry_run = fidelity is Fidelity.PREDICTED
        if not is_dry_run and not self._take_turn():
            return
        try:
            claimed_at = time.monotonic()
            take = partial(self._store.claim, study.id, self._identity, fidelity)
            claim = self._patiently(take)
            if claim is None:  # another worker has it
                self._stop.wait(PAUSE_S)
                return
            beat = partial(self._store.beat, claim)
            with Lease(beat, claimed_at=claimed_at, lease_s=LEASE_S) as lease:
                run = self._run_dry if is_dry_run else self._run_claim
                run(study, claim, lease)
        finally:
            if not self._ranks.alive:
                self._turn.give()

    def _make_room(self) -> None:
        """Give the turn when there are no ranks, which hold memory; end them if another waits."""
        if not self._ranks.alive:
            self._turn.give()
        elif self._turn.wanted:
            self._ranks.end()
            self._turn.give()
            self._stop.wait(ROOM_S)

    def _take_turn(self) -> bool:
        """Whether it is our turn now, or soon; the study may change while we wait for longer."""
        until = time.monotonic() + TURN_S
        while not self._turn.take():
            if not self._waiting:
                log.info("waiting for another study's probe on this machine")
            self._waiting = True
            if self._stop.wait(0.05) or time.monotonic() > until:
                return False
        self._waiting = False
        return True

    def _run_claim(self, study: Study, claim: Claim, lease: Lease) -> None:
        deadline_s = min(self._options.deadline_s, self._time_left(study).of_probe_s)
        try:
            measurement = measure(
                study,
                claim.probe,
                self._ranks,
                stands_in=bool(self._stands_in),
                deadline_s=deadline_s,
                give_up_above_s=self._give_up_above_s(study, claim.probe.request),
                pause=lambda seconds: self._stop.wait(seconds) or lease.over,
            )
        except ProbeError as error:
            self._give_back(claim, str(error))
            raise
        if measurement.outcome is Outcome.CANCELLED:
            self._give_back(claim, self._stop.wait(0) or lease.over)
        elif measurement.outcome is Outcome.TIMEOUT and deadline_s < self._options.deadline_s:
            # Ended for the budget's sake, which says nothing about the settings.
            self._give_back(claim, "the study's time is spent")
        else:
            self._record(claim, measurement)

    def _run_dry(self, study: Study, claim: Claim, lease: Lease) -> None:
        """Dry-run the class of a claim's settings, or take the dry run that is kept."""
        settings, began = claim.probe.request.settings, time.monotonic()
        until = began + self._time_left(study).seconds

        def why_stop() -> str:
            spent = "the study's time is spent" if time.monotonic() > until else ""
            return self._stop.wait(0) or lease.over or spent

        find = partial(kept_dry_run, self._store, study.question, claim.probe.request)
        try:
            found = self._patiently(find)
            if found is None:
                found = self._dry_runs.make(plan_here(study.question, settings), why_stop)
                if found.is_kept:
                    self._patiently(partial(self._store.keep_dry_run, found))
        except (StoppedError, NotDryRunError) as error:
            self._give_back(claim, str(error))
            if isinstance(error, NotDryRunError):
                raise ProbeError(str(error)) from error
            return
        wall_s = time.monotonic() - began
        measurement = measurement_of(study.question, settings, found, wall_s=wall_s)
        record = partial(self._store.record, claim, measurement)
        recorded = self._patiently(record, RECORD_PATIENCE_S)
        self._tell(claim, measurement, recorded=recorded)

    def _record(self, claim: Claim, measurement: Measurement) -> None:
        """Record what was found; it is kept in a folder if the store never answers."""
        record = partial(self._store.record, claim, measurement)
        try:
            recorded = self._patiently(record, RECORD_PATIENCE_S)
        except TunerError as error:
            kept = self._keep(claim, measurement)
            raise StoreError(f"{error}; a result is kept in {kept}") from error
        self._tell(claim, measurement, recorded=recorded)

    def _keep(self, claim: Claim, measurement: Measurement) -> Path:
        folder = make_folder(self._options.folder, str(claim.probe.id))
        write_result(folder, measurement)
        return keep_folder(folder)

    def _tell(self, claim: Claim, measurement: Measurement, *, recorded: bool) -> None:
        text = f"{measurement.outcome} after {measurement.wall_s:.1f} s"
        if measurement.detail:
            text += f": {measurement.detail}"
        if not recorded:
            text += " (not recorded: the claim was lost)"
        log.info("probe %d: %s [%s]", claim.probe.id, text, claim.probe.request.settings)

    def _give_back(self, claim: Claim, why: str) -> None:
        given = self._patiently(lambda: self._store.give_back(claim, why))
        log.info("probe %d: %s%s", claim.probe.id, why, "" if given else " (the claim was lost)")

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
        return self._patiently(lambda: move(revision=revision, worker=self._identity))

    def _give_up_above_s(self, study: Study, request: ProbeRequest) -> float | None:
        if self._options.queued_only:  # a probe that was asked for is for its own sake
            return None
        return give_up_above_s(study, request)

    def _time_left(self, study: Study) -> TimeLeft:
        limited = not self._options.queued_only  # a study's budget is for its search
        return TimeLeft(study, time.monotonic() - self._started, limited=limited)

    def _patiently(self, call: Callable[[], T], patience_s: float = STORE_PATIENCE_S) -> T:
        """Call the store, again and again while it fails; not when a stop is requested."""
        until = time.monotonic() + patience_s
        while True:
            try:
                return call()
            except TunerError as error:
                if not _may_pass(error) or time.monotonic() > until or self._stop.wait(0):
                    raise
                log.warning("%s; trying again", error)
                self._stop.wait(RETRY_S)


def _may_pass(error: TunerError) -> bool:
    """Whether it is the database's trouble, and no mistake of anybody's."""
    return isinstance(error, StoreError) or (isinstance(error, UsageError) and error.field == "db")
