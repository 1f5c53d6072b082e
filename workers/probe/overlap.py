"""What hides each collective of a step."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from workers.probe.tracker import Call


class Overlap(StrEnum):
    """What runs at the same time as a collective."""

    PREFETCHED = "prefetched"
    """FSDP2 gathers a layer's parameters while the layer before computes."""
    BEHIND_BACKWARD = "behind_backward"
    """Gradients are reduced while backward computes those of the layers below."""
    EXPOSED = "exposed"
    """Nothing: computing waits for it."""


def overlaps(calls: Sequence[Call], axes: Mapping[str, str]) -> list[Overlap]:
    """What hides each call of a step, in the order of the calls.

    FSDP2 gathers ahead of use in forward (its host thread runs ahead) and in backward (it asks
    for the group before), and reduces on a stream of its own (torch/distributed/fsdp/
    _fully_shard/_fsdp_param_group.py), so a pass waits for its first gather in forward and
    for its last reductions. All of backward's gathers are behind the head's backward, because
    the outermost group stays gathered. Tensor parallelism needs each result at once.

    Args:
        calls: of one step, in their order.
        axes: name of the mesh axis of each process group.
    """
    first: dict[tuple[str, ...], int] = {}
    last: dict[tuple[str, ...], int] = {}
    for index, call in enumerate(calls):
        first.setdefault(_pass(call), index)
        last[_pass(call)] = index
    found: list[Overlap] = []
    for index, call in enumerate(calls):
        axis = axes.get(call.group, call.group)
        if not axis.startswith("dp") or call.phase not in ("forward", "loss", "backward"):
            found.append(Overlap.EXPOSED)
        elif call.op == "all_gather":
            opens = call.phase == "forward" and first[_pass(call)] == index
            found.append(Overlap.EXPOSED if opens else Overlap.PREFETCHED)
        else:
            closes = last[_pass(call)] == index
            found.append(Overlap.EXPOSED if closes else Overlap.BEHIND_BACKWARD)
    return found


def _pass(call: Call) -> tuple[str, ...]:
    """What a call has in common with its like in the same pass of one micro-batch."""
    return call.op, call.group, call.phase, str(call.micro_batch)
