"""Chooses the answer among the configurations that fit, and the last probes of a study: the leaders
again, so that the answer stands on more than one run.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import inf
from operator import attrgetter, ne

from tuner.core.answer import Reason
from tuner.core.configuration import BATCH, KNOBS, Settings
from tuner.core.evaluation import KNOBS_PASSED, Evaluation, Guard
from tuner.core.measurement import PROBED, CheckState, Outcome
from tuner.core.study import ProbeRequest, Question, Study
from tuner.guard.check import GuardCheck
from tuner.guard.faults import is_checked, known_checks, replicas_of
from tuner.guard.replica import STACK, NoReplicaError, stack_of
from tuner.planner.knowledge import Knowledge, outcome_of
from tuner.planner.timing import alike

# Part of the memory limit by which a configuration must be lighter to be preferred for it: less
# leaves no room for anything, and is often how two runs differ.
LIGHTER = 0.01

_CHOICES = attrgetter(*(knob for knob in KNOBS if knob not in BATCH))
_SIMPLEST = _CHOICES(Settings())


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer among configurations that fit."""

    best: Evaluation
    fastest: Evaluation  # the one with the shortest step; often the best itself
    tied: tuple[Evaluation, ...]
    """All that cannot be told apart from the fastest in speed, it included, fastest first."""
    is_checked: bool = False
    """The best goes first because it was seen to train what it should, and the fastest was not."""

    @property
    def reason(self) -> Reason:
        """Why the best goes before the fastest, where they are two."""
        if self.is_checked:
            return Reason.CHECKED
        return Reason.LIGHTER if is_lighter(self.best, self.fastest) else Reason.SIMPLER


def choose(question: Question, fitting: Sequence[Evaluation], tolerance: float) -> Choice | None:
    """The fastest, or one that cannot be told apart from it and is lighter or as light and simpler.

    Two findings cannot be told apart when each one's step time lies in the other's interval,
    or when they differ by ``tolerance`` (relative) or less.
    """
    return _choose(question, fitting, partial(indistinguishable, tolerance=tolerance))


def choose_predicted(
    question: Question,
    fitting: Sequence[Evaluation],
    tolerance: float,
    checked: Callable[[Settings], bool] = lambda _: False,
) -> Choice | None:
    """Chooses among predictions: two are tied when they differ by ``tolerance`` or less.

    Their intervals say nothing here. They are wide for what all configurations have in common, such
    as the rate that a kernel reaches, and that moves all of them together.
    """
    return _choose(question, fitting, partial(near, tolerance=tolerance), checked)


def _choose(
    question: Question,
    fitting: Sequence[Evaluation],
    same: Callable[[Evaluation, Evaluation], bool],
    checked: Callable[[Settings], bool] = lambda _: False,
) -> Choice | None:
    if not fitting:
        return None
    fastest = fitting[0]
    tied = tuple(f for f in fitting if same(fastest, f))
    if known := [f for f in tied if checked(f.settings)]:
        found = _choose(question, known, same)
        assert found is not None
        preferred = not checked(fastest.settings)
        return Choice(best=found.best, fastest=fastest, tied=tied, is_checked=preferred)

    # Intervals differ in width: what a third beats in both may still be tied with the fastest.
    def is_beaten(one: Evaluation) -> bool:
        return any(f.seconds < one.seconds and f.most_bytes < one.most_bytes for f in fitting)

    sound = [f for f in tied if not is_beaten(f)]
    if lighter := [f for f in sound if is_lighter(f, fastest)]:
        least = min(lighter, key=attrgetter("most_bytes"))
        pool = [f for f in lighter if not is_lighter(least, f)]
    else:
        pool = [f for f in sound if f.most_bytes <= fastest.most_bytes]
    best = min(pool, key=lambda f: (complexity(question, f.settings), f.seconds, str(f.settings)))
    return Choice(best=best, fastest=fastest, tied=tied)


def indistinguishable(one: Evaluation, other: Evaluation, tolerance: float) -> bool:
    return near(one, other, tolerance) or alike(one.spread_s, other.spread_s)


def is_lighter(one: Evaluation, other: Evaluation) -> bool:
    """True where one needs less memory than the other by as much as counts."""
    return other.most_bytes - one.most_bytes >= LIGHTER * one.limit_bytes


def near(one: Evaluation, other: Evaluation, tolerance: float) -> bool:
    """True of two speeds that differ by ``tolerance`` (relative) or less."""
    return abs(one.seconds - other.seconds) <= tolerance * min(one.seconds, other.seconds)


def complexity(question: Question, settings: Settings) -> int:
    """Knobs that are not at the framework's own value, batch sizes apart.

    What cannot be told apart from it in speed and memory is not worth an option in a file.
    """
    off: int = sum(map(ne, _CHOICES(settings), _SIMPLEST))
    # Where it makes a difference, accelerate and the Trainer put reductions off by themselves.
    ranks = settings.data_parallel_size(question.cluster.world_size)
    if question.framework.puts_off and ranks > 1 and settings.gradient_accumulation_steps > 1:
        off += 1 if settings.sync_each_batch else -1
    return off


