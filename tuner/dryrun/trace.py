"""Reads strictly what the dry-run program answers for one model, and matches it between depths.

All bytes are of rank 0, each allocation rounded as the device's allocator rounds it. A pair of
figures belongs to the trace's micro-batch sizes; between and beyond them it is a straight line.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tuner.core.measurement import Count
from tuner.cost.time.compute import AMOUNTS
from tuner.serialization import Plain

# The form of a trace that is read here.
FORMAT = 2

Size = Count | Annotated[float, Field(ge=0, allow_inf_nan=False)]
# Bytes at each micro-batch size of the trace.
Bytes = tuple[Size, ...]


class _Strict:
    """Read without fields that it has not."""

    __slots__ = ()
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line(_Strict):
    """One moment of a step, at each micro-batch size."""

    bytes: Bytes  # all that is allocated
    categories: Mapping[str, Bytes]  # what it is for; together they are `bytes`


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment(_Strict):
    """A stretch of a step: from one decoder layer's start to the next one's, in one phase."""

    micro_batch: Count  # of the step, from 0
    phase: str  # forward, loss, backward or optimizer
    part: str  # `before` the layers, `layer 0` and so on, or `after` them
    lines: tuple[Line, ...]  # its highest moments, for micro-batches of one sequence and more


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCollective(_Strict):
    """Collectives of one kind in one optimizer step."""

    op: str  # all_gather, reduce_scatter, all_reduce, ..
    axis: str  # the mesh axis that communicates
    phase: str  # what the step was doing
    overlap: str  # what hides it: prefetched, behind_backward, or exposed where nothing does
    count: Count  # calls, at every micro-batch size
    bytes: Bytes  # of their whole (gathered or unreduced) tensors, summed over the calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(_Strict):
    accumulation: Count  # its micro-batches
    segments: tuple[Segment, ...]  # in the step's order
    collectives: tuple[TraceCollective, ...]  # all of the step


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWork(_Strict):
    """What the operators of a micro-batch do in one phase and part (:class:`Amounts`)."""

    phase: str  # forward, with the loss, or backward
    part: str  # layers, or the ends around them
    amounts: Mapping[str, Bytes]  # at each micro-batch size


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace(_Strict, Plain):
    """A dry run of one model at one depth. Raises ValueError: sizes that are not one or two,
    ascending, or a figure without one for each."""

    form = FORMAT
    later = ("work", "trained_elements", "updated_elements")  # of types that dry runs alone know

    device: str  # cpu or cuda: whose allocator's rounding, and whose optimizer, was followed
    layers: Count  # decoder layers of the model that was run
    micro_batch_sizes: tuple[Count, ...]
    """One or two sizes, ascending, that every pair of figures is for."""
    steps: tuple[Step, ...]  # one for each accumulation count
    block_bytes: Count
    """The largest block of parameters that is gathered at once; 0 where nothing is sharded."""
    notes: tuple[str, ...]  # what is to be known about the figures
    versions: Mapping[str, str]  # of the packages that were run
    seconds: Size  # that the dry run took
    work: tuple[PartWork, ...] = ()  # what is computed, where that was counted
    trained_elements: Count = 0  # parameters that have gradients, where that was counted
    updated_elements: Count = 0  # those that the rank's optimizer updates

    def __post_init__(self) -> None:
        sizes = self.micro_batch_sizes
        if not 1 <= len(sizes) <= 2 or sorted(set(sizes)) != list(sizes) or sizes[0] < 1:
            raise ValueError(f"micro_batch_sizes: got {sizes}; must be one or two, ascending")
        if self.layers < 1 or not self.steps or any(step.accumulation < 1 for step in self.steps):
            raise ValueError("a trace has layers, and steps of one micro-batch or more")
        for part in self.work:
            if set(part.amounts) != set(AMOUNTS):
                raise ValueError(f"work: must be of {', '.join(AMOUNTS)}")
        for step in self.steps:
            pairs = [call.bytes for call in step.collectives]
            pairs += [amount for part in self.work for amount in part.amounts.values()]
            for segment in step.segments:
                if not segment.lines:
                    raise ValueError(f"lines: {segment.phase}, {segment.part} has none")
                for line in segment.lines:
                    pairs += [line.bytes, *line.categories.values()]
            if any(len(pair) != len(sizes) for pair in pairs):
                raise ValueError(f"bytes: must have {len(sizes)} figures, one a micro-batch size")

    @classmethod
    def from_dict(cls, values: object) -> "Trace":
        """Read a trace. Raises ValueError: another format, an unknown or missing field, or a value
        of another kind."""
        if not isinstance(values, Mapping) or values.get("format") != FORMAT:
            raise ValueError(f"traces of format {FORMAT} are read")
        known = {name: value for name, value in values.items() if name != "format"}
        try:  # as JSON, whose lists are tuples also where all else is strict
            return _reader().validate_json(json.dumps(known), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "trace"
            raise ValueError(f"{where}: {first['msg']}") from error


@cache
def _reader() -> TypeAdapter[Trace]:
    return TypeAdapter(Trace)


# Parts of a model that are no decoder layers.
OUTSIDE = ("before", "after")

# Micro-batch, phase and part of a segment; layers are counted from the nearer end.
Place = tuple[int, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A segment at each depth that was run."""

    place: Place  # where in the step
    lines: tuple[tuple[Line, ...], ...]  # for each depth the highest moments
    matches: bool  # whether the moments of the depths are the same ones, in one order


