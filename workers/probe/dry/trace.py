"""From a ledger's log to a trace: the moments at which memory could be highest, as JSON's values.

A trace's ``lines`` hold bytes at each of its micro-batch sizes, of rank 0, each storage
rounded as the allocator rounds it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from workers.probe.collectives import Call, overlaps, summarize
from workers.probe.ddp import assigned, bytes_of
from workers.probe.dry.ledger import Category, Change, Ledger, Log, Segment, category_of
from workers.probe.record import versions
from workers.probe.spec import Request, Spec
from workers.probe.stack import Stack
from workers.probe.tracker import rounded

DDP_NOTE = (
    "ddp_buckets: DDP's buckets and its collectives are arithmetic; where gradients are reduced in"
    " another dtype than their own, each bucket's cast is held until backward's end, though a"
    " reduction that is faster frees some of them before"
)
_REDUCED_BYTES = {"bf16": 2, "fp32": 4}


class DdpBuckets:
    """DDP's buckets, whose reducer is C++ and does not run on fake tensors."""

    def __init__(self, stack: Stack, ledger: Ledger) -> None:
        self._stack, self._ledger, spec = stack, ledger, stack.spec
        parameters: list[torch.Tensor] = []
        if not spec.is_sharded and spec.data_parallel_size > 1:
            parameters = [p for p in stack.model.parameters() if p.requires_grad]
        self._buckets = assigned(parameters)
        self._sizes = [bytes_of(bucket) for bucket in self._buckets]
        # bytes that are reduced for each byte of gradients; where these are of the weights' usual
        # format and reduced in it, no hook casts them, whatever else there is
        casts = _REDUCED_BYTES[spec.reduce_dtype] != (2 if spec.precision == "bf16" else 4)
        width = _REDUCED_BYTES[spec.reduce_dtype]
        self._scales = [width / one[0].itemsize if casts else 1.0 for one in self._buckets]
        self._held: list[Change] = []
        self._missing: list[int] = []
        # a bucket is cast when backward has its last gradient
        for index, bucket in enumerate(self._buckets if casts else ()):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self._count(index))

    def start_backward(self) -> None:
        self._missing = [len(bucket) for bucket in self._buckets]

    def end_backward(self) -> None:
        # a cast can live as late as here: CPU ranks were seen with all of them
        for held in self._held:
            self._ledger.release(held)
        self._held.clear()

    def _count(self, index: int) -> Callable[[torch.Tensor], None]:
        def count(_: torch.Tensor) -> None:
            self._missing[index] -= 1
            stack = self._stack
            reduces = stack.accelerator.sync_gradients or stack.spec.settings.sync_each_batch
            if self._missing[index] == 0 and reduces:
                size = int(self._sizes[index] * self._scales[index])
                self._held.append(self._ledger.hold(size, Category.DDP_BUCKETS))

        return count

    @property
    def bytes(self) -> int:
        """Bytes that buckets take from the allocator, from the first step to the last."""
        return sum(map(rounded, self._sizes))

    def calls(self, spec: Spec) -> Iterator[Call]:
        """DDP's collectives of one step of ``spec``, in their order."""
        assert dist.group.WORLD is not None
        group, count = dist.group.WORLD.group_name, spec.accumulation_counts[-1]
        buffers = bytes_of(self._stack.model.buffers())
        follows_sync = True
        for micro_batch in range(1, count + 1) if self._sizes else ():
            # rank 0's buffers, before each forward that follows a synchronised backward
            # (``require_forward_param_sync`` in torch/nn/parallel/distributed.py)
            if follows_sync and buffers:
                yield Call("broadcast", group, "forward", micro_batch, buffers)
            follows_sync = spec.settings.sync_each_batch or micro_batch == count
            if follows_sync:
                for size, scale in zip(self._sizes, self._scales, strict=True):
                    reduced = int(size * scale)
                    yield Call("all_reduce", group, "backward", micro_batch, reduced)


