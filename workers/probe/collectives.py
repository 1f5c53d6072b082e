"""The collectives of a step: seen as operators, added up by kind, and what hides each.

``torch.distributed`` and DDP's reducer dispatch ``c10d`` operators, DTensor dispatches
``_c10d_functional`` ones; both pass a dispatch mode, on every backend.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

# How names of operators begin, without underscores, by the field's name of the collective.
_KINDS: Mapping[str, str] = {
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "allreduce": "all_reduce",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
}


@dataclass(frozen=True, slots=True)
class Call:
    op: str
    group: str
    phase: str
    micro_batch: int
    bytes: int
    dtype: torch.dtype = torch.uint8  # the dtype of the largest tensor of it


class Overlap(StrEnum):
    """The work that runs at the same time as a collective."""

    PREFETCHED = "prefetched"
    """FSDP2 gathers a layer's parameters while the layer before computes."""
    BEHIND_BACKWARD = "behind_backward"
    """Gradients are reduced while backward computes those of the layers below."""
    EXPOSED = "exposed"
    """Nothing: computing waits for it."""


def kind_of(func: Any) -> str | None:
    """The collective that an operator is; ``None`` for all others (barriers too)."""
    if func.namespace not in ("c10d", "_c10d_functional"):
        return None
    name = func.overloadpacket.__name__.replace("_", "")
    return next((kind for begin, kind in _KINDS.items() if name.startswith(begin)), None)


def call_of(
    kind: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any, phase: str, step: int
) -> Call:
    """An operator's call as a collective of a micro-batch ``step`` of a phase.

    Its bytes are those of the whole tensors: gathered, not yet scattered, or reduced.
    """
    # Inputs and outputs are arguments of their own (lists, when several are coalesced) or the
    # result, and the larger side is the whole one.
    sides = [tensors_of(tree) for tree in (*args, out)]
    return Call(
        op=kind,
        group=group_of(args, kwargs),
        phase=phase,
        micro_batch=step,
        bytes=max(sum(x.numel() * x.element_size() for x in side) for side in sides),
        dtype=max((x for side in sides for x in side), key=torch.Tensor.numel).dtype,
    )


def group_of(args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """Name of the process group among an operator's arguments."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.ScriptObject):
            try:
                return str(dist.ProcessGroup.unbox(value).group_name)
            except RuntimeError:  # another kind of object, such as a reduction's
                continue
    names = [v for v in (*args, *kwargs.values()) if isinstance(v, str)]
    return names[-1] if names else ""


def tensors_of(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def overlaps(calls: Sequence[Call], axes: Mapping[str, str]) -> list[Overlap]:
    """The work that hides each call of a step, in the order of the calls."""
    # calls of one kind in one pass of one micro-batch; groups are told apart
    passes = [(call.op, call.group, call.phase, call.micro_batch) for call in calls]
    first = {which: index for index, which in reversed(list(enumerate(passes)))}
    last = {which: index for index, which in enumerate(passes)}
    found: list[Overlap] = []
    for index, (call, which) in enumerate(zip(calls, passes, strict=True)):
        axis = axes.get(call.group, call.group)
        # tensor parallelism needs each result at once; in the optimizer nothing else computes
        if not axis.startswith("dp") or call.phase not in ("forward", "loss", "backward"):
            found.append(Overlap.EXPOSED)
        # FSDP2 gathers ahead of use in forward, whose host thread runs ahead, and in backward,
        # which asks for the group before (torch/distributed/fsdp/_fully_shard/
        # _fsdp_param_group.py): only forward's first gather is waited for. All of backward's are
        # behind the head's backward, because the outermost group stays gathered.
        elif call.op == "all_gather":
            opens = call.phase == "forward" and first[which] == index
            found.append(Overlap.EXPOSED if opens else Overlap.PREFETCHED)
        # reductions have a stream of their own: nothing is left to compute behind the last
        else:
            closes = last[which] == index
            found.append(Overlap.EXPOSED if closes else Overlap.BEHIND_BACKWARD)
    return found


def summarize(
    calls: Sequence[Call], axes: Mapping[str, str], overlaps: Sequence[str] | None = None
) -> list[dict[str, object]]:
    """Calls of one step by operator, mesh axis and phase, and by overlap where it is known."""
    count: Counter[tuple[str, ...]] = Counter()
    size: Counter[tuple[str, ...]] = Counter()
    for index, call in enumerate(calls):
        overlap = () if overlaps is None else (str(overlaps[index]),)
        key = (call.op, axes.get(call.group, call.group), call.phase, *overlap)
        count[key] += 1
        size[key] += call.bytes
    names = ("op", "axis", "phase", "overlap")
    return [
        {**dict(zip(names, key, strict=False)), "count": n, "bytes": size[key]}
        for key, n in sorted(count.items())
    ]