# Operation, axis, phase and overlap of collectives.
Kind = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ProfileStep:
    accumulation: int  # its micro-batches
    micro_batch_sizes: tuple[int, ...]
    """One or two sizes that were dry-run, which the figures belong to; for larger ones they are
    on straight lines, up to the sizes of another step."""
    stretches: tuple[Stretch, ...]  # in the step's order
    calls: Mapping[Kind, Sequence[TraceCollective | None]]  # at each depth that was run


def by_sizes(traces: Sequence[Trace], layers: int) -> list[list[Trace]]:
    """The traces of each group of micro-batch sizes, ascending; by depth within each. Raises
    ValueError: they do not tell of a model of so many layers."""
    if not traces:
        raise ValueError("traces: must be one or more")
    groups: dict[tuple[int, ...], list[Trace]] = {}
    for trace in sorted(traces, key=lambda trace: (trace.micro_batch_sizes, trace.layers)):
        groups.setdefault(trace.micro_batch_sizes, []).append(trace)
    of_groups = {tuple(trace.layers for trace in group) for group in groups.values()}
    if len(of_groups) > 1:
        raise ValueError(f"traces: depths differ between micro-batch sizes: {sorted(of_groups)}")
    (depths,) = map(list, of_groups)
    if not 1 <= len(set(depths)) == len(depths) <= 2:
        raise ValueError(f"traces: got depths {depths}; must be one or two depths")
    if len(depths) == 1 and depths[0] != layers:
        raise ValueError(f"traces: one of {depths[0]} layers says nothing of {layers}")
    if depths[-1] > layers:
        raise ValueError(f"traces: got depths {depths}; must be {layers} at most")
    if any(len({trace.device for trace in group}) > 1 for group in groups.values()):
        raise ValueError("traces: device differs between depths")
    return list(groups.values())


def matched_steps(traces: Sequence[Trace]) -> list[ProfileStep]:
    """The steps of traces of one group of micro-batch sizes, by accumulation.

    Args:
        traces: by depth, ascending.

    Raises:
        ValueError: they have other accumulation counts, or other segments.
    """
    of_traces = [sorted(trace.steps, key=lambda step: step.accumulation) for trace in traces]
    counts = [[step.accumulation for step in steps] for steps in of_traces]
    if any(one != counts[0] or len(set(one)) != len(one) for one in counts):
        raise ValueError(f"traces: accumulation counts differ between depths: {counts}")
    head = traces[0].layers // 2
    tail = traces[0].layers - head
    found = []
    for steps in zip(*of_traces, strict=True):
        by_place = [
            _by_place(step.segments, head, trace.layers - tail)
            for step, trace in zip(steps, traces, strict=True)
        ]
        if any(set(places) != set(by_place[0]) for places in by_place):
            raise ValueError("traces: the segments of the depths differ")
        stretches = []
        for place in by_place[0]:
            lines = [places[place] for places in by_place]
            # outside layers all moments are told: as many of the same kinds are the same ones
            kinds = [[frozenset(line.categories) for line in of_depth] for of_depth in lines]
            matches = place[2] in OUTSIDE and all(one == kinds[0] for one in kinds)
            stretches.append(Stretch(place=place, lines=tuple(map(tuple, lines)), matches=matches))
        calls: dict[Kind, list[TraceCollective | None]] = {}
        for i, step in enumerate(steps):
            for call in step.collectives:
                kind = call.op, call.axis, call.phase, call.overlap
                calls.setdefault(kind, [None] * len(steps))[i] = call
        found.append(
            ProfileStep(
                accumulation=steps[0].accumulation,
                micro_batch_sizes=traces[0].micro_batch_sizes,
                stretches=tuple(stretches),
                calls=calls,
            )
        )
    return found


def _by_place(segments: Iterable[Segment], head: int, tail: int) -> dict[Place, list[Line]]:
    """Lines by place: ``layer 0``, ... at the start, ``last 0``, ... at the end; layers from
    ``head`` up to ``tail`` are left out."""
    found: dict[Place, list[Line]] = {}
    for segment in segments:
        part = segment.part
        name, _, number = part.partition(" ")
        if name == "layer" and int(number) >= head:
            if int(number) < tail:
                continue
            part = f"last {int(number) - tail}"
        found.setdefault((segment.micro_batch, segment.phase, part), []).extend(segment.lines)
    return found
