"""Segments and collectives of shallow models, matched by their place in the step.

Layers of the first half are counted from the start, the others from the end, so that every
segment of the shallower model has a counterpart in the deeper one. Layers that the deeper one has
between them are left out: their bytes are on a straight line between those of the others.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuner.dryrun.trace import Line, Segment, Step, Trace, TraceCollective

OUTSIDE = ("before", "after")
"""Parts of a model that are no decoder layers."""

Place = tuple[int, str, str]
"""Micro-batch, phase and part of a segment; layers are counted from the nearer end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A segment at each depth that was run."""

    place: Place
    """Where in the step."""
    lines: tuple[tuple[Line, ...], ...]
    """For each depth the highest moments."""
    matches: bool
    """Whether the moments of the depths are the same ones, in one order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Collectives of one kind at each depth that was run."""

    kind: tuple[str, str, str, str]
    """Operation, axis, phase and overlap."""
    counts: tuple[float, ...]
    """Calls at each depth."""
    bytes: tuple[tuple[float, ...], ...]
    """For each depth, bytes at each micro-batch size."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfileStep:
    """An optimizer step of some number of micro-batches."""

    accumulation: int
    """Its micro-batches."""
    micro_batch_sizes: tuple[int, ...]
    """One or two sizes that were dry-run, which the figures belong to; for larger ones they are
    on straight lines, up to the sizes of another step."""
    stretches: tuple[Stretch, ...]
    """In the step's order."""
    calls: tuple[Calls, ...]
    """Collectives."""


def by_sizes(traces: Sequence[Trace]) -> list[list[Trace]]:
    """The traces of each group of micro-batch sizes, ascending; by depth within each."""
    if not traces:
        raise ValueError("traces: must be one or more")
    groups: dict[tuple[int, ...], list[Trace]] = {}
    for trace in sorted(traces, key=lambda trace: (trace.micro_batch_sizes, trace.layers)):
        groups.setdefault(trace.micro_batch_sizes, []).append(trace)
    depths = {tuple(trace.layers for trace in group) for group in groups.values()}
    if len(depths) > 1:
        raise ValueError(f"traces: depths differ between micro-batch sizes: {sorted(depths)}")
    return list(groups.values())


def check_depths(traces: Sequence[Trace], layers: int) -> None:
    depths = [trace.layers for trace in traces]
    if not 1 <= len(set(depths)) == len(depths) <= 2:
        raise ValueError(f"traces: got depths {depths}; must be one or two depths")
    if len(depths) == 1 and depths[0] != layers:
        raise ValueError(f"traces: one of {depths[0]} layers says nothing of {layers}")
    if depths[-1] > layers:
        raise ValueError(f"traces: got depths {depths}; must be {layers} at most")
    if any(trace.device != traces[0].device for trace in traces):
        raise ValueError("traces: device differs between depths")


def matched_steps(traces: Sequence[Trace]) -> list[ProfileStep]:
    """The steps of traces of one group of micro-batch sizes, by accumulation.

    Args:
        traces: by depth, ascending.

    Raises:
        ValueError: they have other accumulation counts, or other segments.
    """
    return [_step(steps, traces) for steps in _by_accumulation(traces)]


def _by_accumulation(traces: Sequence[Trace]) -> list[list[Step]]:
    """The steps of each accumulation count, at every depth."""
    found = [sorted(trace.steps, key=lambda step: step.accumulation) for trace in traces]
    counts = [[step.accumulation for step in steps] for steps in found]
    if any(one != counts[0] or len(set(one)) != len(one) for one in counts):
        raise ValueError(f"traces: accumulation counts differ between depths: {counts}")
    return [list(steps) for steps in zip(*found, strict=True)]


def _step(steps: Sequence[Step], traces: Sequence[Trace]) -> ProfileStep:
    head = traces[0].layers // 2
    tail = traces[0].layers - head
    by_place = [
        _by_place(step.segments, head, trace.layers - tail)
        for step, trace in zip(steps, traces, strict=True)
    ]
    if any(set(places) != set(by_place[0]) for places in by_place):
        raise ValueError("traces: the segments of the depths differ")
    return ProfileStep(
        accumulation=steps[0].accumulation,
        micro_batch_sizes=traces[0].micro_batch_sizes,
        stretches=tuple(
            _stretch(place, [places[place] for places in by_place]) for place in by_place[0]
        ),
        calls=_matched_calls([step.collectives for step in steps], traces),
    )


def _stretch(place: Place, lines: Sequence[Sequence[Line]]) -> Stretch:
    """Outside layers all moments are told: as many of the same kinds are the same ones."""
    kinds = [[frozenset(line.categories) for line in of_depth] for of_depth in lines]
    matches = place[2] in OUTSIDE and all(one == kinds[0] for one in kinds)
    return Stretch(place=place, lines=tuple(map(tuple, lines)), matches=matches)


def _by_place(segments: Iterable[Segment], head: int, tail: int) -> dict[Place, list[Line]]:
    """Lines by place; layers from ``head`` up to ``tail`` are left out."""
    found: dict[Place, list[Line]] = {}
    for segment in segments:
        part = _place_of(segment.part, head, tail)
        if part:
            place = (segment.micro_batch, segment.phase, part)
            found.setdefault(place, []).extend(segment.lines)
    return found


def _place_of(part: str, head: int, tail: int) -> str:
    """``layer 0``, ``layer 1``, ... at the start, ``last 0``, ... at the end; empty between."""
    name, _, number = part.partition(" ")
    if name != "layer":
        return part
    index = int(number)
    if index < head:
        return part
    return f"last {index - tail}" if index >= tail else ""


def _matched_calls(
    depths: Sequence[Sequence[TraceCollective]], traces: Sequence[Trace]
) -> tuple[Calls, ...]:
    found: dict[tuple[str, str, str, str], list[TraceCollective | None]] = {}
    for i, calls in enumerate(depths):
        for call in calls:
            kind = call.op, call.axis, call.phase, call.overlap
            found.setdefault(kind, [None] * len(depths))[i] = call
    none = (0.0,) * len(traces[0].micro_batch_sizes)
    return tuple(
        Calls(
            kind=kind,
            counts=tuple(call.count if call else 0 for call in of_depths),
            bytes=tuple(call.bytes if call else none for call in of_depths),
        )
        for kind, of_depths in found.items()
    )
