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
    found: list[Overlap] = []
    for index, call in enumerate(calls):
        axis = axes.get(call.group, call.group)
        if not axis.startswith("dp") or call.phase not in ("forward", "loss", "backward"):
            found.append(Overlap.EXPOSED)
        elif call.op == "all_gather":
            opens = call.phase == "forward" and _is_first(calls, index)
            found.append(Overlap.EXPOSED if opens else Overlap.PREFETCHED)
        else:
            closes = _is_last(calls, index)
            found.append(Overlap.EXPOSED if closes else Overlap.BEHIND_BACKWARD)
    return found


def _is_first(calls: Sequence[Call], index: int) -> bool:
    """Whether no call of this kind and pass comes before."""
    return not any(_same(calls[index], other) for other in _pass(calls[:index][::-1], "forward"))


def _is_last(calls: Sequence[Call], index: int) -> bool:
    """Whether no call of this kind and pass comes after."""
    return not any(_same(calls[index], other) for other in _pass(calls[index + 1 :], "backward"))


def _pass(calls: Sequence[Call], phase: str) -> list[Call]:
    """The calls up to the first of another phase."""
    end = next((i for i, call in enumerate(calls) if call.phase != phase), len(calls))
    return list(calls[:end])


def _same(one: Call, other: Call) -> bool:
    return (one.op, one.group) == (other.op, other.group)
