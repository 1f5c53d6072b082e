"""Trains twins on CPU processes of this machine, and says what that shows of their settings."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.framework import installed_versions
from tuner.guard.twin import Twin, family_of, stack_of, twin_of
from tuner.guard.usual import usual_cases
from tuner.guard.verdict import Verdict, deviations, judge, ruling_of
from tuner.measurement import Measurement, Outcome
from tuner.store import Store
from workers.files import SPEC, write_spec
from workers.folders import default_probes_folder, make_folder, remove_folder
from workers.launchers.base import Ended, Job, Launcher, RankEnd, Why
from workers.launchers.local import LocalLauncher, series_argv
from workers.machine import Turn, default_lock_path
from workers.merge import merge
from workers.records import BadRecord, read_records

DEADLINE_S = 240.0
"""For all twins of one number of ranks. One takes 10 to 20 s on two cores, most of it imports."""
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
    """For all twins of one number of ranks."""
    _references: dict[str, Measurement] = field(default_factory=dict)
    _until: float = math.inf

    def check(self, asked: Sequence[Asked], *, deadline_s: float = math.inf) -> list[Verdict]:
        """The verdicts on twins, in their order. Those of equal ranks share processes.

        A twin that could not be trained to its end is ``not_checked``, with the reason.

        Args:
            asked: the twins.
            deadline_s: seconds for all of them.

        Raises:
            ProbeError: there is no place for their files.
        """
        self._until = time.monotonic() + deadline_s
        versions = stack_of(installed_versions())
        found = self._train([one.twin for one in asked], versions)
        return [_verdict(one, versions, found) for one in asked]

    def _train(self, twins: Sequence[Twin], versions: Mapping[str, str]) -> dict[str, Measurement]:
        """What twins found, by key; their references are trained where they are not known."""
        references = {t.reference.key(versions): t.reference for t in twins}
        unknown = [t for key, t in references.items() if key not in self._references]
        by_ranks: dict[int, list[Twin]] = defaultdict(list)
        for twin in (*unknown, *twins):
            by_ranks[twin.cluster.world_size].append(twin)
        found: dict[str, Measurement] = {}
        for ranks in sorted(by_ranks):
            distinct = {t.key(versions): t for t in by_ranks[ranks]}
            found |= dict(zip(distinct, self._run(list(distinct.values())), strict=True))
        good = {k: m for k, m in found.items() if k in references and m.outcome is Outcome.OK}
        self._references |= good
        return self._references | found

    def _run(self, twins: Sequence[Twin]) -> list[Measurement]:
        """Train twins of one number of ranks; those after one that failed in new processes."""
        done: list[Measurement] = []
        why = ""
        while len(done) < len(twins) and not (why := self.pause(0)):
            done += self._launch(twins[len(done) :])
        rest = len(twins) - len(done)
        return done + [Measurement(outcome=Outcome.CANCELLED, detail=why)] * rest if rest else done

    def _launch(self, twins: Sequence[Twin]) -> list[Measurement]:
        """Measurements of the first ones of ``twins``: up to one that failed, or all."""
        folder = make_folder(self.folder, "guard")
        try:
            return self._launch_in(folder, twins)
        except OSError as error:
            detail = f"the ranks could not be started: {error}"
            return [Measurement(outcome=Outcome.CRASHED, detail=detail)]
        finally:
            remove_folder(folder)

    def _launch_in(self, folder: Path, twins: Sequence[Twin]) -> list[Measurement]:
        ranks = twins[0].cluster.world_size
        places = [folder / f"{i:03d}" for i in range(len(twins))]
        for place, twin in zip(places, twins, strict=True):
            place.mkdir()
            write_spec(place, twin.spec())
        deadline_s = max(1.0, min(self.deadline_s, self._until - time.monotonic()))
        job = Job(
            argv=self.argv(folder),
            directory=folder,
            ranks=ranks,
            device="cpu",
            deadline_s=deadline_s,
        )
        run = self.launcher.start(job)
        try:
            while (ended := run.poll()) is None:
                if self.pause(POLL_S):
                    ended = run.cancel()
                    break
        except BaseException:
            run.cancel()
            raise
        return list(_measurements(places, ranks, ended, run.logs(), deadline_s))


def _verdict(
    asked: Asked, versions: Mapping[str, str], all_found: Mapping[str, Measurement]
) -> Verdict:
    """What a twin and its reference have found."""
    twin = asked.twin
    found, reference = (all_found[t.key(versions)] for t in (twin, twin.reference))
    outcome, detail, worst = found.outcome, found.detail, None
    if reference.outcome is not Outcome.OK and outcome in (Outcome.OK, Outcome.NON_FINITE):
        outcome = Outcome.CRASHED  # what one process cannot train shows nothing of the settings
        detail = f"one process could not train it: {reference.outcome} {reference.detail}"
    elif outcome is Outcome.OK:
        outcome, detail = judge(twin, found, reference)
        worst = max(step.relative for step in deviations(found, reference))
    return Verdict(
        key=twin.key(versions),
        family=asked.family,
        ruling=ruling_of(outcome),
        outcome=outcome,
        model_type=twin.workload.model.model_type,
        detail=detail,
        structure=twin.structure,
        settings=twin.settings.as_dict(),
        worst=worst if worst is not None and math.isfinite(worst) else None,
        versions={**versions, **stack_of(found.versions)},
        notes=twin.notes,
    )


def check_knobs_here(store: Store, pause: Callable[[float], str]) -> bool:
    """Train the twins of a usual model for every knob, and keep their verdicts.

    Returns:
        Whether it came to its end before it had to stop.

    Raises:
        StoreError: the database fails.
        ProbeError: there is no place for the twins' files.
    """
    turn = Turn(default_lock_path())
    while not turn.take():
        if pause(POLL_S):
            return False
    asked = [
        Asked(twin=twin_of(question, settings), family=family_of(question))
        for question, settings in usual_cases()
    ]
    try:
        verdicts = Guard(pause=pause).check(asked)
    finally:
        turn.give()
    for verdict in verdicts:
        if verdict.outcome is not Outcome.CANCELLED:
            store.keep_verdict(verdict)
    return not pause(0)


def _measurements(
    places: Iterable[Path],
    ranks: int,
    ended: Ended,
    logs: Mapping[int, str],
    deadline_s: float,
) -> Iterable[Measurement]:
    """What each twin found, up to the first whose ranks did not all come to its end."""
    for place in places:
        assert (place / SPEC).exists()
        records = read_records(place, ranks)
        complete = all(
            not isinstance(record, BadRecord) and record.outcome is Outcome.OK for record in records
        )
        how = _well(ended) if complete else ended
        yield merge(how, records, logs, deadline_s=deadline_s)
        if not complete:
            return


def _well(ended: Ended) -> Ended:
    """As if the ranks had ended with this twin, which all of them did to its end."""
    ranks = tuple(
        RankEnd(rank=end.rank, code=0, ended_at=end.ended_at, stopped=False) for end in ended.ranks
    )
    return replace(ended, why=Why.ENDED, ranks=ranks)
