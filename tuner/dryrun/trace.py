"""Reads strictly what the dry-run program answers for one model.

All bytes are of rank 0, each allocation rounded as the device's allocator rounds it. A pair of
figures belongs to the trace's micro-batch sizes; between and beyond them it is a straight line.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

T = TypeVar("T")

# The form of a trace that is read here.
FORMAT = 2

# Bytes at each micro-batch size of the trace.
Bytes = tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One moment of a step, at each micro-batch size."""

    bytes: Bytes
    """All that is allocated."""
    categories: Mapping[str, Bytes]
    """What it is for; together they are ``bytes``."""

    @classmethod
    def from_dict(cls, values: object) -> "Line":
        """Read a line. Raises ValueError where it is none."""
        known = _fields(cls, values)
        of = _mapping("categories", known["categories"])
        categories = {str(name): _bytes(value) for name, value in of.items()}
        return cls(bytes=_bytes(known["bytes"]), categories=categories)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        of = {name: list(value) for name, value in self.categories.items()}
        return {"bytes": list(self.bytes), "categories": of}


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of a step: from one decoder layer's start to the next one's, in one phase."""

    micro_batch: int
    """Of the step, from 0."""
    phase: str
    """forward, loss, backward or optimizer."""
    part: str
    """``before`` the layers, ``layer 0`` and so on, or ``after`` them."""
    lines: tuple[Line, ...]
    """Its highest moments, for micro-batches of one sequence and more."""

    @classmethod
    def from_dict(cls, values: object) -> "Segment":
        """Read a segment. Raises ValueError where it is none."""
        known = _fields(cls, values)
        return cls(
            micro_batch=_whole("micro_batch", known["micro_batch"]),
            phase=_text("phase", known["phase"]),
            part=_text("part", known["part"]),
            lines=tuple(Line.from_dict(line) for line in _list("lines", known["lines"])),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        lines = [line.as_dict() for line in self.lines]
        place = {"micro_batch": self.micro_batch, "phase": self.phase, "part": self.part}
        return {**place, "lines": lines}


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceCollective:
    """Collectives of one kind in one optimizer step."""

    op: str
    """all_gather, reduce_scatter, all_reduce, ..."""
    axis: str
    """The mesh axis that communicates."""
    phase: str
    """What the step was doing."""
    overlap: str
    """What hides it: prefetched, behind_backward, or exposed where nothing does."""
    count: int
    """Calls, at every micro-batch size."""
    bytes: Bytes
    """Of their whole (gathered or unreduced) tensors, summed over the calls."""

    @classmethod
    def from_dict(cls, values: object) -> "TraceCollective":
        """Read collectives. Raises ValueError where they are none."""
        known = _fields(cls, values)
        words = {name: _text(name, known[name]) for name in ("op", "axis", "phase", "overlap")}
        count = _whole("count", known["count"])
        return cls(**words, count=count, bytes=_bytes(known["bytes"]))

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {**values, "bytes": list(self.bytes)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step."""

    accumulation: int
    """Its micro-batches."""
    segments: tuple[Segment, ...]
    """In the step's order."""
    collectives: tuple[TraceCollective, ...]
    """All of the step."""

    @classmethod
    def from_dict(cls, values: object) -> "Step":
        """Read a step. Raises ValueError where it is none."""
        known = _fields(cls, values)
        calls = _list("collectives", known["collectives"])
        return cls(
            accumulation=_whole("accumulation", known["accumulation"], least=1),
            segments=tuple(Segment.from_dict(one) for one in _list("segments", known["segments"])),
            collectives=tuple(TraceCollective.from_dict(one) for one in calls),
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "accumulation": self.accumulation,
            "segments": [one.as_dict() for one in self.segments],
            "collectives": [one.as_dict() for one in self.collectives],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """A dry run of one model at one depth."""

    device: str
    """cpu or cuda: whose allocator's rounding, and whose optimizer, was followed."""
    layers: int
    """Decoder layers of the model that was run."""
    micro_batch_sizes: tuple[int, ...]
    """One or two sizes, ascending, that every pair of figures is for."""
    steps: tuple[Step, ...]
    """One for each accumulation count."""
    block_bytes: int
    """The largest block of parameters that is gathered at once; 0 where nothing is sharded."""
    notes: tuple[str, ...]
    """What is to be known about the figures."""
    versions: Mapping[str, str]
    """Of the packages that were run."""
    seconds: float
    """That the dry run took."""

    @classmethod
    def from_dict(cls, values: object) -> "Trace":
        """Read a trace.

        Raises:
            ValueError: another format, an unknown or missing field, or a value of another kind.
        """
        known = dict(_mapping("trace", values))
        if (form := known.pop("format", None)) != FORMAT:
            raise ValueError(f"format: got {form!r}; traces of format {FORMAT} are read")
        known = _fields(cls, known)
        sizes = _list("micro_batch_sizes", known["micro_batch_sizes"])
        trace = cls(
            device=_text("device", known["device"]),
            layers=_whole("layers", known["layers"], least=1),
            micro_batch_sizes=tuple(_whole("micro_batch_sizes", s, least=1) for s in sizes),
            steps=tuple(Step.from_dict(step) for step in _list("steps", known["steps"])),
            block_bytes=_whole("block_bytes", known["block_bytes"]),
            notes=tuple(_text("notes", note) for note in _list("notes", known["notes"])),
            versions={
                str(name): _text("versions", version)
                for name, version in _mapping("versions", known["versions"]).items()
            },
            seconds=_number("seconds", known["seconds"]),
        )
        _check_sizes(trace)
        return trace

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, as the program gives them."""
        return {
            "format": FORMAT,
            "device": self.device,
            "layers": self.layers,
            "micro_batch_sizes": list(self.micro_batch_sizes),
            "steps": [step.as_dict() for step in self.steps],
            "block_bytes": self.block_bytes,
            "notes": list(self.notes),
            "versions": dict(self.versions),
            "seconds": self.seconds,
        }


def _check_sizes(trace: Trace) -> None:
    """Every pair has a figure for each size, and every segment a moment."""
    sizes = trace.micro_batch_sizes
    if not 1 <= len(sizes) <= 2 or sorted(set(sizes)) != list(sizes):
        raise ValueError(f"micro_batch_sizes: got {sizes}; must be one or two, ascending")
    if not trace.steps:
        raise ValueError("steps: must name at least one")
    for step in trace.steps:
        pairs = [call.bytes for call in step.collectives]
        for segment in step.segments:
            if not segment.lines:
                raise ValueError(f"lines: {segment.phase}, {segment.part} has none")
            for line in segment.lines:
                pairs += [line.bytes, *line.categories.values()]
        if any(len(pair) != len(sizes) for pair in pairs):
            raise ValueError(f"bytes: must have {len(sizes)} figures, one a micro-batch size")


def _fields(kind: type[T], values: object) -> dict[str, Any]:
    """The fields of a dataclass in a JSON object, no more and no fewer."""
    known = _mapping(kind.__name__, values)
    wanted = set(kind.__dataclass_fields__)  # type: ignore[attr-defined]
    if odd := wanted.symmetric_difference(known):
        raise ValueError(f"{kind.__name__}: unknown or missing fields {sorted(odd)}")
    return dict(known)


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{name}: got {type(value).__name__}; must be an object")
    return value


def _list(name: str, value: object) -> list[Any]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{name}: got {type(value).__name__}; must be a list")
    return list(value)


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name}: got {type(value).__name__}; must be a string")
    return value


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"{name}: got {value!r}; must be a number of 0 or more")
    return value


def _whole(name: str, value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: got {value!r}; must be an integer of {least} or more")
    return value


def _bytes(value: Iterable[object]) -> Bytes:
    return tuple(_number("bytes", one) for one in _list("bytes", value))


# Parts of a model that are no decoder layers.
OUTSIDE = ("before", "after")

# Micro-batch, phase and part of a segment; layers are counted from the nearer end.
Place = tuple[int, str, str]


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
