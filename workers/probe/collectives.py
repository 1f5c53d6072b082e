"""Which collective an operator is, how many bytes it moves, and over which mesh axis.

``torch.distributed`` and DDP's reducer dispatch ``c10d`` operators, DTensor dispatches
``_c10d_functional`` ones; both pass a dispatch mode, on every backend.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

_KINDS: Mapping[str, str] = {
    "allgather_": "all_gather",
    "_allgather_base_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_": "reduce_scatter",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "broadcast_": "broadcast",
    "broadcast": "broadcast",
    "alltoall_": "all_to_all",
    "alltoall_base_": "all_to_all",
    "all_to_all_single": "all_to_all",
}
"""Operator name to the field's name of the collective."""


def kind_of(func: Any) -> str | None:
    """The collective that an operator is; ``None`` for all others (barriers too)."""
    if func.namespace not in ("c10d", "_c10d_functional"):
        return None
    return _KINDS.get(func.overloadpacket.__name__)


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


def moved_bytes(args: Iterable[Any], out: Any) -> int:
    """Bytes of the whole tensors: gathered, not yet scattered, or reduced.

    Inputs and outputs of a collective are arguments of their own (lists, when several are
    coalesced) or its result, and the larger side is the whole one.
    """
    return max(_bytes(tree) for tree in (*args, out))


def dtype_of(args: Iterable[Any], out: Any) -> torch.dtype:
    """The dtype of the largest tensor that is moved."""
    leaves = [x for x in tree_leaves((*args, out)) if isinstance(x, torch.Tensor)]
    return max(leaves, key=torch.Tensor.numel).dtype


def _bytes(tree: Any) -> int:
    leaves = [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]
    return sum(x.numel() * x.element_size() for x in leaves)
