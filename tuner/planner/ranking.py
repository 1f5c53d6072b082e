"""Chooses the answer among the configurations that fit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, ne

from tuner.core.answer import Reason
from tuner.core.configuration import BATCH, KNOBS, Settings
from tuner.core.evaluation import Evaluation
from tuner.planner.timing import alike

# Part of the memory by which a configuration must be lighter to be preferred for it.
LIGHTER = 0.01

_CHOICES = attrgetter(*(knob for knob in KNOBS if knob not in BATCH))
_SIMPLEST = _CHOICES(Settings())


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer among configurations that fit."""

    best: Evaluation
    fastest: Evaluation
    """The one with the shortest step; often the best itself."""
    tied: tuple[Evaluation, ...]
    """All that cannot be told apart from the fastest in speed, it included, fastest first."""
    is_checked: bool = False
    """The best goes first because it was seen to train what it should, and the fastest was not."""

    @property
    def reason(self) -> Reason:
        """Why the best goes before the fastest, where they are two."""
        if self.is_checked:
            return Reason.CHECKED
        is_lighter = self.best.most_bytes < self.fastest.most_bytes * (1 - LIGHTER)
        return Reason.LIGHTER if is_lighter else Reason.SIMPLER


def choose(fitting: Sequence[Evaluation], tolerance: float) -> Choice | None:
    """The fastest, or one that cannot be told apart from it and is lighter or as light and simpler.

    Two findings cannot be told apart when each one's step time lies in the other's interval,
    or when they differ by ``tolerance`` (relative) or less.
    """
    return _choose(fitting, partial(indistinguishable, tolerance=tolerance))


def choose_predicted(
    fitting: Sequence[Evaluation],
    tolerance: float,
    checked: Callable[[Settings], bool] = lambda _: False,
) -> Choice | None:
    """Chooses among predictions: two are tied when they differ by ``tolerance`` or less.

    Their intervals say nothing here. They are wide for what all configurations have in common, such
    as the rate that a kernel reaches, and that moves all of them together.
    """
    return _choose(fitting, partial(near, tolerance=tolerance), checked)


def _choose(
    fitting: Sequence[Evaluation],
    same: Callable[[Evaluation, Evaluation], bool],
    checked: Callable[[Settings], bool] = lambda _: False,
) -> Choice | None:
    if not fitting:
        return None
    fastest = fitting[0]
    tied = tuple(f for f in fitting if same(fastest, f))
    if known := [f for f in tied if checked(f.settings)]:
        found = _choose(known, same)
        assert found is not None
        preferred = not checked(fastest.settings)
        return Choice(best=found.best, fastest=fastest, tied=tied, is_checked=preferred)

    # Intervals differ in width: what a third beats in both may still be tied with the fastest.
    def is_beaten(one: Evaluation) -> bool:
        return any(f.seconds < one.seconds and f.most_bytes < one.most_bytes for f in fitting)

    sound = [f for f in tied if not is_beaten(f)]
    lighter = [f for f in sound if f.most_bytes < fastest.most_bytes * (1 - LIGHTER)]
    if lighter:
        least = min(f.most_bytes for f in lighter)
        pool = [f for f in lighter if f.most_bytes == least]
    else:
        pool = [f for f in sound if f.most_bytes <= fastest.most_bytes]
    best = min(pool, key=lambda f: (complexity(f.settings), f.seconds, str(f.settings)))
    return Choice(best=best, fastest=fastest, tied=tied)


def indistinguishable(one: Evaluation, other: Evaluation, tolerance: float) -> bool:
    return near(one, other, tolerance) or alike(one.spread_s, other.spread_s)


def near(one: Evaluation, other: Evaluation, tolerance: float) -> bool:
    """True of two speeds that differ by ``tolerance`` (relative) or less."""
    return abs(one.seconds - other.seconds) <= tolerance * min(one.seconds, other.seconds)


def complexity(settings: Settings) -> int:
    """Knobs that are not at their simplest value, batch sizes apart."""
    return sum(map(ne, _CHOICES(settings), _SIMPLEST))


def pareto(fitting: Iterable[Evaluation]) -> tuple[Evaluation, ...]:
    """Lists those that no other beats in both memory and speed, fastest first."""
    front: list[Evaluation] = []
    for one in sorted(fitting, key=lambda f: (f.seconds, f.most_bytes, str(f.settings))):
        if not front or one.most_bytes < front[-1].most_bytes:
            front.append(one)
    return tuple(front)
