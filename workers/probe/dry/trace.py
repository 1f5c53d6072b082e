"""What a dry run found, as JSON's values.

A trace's ``lines`` hold bytes at each of its micro-batch sizes, of rank 0, each storage
rounded as the allocator rounds it. Within a decoder layer all moments hold the same of the other
layers, so that the highest are so at every depth. Elsewhere (the optimizer above all) they grow
with depth at rates of their own, so all are told.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from workers.probe import mesh as meshes
from workers.probe.dry.ddp import DDP_NOTE, ddp_calls, held_bytes
from workers.probe.dry.envelope import Line, lines
from workers.probe.dry.ledger import Category, Segment
from workers.probe.dry.parts import AFTER, BEFORE
from workers.probe.dry.request import Request
from workers.probe.dry.turning_points import CATEGORIES, Point
from workers.probe.dry.units import largest_block_bytes
from workers.probe.overlap import overlaps
from workers.probe.record import versions
from workers.probe.spec import Spec
from workers.probe.stack import Stack
from workers.probe.summary import summarize
from workers.probe.tracker import Call

FORMAT = 2
"""Version of a trace's form."""

Tracked = tuple[Mapping[Segment, Sequence[Point]], Sequence[Call]]
"""One step's turning points by segment, and its collectives in their order."""


class Step(NamedTuple):
    """The tracked steps of one accumulation count."""

    accumulation: int
    """Micro-batches in the optimizer step."""
    at_sizes: Sequence[Tracked]
    """A step at each micro-batch size."""


def trace_of(request: Request, stack: Stack, steps: Sequence[Step]) -> dict[str, Any]:
    """The trace, all but its ``seconds``."""
    spec = request.spec
    buckets = held_bytes(stack)
    notes = _notes(spec, has_buckets=buckets > 0)
    found = [_step_values(request, stack, step, buckets, notes) for step in steps]
    return {
        "format": FORMAT,
        "device": spec.device,
        "layers": len(stack.decoder_layers()),
        "micro_batch_sizes": list(request.micro_batch_sizes),
        "steps": found,
        "block_bytes": largest_block_bytes(stack.model, spec.precision),
        "notes": notes,
        "versions": versions(),
    }


def _step_values(
    request: Request, stack: Stack, step: Step, buckets: int, notes: list[str]
) -> dict[str, Any]:
    points = [segments for segments, _ in step.at_sizes]
    values = []
    for segment in points[0]:
        of_sizes = [of_size.get(segment, ()) for of_size in points]
        apart = segment.part in (BEFORE, AFTER)
        found, matched = lines(of_sizes, request.micro_batch_sizes, keeps_all=apart)
        if not matched:
            name = f"micro-batch {segment.micro_batch}, {segment.phase}, {segment.part}"
            notes.append(f"{name}: moments differ between micro-batch sizes: peaks alone are kept")
        values.append({**segment._asdict(), "lines": [_line(line, buckets) for line in found]})
    return {
        "accumulation": step.accumulation,
        "segments": values,
        "collectives": _collectives(request, stack, step, notes),
    }


def _line(line: Line, buckets: int) -> dict[str, Any]:
    categories = {
        str(category): [point[i] for point in line]
        for i, category in enumerate(CATEGORIES)
        if any(point[i] for point in line)
    }
    if buckets:
        casts = categories.get(str(Category.DDP_BUCKETS), [0] * len(line))
        categories[str(Category.DDP_BUCKETS)] = [buckets + cast for cast in casts]
    return {"bytes": [sum(point) + buckets for point in line], "categories": categories}


def _collectives(
    request: Request, stack: Stack, step: Step, notes: list[str]
) -> list[dict[str, Any]]:
    """Collectives with their bytes at each size."""
    sizes = request.micro_batch_sizes
    specs = [request.at(size, step.accumulation) for size in sizes]
    at_sizes = [
        _summary(spec, stack, calls) for spec, (_, calls) in zip(specs, step.at_sizes, strict=True)
    ]
    return joined(at_sizes, notes)


def joined(
    at_sizes: Sequence[Iterable[Mapping[str, Any]]], notes: list[str]
) -> list[dict[str, Any]]:
    """Rows of each kind of collective at each size as one row, with the bytes of all sizes.

    One count stands for all sizes: the most, with a note where they differ.
    """
    found: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for index, rows in enumerate(at_sizes):
        for row in rows:
            kind = (row["op"], row["axis"], row["phase"], row["overlap"])
            nothing = [0] * len(at_sizes)
            known = found.setdefault(kind, {**row, "count": list(nothing), "bytes": nothing})
            known["bytes"][index], known["count"][index] = row["bytes"], row["count"]
    for kind, known in found.items():
        if len(set(known["count"])) > 1:
            notes.append(f"{' '.join(kind)}: {known['count']} calls, by micro-batch size")
        known["count"] = max(known["count"])
    return list(found.values())


def _summary(spec: Spec, stack: Stack, calls: Sequence[Call]) -> list[dict[str, Any]]:
    axes = meshes.axis_names(stack.mesh)
    everything = [*calls, *ddp_calls(spec, stack)]
    return summarize(everything, axes, [str(x) for x in overlaps(everything, axes)])


def _notes(spec: Spec, *, has_buckets: bool) -> list[str]:
    notes = [DDP_NOTE] if has_buckets else []
    if spec.optimizer == "adamw_8bit":
        notes.append("temporaries: torchao's compiled step is not run; what it makes is counted")
    if spec.device == "cuda":
        notes.append("cuda: followed on fake CPU tensors with foreach optimizers")
    return notes
