"""Chooses the answer among the configurations that fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, ne
from typing import Generic, Protocol, TypeVar

from tuner.core.configuration import BATCH, KNOBS, Settings
from tuner.planner.findings import Finding
from tuner.planner.timing import alike
from tuner.text import size_text

# Part of the memory by which settings must be lighter to be preferred for it.
LIGHTER = 0.01

_CHOICES = attrgetter(*(knob for knob in KNOBS if knob not in BATCH))
_SIMPLEST = _CHOICES(Settings())


class Ranked(Protocol):
    """Settings with a speed and a need of memory, measured or predicted."""

    @property
    def settings(self) -> Settings:
        """The configuration."""

    @property
    def seconds(self) -> float:
        """Seconds of an optimizer step."""

    @property
    def needed_bytes(self) -> int:
        """Memory that must be free on a device."""


R = TypeVar("R", bound=Ranked)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice(Generic[R]):
    """The answer among settings that fit."""

    best: R
    """The answer."""
    fastest: R
    """The one with the shortest step; often the best itself."""
    tied: tuple[R, ...]
    """All that cannot be told apart from the fastest in speed, it included, fastest first."""
    is_checked: bool = False
    """Whether the best goes first because it was seen to train what it should, and the fastest was
    not."""

    @property
    def reason(self) -> str:
        """Why the best goes before the fastest, where they are two."""
        if self.is_checked:
            return "that one's knobs were not seen to train what they should, and these were"
        if self.best.needed_bytes < self.fastest.needed_bytes * (1 - LIGHTER):
            spared = self.fastest.needed_bytes - self.best.needed_bytes
            return f"it needs {size_text(spared)} less memory"
        return "it has fewer knobs off their default and needs no more memory"


def choose(fitting: Sequence[Finding], tolerance: float) -> Choice[Finding] | None:
    """The fastest, or one that cannot be told apart from it and is lighter or as light and simpler.

    Two findings cannot be told apart when each one's step time lies in the other's interval,
    or when they differ by ``tolerance`` (relative) or less.

    Args:
        fitting: findings that fit, fastest first.
        tolerance: as in :class:`tuner.core.study.Terms`.
    """
    return _choose(fitting, partial(indistinguishable, tolerance=tolerance))


def choose_predicted(
    fitting: Sequence[R], tolerance: float, checked: Callable[[Settings], bool] = lambda _: False
) -> Choice[R] | None:
    """Chooses among predictions: two are tied when they differ by ``tolerance`` or less.

    Their intervals say nothing here. They are wide for what all settings have in common, such as
    the rate that a kernel reaches, and that moves all of them together.

    Args:
        fitting: predictions that fit, fastest first.
        tolerance: as in :class:`tuner.core.study.Terms`.
        checked: whether settings were seen to train what they should. Of those that are tied, they
            go before the others: no step of any of them has run.
    """
    return _choose(fitting, partial(near, tolerance=tolerance), checked)


def _choose(
    fitting: Sequence[R],
    same: Callable[[R, R], bool],
    checked: Callable[[Settings], bool] = lambda _: False,
) -> Choice[R] | None:
    if not fitting:
        return None
    fastest = fitting[0]
    tied = tuple(f for f in fitting if same(fastest, f))
    if known := [f for f in tied if checked(f.settings)]:
        found = _choose(known, same)
        assert found is not None
        preferred = not checked(fastest.settings)
        return Choice(best=found.best, fastest=fastest, tied=tied, is_checked=preferred)
    sound = [f for f in tied if not any(_beats(other, f) for other in fitting)]
    lighter = [f for f in sound if f.needed_bytes < fastest.needed_bytes * (1 - LIGHTER)]
    if lighter:
        least = min(f.needed_bytes for f in lighter)
        pool = [f for f in lighter if f.needed_bytes == least]
    else:
        pool = [f for f in sound if f.needed_bytes <= fastest.needed_bytes]
    best = min(pool, key=lambda f: (complexity(f.settings), f.seconds, str(f.settings)))
    return Choice(best=best, fastest=fastest, tied=tied)


def _beats(one: Ranked, other: Ranked) -> bool:
    """Tells whether one is both faster and lighter, so that the other is no answer.

    It may beat a third that cannot be told apart from the fastest, and yet be slower than it:
    intervals differ in width.
    """
    return one.seconds < other.seconds and one.needed_bytes < other.needed_bytes


def indistinguishable(one: Finding, other: Finding, tolerance: float) -> bool:
    """Tells whether two findings' speeds cannot be told apart."""
    return near(one, other, tolerance) or alike(one.spread, other.spread)


def near(one: Ranked, other: Ranked, tolerance: float) -> bool:
    """Tells whether two speeds differ by ``tolerance`` (relative) or less."""
    return abs(one.seconds - other.seconds) <= tolerance * min(one.seconds, other.seconds)


def complexity(settings: Settings) -> int:
    """Knobs that are not at their simplest value, batch sizes apart."""
    return sum(map(ne, _CHOICES(settings), _SIMPLEST))


def pareto(fitting: Sequence[R]) -> tuple[R, ...]:
    """Lists those that no other beats in both memory and speed, fastest first."""
    front: list[R] = []
    for finding in sorted(fitting, key=lambda f: (f.seconds, f.needed_bytes, str(f.settings))):
        if not front or finding.needed_bytes < front[-1].needed_bytes:
            front.append(finding)
    return tuple(front)
