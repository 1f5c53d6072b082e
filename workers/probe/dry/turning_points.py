"""From a log of changes to the moments at which memory could be highest."""

from collections.abc import Mapping, Sequence

from workers.probe.dry.ledger import Category, Change, Log, Segment, category_of

Point = tuple[int, ...]
"""Bytes of each category, in ``CATEGORIES``' order, at one moment."""
CATEGORIES = tuple(Category)
_INDEX: Mapping[Category, int] = {category: i for i, category in enumerate(CATEGORIES)}


def turning_points(log: Log) -> dict[Segment, list[Point]]:
    """The moments before memory falls, by segment, in the step's order.

    A moment is kept where a change upwards is followed by one downwards, and at a segment's
    start and end, so that a segment's highest point is always among its own. Which changes
    go up does not depend on the micro-batch size, so nor does the number of points.

    Args:
        log: changes before the first segment say what is there at its start.
    """
    level = [0] * len(CATEGORIES)
    points: dict[Segment, list[Point]] = {}
    here: list[Point] | None = None
    at_top = True
    for entry in log:
        if isinstance(entry, Segment):
            if here is not None and at_top:
                here.append(tuple(level))
            here, at_top = points.setdefault(entry, []), True
            continue
        if entry.by < 0 and at_top and here is not None:
            here.append(tuple(level))
        at_top = entry.by > 0
        level[_INDEX[category_of(entry.block)]] += entry.by
    if here is not None and at_top:
        here.append(tuple(level))
    return points


def highest(points: Sequence[Point]) -> Point:
    """The point with the most bytes."""
    return max(points, key=sum)


__all__ = ["CATEGORIES", "Change", "Point", "highest", "turning_points"]
