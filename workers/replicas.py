"""Trains replicas on CPU processes of this machine, and says what each shows of its configuration.

A replica is a small model with the same structure as a study's, trained under a configuration and
by one process, to see that both train the same. Finalists of a study are checked before they are
suggested; ``tuner doctor`` checks a usual model for every knob.
"""

import logging
import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.core.framework import installed_versions
from tuner.core.measurement import PROBED, CheckState, Measurement, Outcome
from tuner.core.study import Study
from tuner.errors import ProbeError
from tuner.guard.check import GuardCheck, check_state_of, deviations, judge
from tuner.guard.faults import blamed_by_counts, replicas_of
from tuner.guard.replica import Replica, replica_of, stack_of, usual_cases
from tuner.planner import to_guard
from tuner.planner.knowledge import learned
from tuner.store import Store
from workers.devices import DeviceLocks, default_lock_path, devices_here
from workers.launchers.base import Launcher
from workers.launchers.local import LocalLauncher, series_argv
from workers.measuring.ranks import Kind, WarmRanks
from workers.measuring.records import default_probes_folder

# For one replica. The first takes 10 to 20 s on two cores, most of it imports; others share those.
DEADLINE_S = 240.0
POLL_S = 0.1

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class ReplicaTrainer:
    """Trains replicas, and remembers their references and which finalists it has tried."""

    pause: Callable[[float], str]
    """Waits for so many seconds; the reason to stop, empty while there is none."""
    launcher: Launcher = field(default_factory=LocalLauncher)
    folder: Path = field(default_factory=default_probes_folder)
    argv: Callable[[Path], tuple[str, ...]] = series_argv
    deadline_s: float = DEADLINE_S
    _references: dict[str, Measurement] = field(default_factory=dict)
    _tried: set[str] = field(default_factory=set)
    _until: float = math.inf

    # Of a study's finalists

    def unchecked(self, study: Study) -> list[Replica]:
        """The replicas of the answer, and of what ties with it, that are not checked yet.

        None for predicted answers; none where other versions are asked about than those that are
        installed: what trains here says nothing of them.
        """
        question = study.question
        if study.limits.fidelity not in PROBED:
            return []
        asked = stack_of(question.framework.versions, question.workload)
        if asked != stack_of(installed_versions(), question.workload):
            return []
        finalists = {
            replica.key(question.framework.versions): replica
            for settings in to_guard(learned(study, study.limits.fidelity))
            for replica in replicas_of(question, settings)
        }
        decided = {k for k, v in study.guards.items() if v.result is not CheckState.NOT_CHECKED}
        return [one for key, one in finalists.items() if key not in decided | self._tried]

    def train_finalists(
        self, requested: Sequence[Replica], deadline_s: float
    ) -> Generator[GuardCheck, None, None]:
        """The checks of finalists, each as soon as it is done; none is tried again.

        Where ranks of replicas cannot be run here, the answer stands without a check: those that
        are left are ``not_checked``, with the reason.
        """
        log.info("training %d small replicas of the finalists", len(requested))
        versions = installed_versions()
        left = {one.key(versions): one for one in requested}
        self._tried |= left.keys()
        try:
            for check in self.train(requested, deadline_s=deadline_s):
                left.pop(check.key, None)
                log.info("replica: %s %s [%s]", check.result, check.detail, check.structure)
                yield check
        except ProbeError as error:
            log.warning("small replicas could not be trained: %s", error)
            why = f"its small replica could not be trained: {error}"
            for one in left.values():
                yield _check(one, Outcome.CRASHED, why, versions)

    # Training

    def train(
        self, requested: Sequence[Replica], *, deadline_s: float = math.inf
    ) -> Generator[GuardCheck, None, None]:
        """The checks of replicas, each as soon as it is done, those of few ranks first.

        Replicas of equal ranks share processes. One that could not be trained to its end is
        ``not_checked``, with the reason.
        """
        self._until = time.monotonic() + deadline_s
        versions = installed_versions()
        by_ranks = sorted(requested, key=lambda one: one.cluster.world_size)
        references = {one.reference.key(versions): one.reference for one in by_ranks}
        found: dict[str, Measurement] = {}
        with WarmRanks(launcher=self.launcher, argv=self.argv, folder=self.folder) as ranks:
            for key, reference in references.items():
                found[key] = self._references.get(key) or self._train_one(reference, ranks)
                if found[key].outcome is Outcome.OK:
                    self._references[key] = found[key]
            for one in by_ranks:
                if (key := one.key(versions)) not in found:
                    found[key] = self._train_one(one, ranks)
                alone = found[one.reference.key(versions)]
                yield _compared(one, versions, found[key], alone)

    def _train_one(self, replica: Replica, ranks: WarmRanks) -> Measurement:
        """Trains a replica, unless there is no time for it."""
        if why := self.pause(0):
            return Measurement(outcome=Outcome.CANCELLED, detail=why)
        deadline_s = min(self.deadline_s, self._until - time.monotonic())
        if deadline_s <= 0:
            return Measurement(outcome=Outcome.TIMEOUT, detail="no time was left for it")
        size = replica.cluster.world_size
        kind = Kind(ranks=size, world_size=size, device="cpu")
        probed = ranks.measure(kind, replica.spec(), deadline_s=deadline_s, pause=self.pause)
        return probed.measurement


def _compared(
    replica: Replica, versions: Mapping[str, str], found: Measurement, reference: Measurement
) -> GuardCheck:
    knob = blamed_by_counts(replica.settings, replica.cluster.world_size, found)
    outcome, detail, worst = found.outcome, found.detail, None
    if reference.outcome is not Outcome.OK and outcome in (Outcome.OK, Outcome.NON_FINITE):
        outcome = Outcome.CRASHED  # what one process cannot train shows nothing of the settings
        detail = f"one process could not train it: {reference.outcome} {reference.detail}"
    elif outcome is Outcome.OK:
        outcome, detail, knob = judge(replica, found, reference)
        worst = max(step.relative for step in deviations(found, reference))
    worst = worst if worst is not None and math.isfinite(worst) else None
    check = _check(replica, outcome, detail, versions)
    ran = {**check.versions, **stack_of(found.versions, replica.workload)}
    return replace(check, worst=worst, knob=knob, versions=ran)


def _check(
    replica: Replica, outcome: Outcome, detail: str, versions: Mapping[str, str]
) -> GuardCheck:
    return GuardCheck(
        key=replica.key(versions),
        family=replica.family,
        result=check_state_of(outcome),
        outcome=outcome,
        model_type=replica.workload.model.model_type,
        detail=detail,
        structure=replica.structure,
        settings=replica.settings.as_dict(),
        ranks=replica.cluster.world_size,
        precision=str(replica.workload.precision),
        versions=stack_of(versions, replica.workload),
        notes=replica.notes,
    )


def check_knobs_here(store: Store, pause: Callable[[float], str]) -> bool:
    """Trains the replicas of a usual model for every knob, and keeps each check once it is done;
    true if it came to its end before it had to stop."""
    locks = DeviceLocks(default_lock_path(), [device.name for device in devices_here()])
    while not locks.acquire():
        if pause(POLL_S):
            return False
    requested = [replica_of(question, settings) for question, settings in usual_cases()]
    try:
        with closing(ReplicaTrainer(pause=pause).train(requested)) as checks:
            for check in checks:
                if check.outcome is not Outcome.CANCELLED:
                    store.keep_check(check)
    finally:
        locks.release()
    return not pause(0)
