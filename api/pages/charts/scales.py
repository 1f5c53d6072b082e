"""From numbers to places and words: scales with ticks at 1, 2 and 5 times powers of ten."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, isfinite, log10
from statistics import median
from typing import NamedTuple
from unicodedata import combining, east_asian_width

from tuner.core.quantity import Quantity

# Size of all text in charts; ``charts.css`` sets the same.
TEXT_PX = 12.0
# The width of wide fonts such as DejaVu Sans, so that estimates err high.
_CHARACTER_EM = 0.65
# An axis may be logarithmic from so many times its smallest number on, where half of the values lie
# within this share of a linear one.
_LOG_FROM = 20.0
_CROWDED = 0.12
# A scale spans at least this share of its largest number: small differences look small.
_LEAST_SPAN = 0.2


class Interval(NamedTuple):
    """A finite number and the ends of its 80% interval, which equal it where nobody knows them."""

    value: float
    low: float
    high: float


def interval_of(quantity: Quantity, scale: float = 1.0) -> Interval | None:
    """A quantity's numbers, times ``scale``; ``None`` where it is unknown or not finite."""
    value, low, high = quantity.value, quantity.low, quantity.high
    if value is None or low is None or high is None:
        return None
    found = Interval(value * scale, low * scale, high * scale)
    return found if all(map(isfinite, found)) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Numbers from ``low`` to ``high``, laid out from 0 to 1."""

    low: float
    high: float
    is_log: bool = False
    """Whether equal ratios, rather than equal differences, are equally far apart."""

    def __post_init__(self) -> None:
        assert self.low < self.high, (self.low, self.high)
        assert not self.is_log or self.low > 0, self.low

    def at(self, value: float) -> float:
        """The place of a number, from 0 to 1; what lies beyond an end is put there."""
        if value <= self.low:
            return 0.0
        if value >= self.high:
            return 1.0
        if self.is_log:
            return log10(value / self.low) / log10(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self, count: int) -> tuple[float, ...]:
        """Round numbers on the scale, about ``count`` of them and at least one."""
        low, high = self.low, self.high
        if self.is_log and high / low >= 10:
            # 1, 2 and 5 of each decade, only 1 where those are too many, or every n-th decade.
            decades = range(floor(log10(low)), ceil(log10(high)) + 1)
            for digits in ((1, 2, 5), (1,)):
                ticks = tuple(
                    t for d in decades for m in digits if low <= (t := m * 10.0**d) <= high
                )
                if 0 < len(ticks) <= max(count, 2):
                    return ticks
            return ticks[:: ceil(len(ticks) / count)]
        step = nice_step((high - low) / count)
        while True:
            places = max(0, -floor(log10(step))) + 1
            first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
            if first <= last:
                return tuple(round(n * step, places) for n in range(first, last + 1))
            step = nice_step(step * 0.4)

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
    span = max(high - low, _LEAST_SPAN * max(abs(low), abs(high))) or 1.0
    middle, half = (low + high) / 2, span * 0.56
    bottom = middle - half
    return Scale(low=max(bottom, 0.0) if low >= 0 else bottom, high=middle + half)


def reach(found: Interval) -> tuple[float, float, float]:
    """A number and those ends of its interval that a scale should show: wide ones may leave it."""
    return max(found.low, found.value / 2), found.value, min(found.high, found.value * 2)


def nice_step(least: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** floor(log10(least))
    return next((m * power for m in (1, 2, 5) if m * power >= least * (1 - 1e-9)), 10 * power)


# -- words ------------------------------------------------------------------------------------


def width_px(words: str) -> float:
    """About how wide words are drawn, in pixels; rather too wide than too narrow."""
    cells = sum(
        0 if combining(c) else 2 if east_asian_width(c) in "WF" or ord(c) > 0xFFFF else 1
        for c in words
    )
    return cells * _CHARACTER_EM * TEXT_PX


def shortened(words: str, most_px: float) -> str:
    """Words cut to a width, with an ellipsis where something is missing."""
    if width_px(words) <= most_px:
        return words
    kept = words[: int(most_px / (_CHARACTER_EM * TEXT_PX))]
    while kept and width_px(kept + "…") > most_px:
        kept = kept[:-1]
    return kept.rstrip() + "…"


def cut(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def figure(value: float) -> str:
    """A number with three digits or more: ``9,412``, ``43.1``, ``0.512``; ``1.25e+09`` if huge."""
    size = abs(value)
    if size >= 1e9 or 0 < size < 1e-3:
        return f"{value:.3g}"
    if size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def column(values: Sequence[float]) -> tuple[str, ...]:
    """Numbers for a column: as many decimals for all as the largest one needs."""
    largest = max(map(abs, values), default=0.0)
    if largest >= 1e9 or 0 < largest < 1e-3:
        return tuple(map(figure, values))
    digits = 0 if largest >= 1000 else 1 if largest >= 10 else 2 if largest >= 1 else 3
    least = 10.0**-digits
    return tuple(
        f"<{least:.{digits}f}" if 0 < v < least / 2 else f"{v:,.{digits}f}" for v in values
    )


def short_words(words: str) -> str:
    """A configuration without what follows from the rest: ``full_shard, micro_batch_size=4``."""
    sharding, *others = words.split(",")
    shown = [part for part in others if not part.startswith("gradient_accumulation_steps=")]
    return ", ".join((sharding.removeprefix("sharding="), *shown))


def range_words(found: Interval) -> str:
    """``9,412 (9,370 to 9,455)``, or the number alone where the interval has no width."""
    if found.low == found.high:
        return figure(found.value)
    return f"{figure(found.value)} ({figure(found.low)} to {figure(found.high)})"


def tick_words(tick: float) -> str:
    """The label of a tick: ``0``, ``0.5``, ``5,000``, ``1.5M``."""
    size = abs(tick)
    if size >= 1e12 or 0 < size < 1e-3:
        return f"{tick:.3g}"
    if size >= 1e9:
        return f"{tick / 1e9:.4g}G"
    return f"{tick / 1e6:.4g}M" if size >= 1e6 else f"{tick:,.6g}"


def short_tick_words(tick: float) -> str:
    """The same where there is little room: ``0``, ``500``, ``5k``, ``1.5M``."""
    return f"{tick / 1e3:.4g}k" if 1e3 <= abs(tick) < 1e6 else tick_words(tick)
