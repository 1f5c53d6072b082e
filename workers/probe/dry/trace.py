"""What a dry run found, as JSON's values.

A trace's ``lines`` hold bytes at each of its micro-batch sizes, of rank 0, each storage
rounded as the allocator rounds it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from workers.probe import mesh as meshes
from workers.probe.dry.ddp import DDP_NOTE, ddp_calls, held_bytes
from workers.probe.dry.envelope import Line, lines
from workers.probe.dry.ledger import Category, Segment
from workers.probe.dry.request import Request
from workers.probe.dry.turning_points import CATEGORIES, Point
from workers.probe.dry.units import largest_block_bytes
from workers.probe.group import group_of_name
from workers.probe.overlap import overlaps
from workers.probe.record import versions
from workers.probe.spec import Spec
from workers.probe.stack import Stack
from workers.probe.summary import summarize
from workers.probe.tracker import Call

FORMAT = 1
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
    spec, axes = request.spec, meshes.axis_names(stack.mesh)
    buckets = held_bytes(stack)
    notes = _notes(spec, has_buckets=buckets > 0)
    found = [_step_values(request, stack, step, buckets, notes) for step in steps]
    return {
        "format": FORMAT,
        "device": spec.device,
        "layers": len(stack.decoder_layers()),
        "micro_batch_sizes": list(request.micro_batch_sizes),
        "steps": found,
        "axes": _axis_sizes(found, axes),
        "arithmetic_bytes": {str(Category.DDP_BUCKETS): buckets} if buckets else {},
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
        found, matched = lines(of_sizes, request.micro_batch_sizes)
        if not matched:
            name = f"micro-batch {segment.micro_batch}, {segment.phase}, {segment.part}"
            notes.append(f"{name}: moments differ between micro-batch sizes: peaks alone are kept")
        values.append({**segment._asdict(), "lines": [_line(line, buckets) for line in found]})
    return {
        "accumulation": step.accumulation,
        "segments": values,
        "collectives": _collectives(request, stack, step),
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


def _collectives(request: Request, stack: Stack, step: Step) -> list[dict[str, Any]]:
    """Collectives with their bytes at each size; their counts do not depend on it."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    sizes = request.micro_batch_sizes
    for index, (_, calls) in enumerate(step.at_sizes):
        spec = request.at(sizes[index], step.accumulation)
        for row in _summary(spec, stack, calls):
            key = (row["op"], row["axis"], row["phase"], row["overlap"], row["count"])
            values = found.setdefault(key, {**row, "bytes": [0] * len(sizes)})
            values["bytes"][index] = row["bytes"]
    return list(found.values())


def _summary(spec: Spec, stack: Stack, calls: Sequence[Call]) -> list[dict[str, Any]]:
    axes = meshes.axis_names(stack.mesh)
    everything = [*calls, *ddp_calls(spec, stack)]
    return summarize(everything, axes, [str(x) for x in overlaps(everything, axes)])


def _axis_sizes(steps: Sequence[Mapping[str, Any]], axes: Mapping[str, str]) -> dict[str, int]:
    used = {row["axis"] for step in steps for row in step["collectives"]}
    return {axis: group_of_name(name).size() for name, axis in axes.items() if axis in used}


def _notes(spec: Spec, *, has_buckets: bool) -> list[str]:
    notes = [DDP_NOTE] if has_buckets else []
    if spec.optimizer == "adamw_8bit":
        notes.append("optimizer_state: torchao's; its compiled step's temporaries are left out")
    if spec.device == "cuda":
        notes.append("cuda: followed on fake CPU tensors with foreach optimizers")
    return notes
