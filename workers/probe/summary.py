"""Collectives of one step, added up."""

from collections import Counter
from collections.abc import Mapping, Sequence

from workers.probe.tracker import Call


def summarize(
    calls: Sequence[Call], axes: Mapping[str, str], overlaps: Sequence[str] | None = None
) -> list[dict[str, object]]:
    """Calls of one step by operator, mesh axis and phase, and by overlap where it is known.

    Args:
        calls: in any order.
        axes: name of the mesh axis of each process group.
        overlaps: for each call what hides it.
    """
    count: Counter[tuple[str, ...]] = Counter()
    size: Counter[tuple[str, ...]] = Counter()
    for index, call in enumerate(calls):
        overlap = () if overlaps is None else (overlaps[index],)
        key = (call.op, axes.get(call.group, call.group), call.phase, *overlap)
        count[key] += 1
        size[key] += call.bytes
    names = ("op", "axis", "phase", "overlap")
    return [
        {**dict(zip(names, key, strict=False)), "count": n, "bytes": size[key]}
        for key, n in sorted(count.items())
    ]
