"""What the dry-run program answers for one model, read strictly.

All bytes are of rank 0, each allocation rounded as the device's allocator rounds it. A pair of
figures belongs to the trace's micro-batch sizes; between and beyond them it is a straight line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

T = TypeVar("T")

FORMAT = 2
"""The form of a trace that is read here."""

Bytes = tuple[float, ...]
"""Bytes at each micro-batch size of the trace."""


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
