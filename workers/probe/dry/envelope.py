"""The highest of several straight lines in the micro-batch size."""

from collections.abc import Sequence
from fractions import Fraction

from workers.probe.dry.turning_points import Point, highest

Line = tuple[Point, ...]
"""One moment at each micro-batch size."""


MOST_LINES = 64
"""Moments of a segment that are all kept; where there are more, only their envelope is."""


def lines(
    points: Sequence[Sequence[Point]], sizes: Sequence[int], *, keeps_all: bool = False
) -> tuple[list[Line], bool]:
    """The upper envelope of a segment's moments for micro-batches of 1 and more.

    Args:
        points: for each micro-batch size the segment's turning points.
        sizes: the micro-batch sizes, one or two, ascending.
        keeps_all: give all moments, in their order, unless they are very many.

    Returns:
        The lines, by rising slope, and whether the points of the sizes match one another.
        Where they do not, there is one line through the peaks.
    """
    matched = len({len(of_size) for of_size in points}) == 1
    if not matched:
        return [tuple(highest(of_size) for of_size in points)], False
    candidates = list(zip(*points, strict=True))
    if keeps_all and len(candidates) <= MOST_LINES:
        return candidates, True
    if len(sizes) == 1:
        return [max(candidates, key=lambda line: sum(line[0]))], True
    return _envelope(candidates, sizes[0], sizes[1]), True


def _envelope(candidates: list[Line], low: int, high: int) -> list[Line]:
    """Walk from size 1 upwards: the highest line there, then each that overtakes first."""

    def slope(line: Line) -> Fraction:
        return Fraction(sum(line[1]) - sum(line[0]), high - low)

    def at(line: Line, size: Fraction) -> Fraction:
        return sum(line[0]) + slope(line) * (size - low)

    steepest: dict[Fraction, Line] = {}
    for line in candidates:  # of one slope only the highest matters
        known = steepest.get(slope(line))
        if known is None or sum(known[0]) < sum(line[0]):
            steepest[slope(line)] = line
    here = Fraction(1)
    top = max(steepest.values(), key=lambda line: (at(line, here), slope(line)))
    found = [top]
    while steeper := [line for s, line in steepest.items() if s > slope(top)]:
        gap = {
            id(line): (at(top, here) - at(line, here)) / (slope(line) - slope(top))
            for line in steeper
        }
        top_next = min(steeper, key=lambda line: (gap[id(line)], -slope(line)))
        here += gap[id(top_next)]
        top = top_next
        found.append(top)
    return found
