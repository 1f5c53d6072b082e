"""Trains twins on CPU processes of this machine, and says what that shows of their settings."""

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.framework import installed_versions
from tuner.guard.counts import blamed_by_counts
from tuner.guard.twin import Twin, family_of, stack_of, twin_of
from tuner.guard.usual import usual_cases
from tuner.guard.verdict import Verdict, deviations, judge, ruling_of
from tuner.measurement import Measurement, Outcome
from tuner.store import Store
from workers.device_locks import default_lock_path
from workers.launchers.base import Launcher
from workers.launchers.local import LocalLauncher, series_argv
from workers.measuring.folders import default_probes_folder
from workers.measuring.warm import Kind, WarmRanks
from workers.placement import devices_here, turn_on_all

DEADLINE_S = 240.0
"""For one twin. The first takes 10 to 20 s on two cores, most of it imports; others share those."""
POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A twin to be judged."""

    twin: Twin
    """What to train."""
    family: str
    """Of its verdict (:func:`tuner.guard.twin.family_of`)."""

    @property
    def key(self) -> str:
        """Of its verdict, in the versions that are installed."""
        return self.twin.key(installed_versions())


@dataclass(slots=True, kw_only=True)
class Guard:
    """Trains twins, and remembers their references."""

    pause: Callable[[float], str]
    """Waits for so many seconds; why the guard must stop, empty while it must not."""
    launcher: Launcher = field(default_factory=LocalLauncher)
    """Starts ranks."""
    folder: Path = field(default_factory=default_probes_folder)
    """For the folders of twins."""
    argv: Callable[[Path], tuple[str, ...]] = series_argv
    """The command of a rank."""
    deadline_s: float = DEADLINE_S
    """For one twin."""
    _references: dict[str, Measurement] = field(default_factory=dict)
    _until: float = math.inf

    def check(
        self, asked: Sequence[Asked], *, deadline_s: float = math.inf
    ) -> Generator[Verdict, None, None]:
        """The verdicts on twins, each as soon as it is reached, those of few ranks first.

        Twins of equal ranks share processes. A twin that could not be trained to its end is
        ``not_checked``, with the reason.

        Args:
            asked: the twins.
            deadline_s: seconds for all of them.

        Raises:
            ProbeError: there is no place for their files, or a rank cannot be killed.
        """
        self._until = time.monotonic() + deadline_s
        versions = stack_of(installed_versions())
        by_ranks = sorted(asked, key=lambda one: one.twin.cluster.world_size)
        references = {one.twin.reference.key(versions): one.twin.reference for one in by_ranks}
        with WarmRanks(launcher=self.launcher, argv=self.argv, folder=self.folder) as ranks:
            found = self._train_references(references, ranks)
            for one in by_ranks:
                if (key := one.twin.key(versions)) not in found:
                    found[key] = self._train_one(one.twin, ranks)
                yield _verdict(one, versions, found)

    def _train_references(
        self, references: Mapping[str, Twin], ranks: WarmRanks
    ) -> dict[str, Measurement]:
        """What references found, by key; the good ones are trained once for all."""
        found = {
            key: self._references.get(key) or self._train_one(twin, ranks)
            for key, twin in references.items()
        }
        self._references |= {k: m for k, m in found.items() if m.outcome is Outcome.OK}
        return found

    def _train_one(self, twin: Twin, ranks: WarmRanks) -> Measurement:
        """Train a twin, unless there is no time for it."""
        if why := self.pause(0):
            return Measurement(outcome=Outcome.CANCELLED, detail=why)
        deadline_s = min(self.deadline_s, self._until - time.monotonic())
        if deadline_s <= 0:
            return Measurement(outcome=Outcome.TIMEOUT, detail="no time was left for it")
        size = twin.cluster.world_size
        kind = Kind(ranks=size, world_size=size, device="cpu")
        probed = ranks.measure(kind, twin.spec(), deadline_s=deadline_s, pause=self.pause)
        return probed.measurement


def _verdict(
    asked: Asked, versions: Mapping[str, str], all_found: Mapping[str, Measurement]
) -> Verdict:
    """What a twin and its reference have found."""
    twin = asked.twin
    found, reference = (all_found[t.key(versions)] for t in (twin, twin.reference))
    knob = blamed_by_counts(twin.settings, twin.cluster.world_size, found)
    outcome, detail, worst = found.outcome, found.detail, None
    if reference.outcome is not Outcome.OK and outcome in (Outcome.OK, Outcome.NON_FINITE):
        outcome = Outcome.CRASHED  # what one process cannot train shows nothing of the settings
        detail = f"one process could not train it: {reference.outcome} {reference.detail}"
    elif outcome is Outcome.OK:
        outcome, detail, knob = judge(twin, found, reference)
        worst = max(step.relative for step in deviations(found, reference))
    worst = worst if worst is not None and math.isfinite(worst) else None
    verdict = verdict_on(asked, outcome, detail, versions)
    ran = {**versions, **stack_of(found.versions)}
    return replace(verdict, worst=worst, knob=knob, versions=ran)


def verdict_on(asked: Asked, outcome: Outcome, detail: str, versions: Mapping[str, str]) -> Verdict:
    """The verdict on a twin that ended with an outcome in these versions of the stack."""
    twin = asked.twin
    return Verdict(
        key=twin.key(versions),
        family=asked.family,
        ruling=ruling_of(outcome),
        outcome=outcome,
        model_type=twin.workload.model.model_type,
        detail=detail,
        structure=twin.structure,
        settings=twin.settings.as_dict(),
        ranks=twin.cluster.world_size,
        precision=str(twin.workload.precision),
        versions=versions,
        notes=twin.notes,
    )


def check_knobs_here(store: Store, pause: Callable[[float], str]) -> bool:
    """Train the twins of a usual model for every knob, and keep each verdict when it is reached.

    Returns:
        Whether it came to its end before it had to stop.

    Raises:
        StoreError: the database fails.
        ProbeError: there is no place for the twins' files, or a rank cannot be killed.
    """
    turn = turn_on_all(default_lock_path(), devices_here())
    while not turn.take():
        if pause(POLL_S):
            return False
    asked = [
        Asked(twin=twin_of(question, settings), family=family_of(question))
        for question, settings in usual_cases()
    ]
    try:
        with closing(Guard(pause=pause).check(asked)) as verdicts:
            for verdict in verdicts:
                if verdict.outcome is not Outcome.CANCELLED:
                    store.keep_verdict(verdict)
    finally:
        turn.give()
    return not pause(0)