def pareto(fitting: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """Lists those that no other beats in both memory and speed, fastest first."""
    front: list[Evaluation] = []
    for one in sorted(fitting, key=lambda f: (f.seconds, f.most_bytes, str(f.settings))):
        if not front or one.most_bytes < front[-1].most_bytes:
            front.append(one)
    return tuple(front)


# Probes that must be allowed before some are kept for repeating finalists.
REPEAT_FROM = 6

# Optimizer steps that a verification runs at least, warm-up included.
VERIFICATION_STEPS = 8


def finals(known: Knowledge, *, remaining_wall_s: float | None = None) -> list[ProbeRequest]:
    """The final probes that are still wanted, most wanted first; at most two.

    An answer whose time was extrapolated is verified at its full accumulation, if the time
    left allows it. An answer and a rival that cannot be told apart are run once more each.
    """
    # The answer so far, and its closest rival when the two cannot be told apart.
    fitting, limits = known.fitting, known.study.limits
    if (choice := choose(known.study.question, fitting, limits.tolerance)) is None:
        return []
    rivals = [f for f in (choice.fastest, *fitting) if f is not choice.best][:1]
    if limits.max_probes < REPEAT_FROM or not (
        rivals and indistinguishable(choice.best, rivals[0], limits.tolerance)
    ):
        rivals = []
    leaders = [choice.best, *rivals] if choice.best.extrapolated or rivals else []
    wanted = []
    for finding in leaders:
        # A later probe than the one that ended well first means that it was repeated.
        repetition = known.repetitions[finding.settings]
        if repetition != finding.probes[0].request.repetition + 1:
            continue
        needed_s = VERIFICATION_STEPS * finding.seconds if finding.extrapolated else 0.0
        if remaining_wall_s is None or needed_s <= remaining_wall_s or not finding.extrapolated:
            wanted.append(
                ProbeRequest(
                    settings=finding.settings,
                    fidelity=known.study.limits.fidelity,
                    repetition=repetition,
                )
            )
    return wanted


def is_final(study: Study, request: ProbeRequest) -> bool:
    """Says if a probe repeats what ended well: its time decides, so it has no neighbours."""
    return any(
        probe.request.settings == request.settings and outcome_of(probe) is Outcome.OK
        for probe in study.at(request.fidelity).probes
    )


def guard_of(
    study: Study, settings: Settings, versions: Mapping[str, str], date: str | None
) -> Guard:
    """The check of a configuration: the worst of its replicas'."""
    stated = study.question.framework.versions
    found: list[GuardCheck] = []
    count, notes, why = 0, dict[str, None](), ""
    if missing := [package for package in STACK if package not in stated]:
        why = f"the version of {' and '.join(missing)} is not known"
    else:
        try:
            replicas = replicas_of(study.question, settings)
            count, found = len(replicas), list(known_checks(study, settings))
            # A check may be of another study's equal replica; what it leaves out is of this one's.
            notes = dict.fromkeys(note for replica in replicas for note in replica.notes)
        except NoReplicaError as error:
            why = str(error)
    is_wrong = any(one.result is CheckState.FAILED for one in found)
    if not why and len(found) < count and not is_wrong:
        why = "no small replica of these settings was trained with these versions yet"
    if why and is_checked(study, settings):
        passed = [v.date for v in study.guards.values() if v.result is CheckState.PASSED and v.date]
        return Guard(
            verdict=KNOBS_PASSED,
            versions=stack_of(stated, study.question.workload),
            date=max(passed, default=None),
            why="small replicas with each of these values train what one process trains; one of"
            " these settings and this model was not trained yet",
        )
    if why:
        return Guard(versions=dict(versions), date=date, why=why)
    order = (CheckState.PASSED, CheckState.NOT_CHECKED, CheckState.FAILED)
    worst = max(found, key=lambda one: order.index(one.result))
    if worst.result is CheckState.NOT_CHECKED:
        return Guard(versions=dict(versions), date=date, why=worst.detail)
    why = "; ".join(filter(None, (worst.detail, *notes)))
    return Guard(verdict=str(worst.result), versions=dict(worst.versions), date=worst.date, why=why)


def to_guard(known: Knowledge) -> list[Settings]:
    """The finalists without a check of each of their replicas: the answer, what ties with it, and
    what would be it if a knob's value were right that failed in another layout.

    A configuration that has no replica is left out.
    """
    study, fitting, tolerance = known.study, known.fitting, known.study.limits.tolerance
    if study.limits.fidelity not in PROBED:
        return []
    # The fastest finding that only an unconfirmed failure speaks against, if it is the fastest.
    unconfirmed = (known.findings[one] for one in known.unconfirmed if one in known.findings)
    timed = [f for f in unconfirmed if f.seconds < inf and f.settings not in known.too_large]
    first = min(timed, key=lambda f: (f.seconds, str(f.settings)), default=None)
    finalists = []
    if first is not None and (not fitting or first.seconds < fitting[0].seconds):
        finalists.append(first)
    if (choice := choose(study.question, fitting, tolerance)) is not None:
        finalists += [choice.best, choice.fastest]
        rivals = [f for f in fitting if f is not choice.best][:1]
        finalists += [f for f in rivals if indistinguishable(choice.best, f, tolerance)]
    wanted = []
    for settings in dict.fromkeys(f.settings for f in finalists):
        with suppress(NoReplicaError):
            checks = known_checks(study, settings)
            decided = [one for one in checks if one.result is not CheckState.NOT_CHECKED]
            if len(decided) < len(replicas_of(study.question, settings)):
                wanted.append(settings)
    return wanted
