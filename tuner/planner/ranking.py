"""Which of the settings that fit is the answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuner.planner.knowledge import Finding
from tuner.planner.timing import alike
from tuner.settings import Settings

LIGHTER = 0.01
"""Part of the memory by which settings must be lighter to be preferred for it."""

_DEFAULT = Settings()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The answer among findings that fit."""

    best: Finding
    """The answer."""
    fastest: Finding
    """The one with the shortest step; often the best itself."""
    tied: tuple[Finding, ...]
    """All that cannot be told apart from the fastest in speed, it included, fastest first."""


def choose(fitting: Sequence[Finding], tolerance: float) -> Choice | None:
    """The fastest, or one that cannot be told apart from it and is lighter or as light and simpler.

    Two findings cannot be told apart when each one's step time lies in the other's interval,
    or when they differ by ``tolerance`` (relative) or less.

    Args:
        fitting: findings that fit, fastest first.
        tolerance: as in :class:`tuner.study.Terms`.
    """
    if not fitting:
        return None
    fastest = fitting[0]
    tied = tuple(f for f in fitting if indistinguishable(fastest, f, tolerance))
    sound = [f for f in tied if not any(_beats(other, f) for other in fitting)]
    lighter = [f for f in sound if f.needed_bytes < fastest.needed_bytes * (1 - LIGHTER)]
    if lighter:
        least = min(f.needed_bytes for f in lighter)
        pool = [f for f in lighter if f.needed_bytes == least]
    else:
        pool = [f for f in sound if f.needed_bytes <= fastest.needed_bytes]
    best = min(pool, key=lambda f: (complexity(f.settings), f.seconds, str(f.settings)))
    return Choice(best=best, fastest=fastest, tied=tied)


def _beats(one: Finding, other: Finding) -> bool:
    """Whether one is both faster and lighter, so that the other is no answer.

    It may beat a third that cannot be told apart from the fastest, and yet be slower than it:
    intervals differ in width.
    """
    return one.seconds < other.seconds and one.needed_bytes < other.needed_bytes


def indistinguishable(one: Finding, other: Finding, tolerance: float) -> bool:
    """Whether two findings' speeds cannot be told apart."""
    near = abs(one.seconds - other.seconds) <= tolerance * min(one.seconds, other.seconds)
    return near or alike(one.step_time, other.step_time)


def complexity(settings: Settings) -> int:
    """Knobs that are not at their simplest value, batch sizes apart."""
    names = _DEFAULT.as_dict()
    del names["micro_batch_size"], names["gradient_accumulation_steps"]
    return sum(getattr(settings, name) != getattr(_DEFAULT, name) for name in names)


def pareto(fitting: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings that no other beats in both memory and speed, fastest first."""
    front: list[Finding] = []
    for finding in sorted(fitting, key=lambda f: (f.seconds, f.needed_bytes, str(f.settings))):
        if not front or finding.needed_bytes < front[-1].needed_bytes:
            front.append(finding)
    return tuple(front)
