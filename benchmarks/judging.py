"""How predictions are judged: shares, rank correlation, intervals. Plain statistics, no data."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf
from statistics import median

from tuner.core.quantity import Quantity


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """Rank correlation; ties share their mean rank. 0 where one side does not vary."""
    ranks = [_ranks([pair[side] for pair in pairs]) for side in (0, 1)]
    mean = (len(pairs) + 1) / 2
    top = sum((a - mean) * (b - mean) for a, b in zip(*ranks, strict=True))
    spread = [sum((a - mean) ** 2 for a in rank) for rank in ranks]
    return top / (spread[0] * spread[1]) ** 0.5 if all(spread) else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    below, found = 0, {}
    for value, times in sorted(Counter(values).items()):
        found[value] = below + (times + 1) / 2
        below += times
    return [found[value] for value in values]


def balanced(told: Sequence[tuple[bool, bool]]) -> float:
    """Mean of the shares of successes and of failures that were told: (said, was) of each."""
    return sum(
        share([said is outcome for said, was in told if was is outcome])
        for outcome in (True, False)
    ) / 2  # fmt: skip


def holds(interval: Quantity, measured: float) -> bool:
    """Whether a measured value lies inside an interval, its ends included."""
    assert interval.low is not None
    assert interval.high is not None
    return interval.low <= measured <= interval.high


def interval_width(intervals: Iterable[Quantity]) -> float:
    """Median of upper over lower ends, less one."""
    return median((q.high or 0.0) / (q.low or inf) - 1 for q in intervals)


def share(held: Sequence[bool]) -> float:
    """Of all that are true; nothing is no success."""
    return sum(held) / len(held) if held else 0.0
