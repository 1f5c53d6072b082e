"""From numbers to places: scales with ticks at 1, 2 and 5 times powers of ten."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from statistics import median

_LOG_FROM = 20.0
"""How many times the smallest the end of an axis must be before a logarithm is considered."""
_CROWDED = 0.12
"""A linear axis is crowded when half of its values lie within this share of it."""
_LEAST_SPAN = 0.2
"""A scale spans at least this share of its largest number: small differences look small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Numbers from ``low`` to ``high``, laid out from 0 to 1."""

    low: float
    """The number at 0."""
    high: float
    """The number at 1; above ``low``."""
    is_log: bool = False
    """Whether equal ratios, rather than equal differences, are equally far apart."""

    def __post_init__(self) -> None:
        assert self.low < self.high, (self.low, self.high)
        assert not self.is_log or self.low > 0, self.low

    def at(self, value: float) -> float:
        """Where a number lies, from 0 to 1; what lies beyond an end is put there."""
        if value <= self.low:
            return 0.0
        if value >= self.high:
            return 1.0
        if self.is_log:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> tuple[float, ...]:
        """Round numbers on the scale, about ``count`` of them and at least one."""
        if self.is_log and self.high / self.low >= 10:
            return _log_ticks(self.low, self.high, count)
        return _multiples(nice_step((self.high - self.low) / count), self.low, self.high)

    def fitting(self, count: int, fits: Callable[[tuple[float, ...]], bool]) -> tuple[float, ...]:
        """The most ticks, about ``count`` at most, that ``fits`` accepts; the first alone if none.

        ``fits`` is asked of fewer and fewer ticks: it knows how wide their labels are.
        """
        sets = (self.ticks(n) for n in range(count, 0, -1))
        return next((ticks for ticks in sets if fits(ticks)), self.ticks(1)[:1])


def scale_for(values: Sequence[float], *, include: Sequence[float] = ()) -> Scale:
    """A scale for values and for numbers that must be on it as well, with a little air around.

    It starts at 0 where that wastes less than half of it, and is logarithmic only where a linear
    one would crowd half of the values into an eighth of it.
    """
    everything = [*values, *include]
    if not everything:
        return Scale(low=0.0, high=1.0)
    low, high = min(everything), max(everything)
    if low > 0 and high / low >= _LOG_FROM and median(values or everything) < _CROWDED * high:
        air = (high / low) ** 0.03
        return Scale(low=low / air, high=high * air, is_log=True)
    if 0 <= low <= high / 2 and high > 0:
        return Scale(low=0.0, high=high * 1.05)
    return _zoomed(low, high)


def reach(value: float, low: float, high: float) -> tuple[float, float, float]:
    """A number and those ends of its interval that a scale should show: wide ones may leave it."""
    return max(low, value / 2), value, min(high, value * 2)


def nice_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** floor(log10(least))
    return next(
        (m * power for m in (1, 2, 5) if m * power >= least * (1 - 1e-9)),
        10 * power,
    )


def _zoomed(low: float, high: float) -> Scale:
    span = max(high - low, _LEAST_SPAN * max(abs(low), abs(high))) or 1.0
    middle, half = (low + high) / 2, span * 0.56
    bottom = middle - half
    return Scale(low=max(bottom, 0.0) if low >= 0 else bottom, high=middle + half)


def _multiples(step: float, low: float, high: float) -> tuple[float, ...]:
    digits = max(0, -floor(log10(step))) + 1
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    found = tuple(round(n * step, digits) for n in range(first, last + 1))
    return found or _multiples(nice_step(step * 0.4), low, high)


def _log_ticks(low: float, high: float, count: int) -> tuple[float, ...]:
    """1, 2 and 5 of each decade, only 1 where those are too many, or every n-th decade."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    for multiples in ((1, 2, 5), (1,)):
        ticks = tuple(t for d in decades for m in multiples if low <= (t := m * 10.0**d) <= high)
        if 0 < len(ticks) <= max(count, 2):
            return ticks
    every = ceil(len(ticks) / count)
    return ticks[::every]
