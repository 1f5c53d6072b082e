"""Numbers and names as charts write them, and how wide they are."""

from collections.abc import Sequence
from unicodedata import combining, east_asian_width

from api.pages.charts.data import Interval

TEXT_PX = 12.0
"""Size of all text in charts; ``charts.css`` sets the same."""
_CHARACTER_EM = 0.65
"""Width of a character: that of wide fonts such as DejaVu Sans, so that estimates err high."""


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
    """Words cut to a number of characters."""
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


def range_words(interval: Interval) -> str:
    """``9,412 (9,370 to 9,455)``, or the number alone where the interval has no width."""
    if interval.low == interval.high:
        return figure(interval.value)
    return f"{figure(interval.value)} ({figure(interval.low)} to {figure(interval.high)})"


def tick_words(ticks: Sequence[float]) -> tuple[str, ...]:
    """Labels of ticks: ``0``, ``0.5``, ``5,000``, ``1.5M``."""
    return tuple(map(_tick, ticks))


def short_tick_words(ticks: Sequence[float]) -> tuple[str, ...]:
    """The same where there is little room: ``0``, ``500``, ``5k``, ``1.5M``."""
    return tuple(f"{t / 1e3:.4g}k" if 1e3 <= abs(t) < 1e6 else _tick(t) for t in ticks)


def _tick(tick: float) -> str:
    size = abs(tick)
    if size >= 1e12 or 0 < size < 1e-3:
        return f"{tick:.3g}"
    if size >= 1e9:
        return f"{tick / 1e9:.4g}G"
    return f"{tick / 1e6:.4g}M" if size >= 1e6 else f"{tick:,.6g}"