def fsdp_units(model: nn.Module) -> Iterator[list[Any]]:
    """FSDP2's parameters by the unit that they are gathered in."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            # before torch 2.12 a module has at most one group
            groups = getattr(state, "_fsdp_param_groups", None)
            if groups is None:
                groups = [state._fsdp_param_group] if state._fsdp_param_group is not None else []
            for group in groups:
                yield group.fsdp_params


def largest_block_bytes(model: nn.Module, precision: str) -> int:
    """Bytes of the largest unit, gathered, its padding included; 0 where nothing is sharded."""
    casts = precision == "bf16_mixed"  # what is gathered then is not in its own precision
    return max(
        (
            sum(
                p.padded_sharded_param_size.numel()
                * p.mesh_info.shard_mesh_size
                * (torch.bfloat16 if casts else p.orig_dtype).itemsize
                for p in unit
            )
            for unit in fsdp_units(model)
        ),
        default=0,
    )


def unsharded_gradients(model: nn.Module) -> Iterator[torch.Tensor]:
    """Whole gradients that FSDP2 keeps until the last micro-batch."""
    for parameter in (p for unit in fsdp_units(model) for p in unit):
        if parameter.unsharded_accumulated_grad is not None:
            yield parameter.unsharded_accumulated_grad
        unsharded = getattr(parameter, "_unsharded_param", None)
        if unsharded is not None and unsharded.grad is not None:
            yield unsharded.grad


# Version of a trace's form.
FORMAT = 2
# The embedding, and the last norm with the output embedding: the parts around the layers.
BEFORE, AFTER = "before", "after"
# Moments of a segment that are all kept; where there are more, only their envelope is.
MOST_LINES = 64
CATEGORIES = tuple(Category)

# Bytes of each category, in ``CATEGORIES``' order, at one moment.
Point = tuple[int, ...]
# One moment at each micro-batch size.
Line = tuple[Point, ...]
# One step's turning points by segment, and its collectives in their order.
Tracked = tuple[Mapping[Segment, Sequence[Point]], Sequence[Call]]


class TrackedSteps(NamedTuple):
    accumulation: int  # micro-batches in the optimizer step
    at_sizes: Sequence[Tracked]  # a step at each micro-batch size


def trace_of(
    request: Request, stack: Stack, buckets: DdpBuckets, steps: Sequence[TrackedSteps]
) -> dict[str, Any]:
    """The trace, all but its ``seconds``."""
    spec = request.spec
    notes = [DDP_NOTE] if buckets.bytes else []
    if spec.optimizer == "adamw_8bit":
        notes.append("temporaries: torchao's compiled step is not run; what it makes is counted")
    if spec.optimizer == "paged_adamw_8bit" and spec.device == "cuda":
        notes.append("optimizer_state: what is paged is in unified memory, and not counted")
    if spec.device == "cuda":
        notes.append("cuda: followed on fake CPU tensors with foreach optimizers")
    axes, found = stack.axis_names(), []
    for step in steps:
        rows = []
        for size, (_, calls) in zip(request.micro_batch_sizes, step.at_sizes, strict=True):
            everything = [*calls, *buckets.calls(request.at(size, step.accumulation))]
            rows.append(summarize(everything, axes, overlaps(everything, axes)))
        found.append(
            {
                "accumulation": step.accumulation,
                "segments": _segments(request, step, buckets.bytes, notes),
                "collectives": joined(rows, notes),
            }
        )
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


def _segments(
    request: Request, step: TrackedSteps, buckets: int, notes: list[str]
) -> list[dict[str, Any]]:
    """The lines of each segment; ``buckets`` bytes are in all of them."""
    points = [segments for segments, _ in step.at_sizes]
    values = []
    for segment in points[0]:
        of_sizes = [of_size.get(segment, ()) for of_size in points]
        # Within a decoder layer all moments hold the same of the other layers, so that the highest
        # are so at every depth. Elsewhere (the optimizer above all) they grow with depth at rates
        # of their own, so all are told.
        apart = segment.part in (BEFORE, AFTER)
        found, matched = lines(of_sizes, request.micro_batch_sizes, keeps_all=apart)
        if not matched:
            name = f"micro-batch {segment.micro_batch}, {segment.phase}, {segment.part}"
            notes.append(f"{name}: moments differ between micro-batch sizes: peaks alone are kept")
        rows = []
        for line in found:
            categories = {
                str(category): [point[i] for point in line]
                for i, category in enumerate(CATEGORIES)
                if any(point[i] for point in line)
            }
            if buckets:
                casts = categories.get(str(Category.DDP_BUCKETS), [0] * len(line))
                categories[str(Category.DDP_BUCKETS)] = [buckets + cast for cast in casts]
            rows.append(
                {"bytes": [sum(point) + buckets for point in line], "categories": categories}
            )
        values.append({**segment._asdict(), "lines": rows})
    return values


def turning_points(log: Log) -> dict[Segment, list[Point]]:
    """The moments before memory falls, by segment, in the step's order.

    A moment is kept where a change upwards is followed by one downwards, and at a segment's
    start and end, so that a segment's highest point is always among its own. Which changes
    go up does not depend on the micro-batch size, so nor does the number of points. Changes before
    the first segment say what is there at its start.
    """
    index = {category: i for i, category in enumerate(CATEGORIES)}
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
        level[index[category_of(entry.block)]] += entry.by
    if here is not None and at_top:
        here.append(tuple(level))
    return points


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
    if len({len(of_size) for of_size in points}) > 1:
        return [tuple(max(of_size, key=sum) for of_size in points)], False
    candidates = list(zip(*points, strict=True))
    if keeps_all and len(candidates) <= MOST_LINES:
        return candidates, True
    if len(sizes) == 1:
        return [max(candidates, key=lambda line: sum(line[0]))], True
    low, high = sizes

    def slope(line: Line) -> Fraction:
        return Fraction(sum(line[1]) - sum(line[0]), high - low)

    def at(line: Line, size: Fraction) -> Fraction:
        return sum(line[0]) + slope(line) * (size - low)

    steepest: dict[Fraction, Line] = {}
    for line in candidates:  # of one slope only the highest matters
        known = steepest.get(slope(line))
        if known is None or sum(known[0]) < sum(line[0]):
            steepest[slope(line)] = line
    # walk from size 1 upwards: the highest line there, then each that overtakes first
    here = Fraction(1)
    top = max(steepest.values(), key=lambda line: (at(line, here), slope(line)))
    found = [top]
    while steeper := [line for s, line in steepest.items() if s > slope(top)]:
        gap = {
            id(line): (at(top, here) - at(line, here)) / (slope(line) - slope(top))
            for line in steeper
        }
        top = min(steeper, key=lambda line: (gap[id(line)], -slope(line)))
        here += gap[id(top)]
        found.append(top)
    return found, True


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
