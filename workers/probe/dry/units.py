"""FSDP2's units: what is gathered together."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

_DTYPES = {"bf16_mixed": torch.bfloat16}
"""What parameters are gathered in, where it is not their own precision."""


def fsdp_units(model: nn.Module) -> Iterator[list[Any]]:
    """FSDP2's parameters by the unit that they are gathered in."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            for group in _groups(module._get_fsdp_state()):
                yield group.fsdp_params


def largest_block_bytes(model: nn.Module, precision: str) -> int:
    """Bytes of the largest unit, gathered, its padding included; 0 where nothing is sharded."""
    return max((_gathered_bytes(unit, precision) for unit in fsdp_units(model)), default=0)


def unsharded_gradients(model: nn.Module) -> Iterator[torch.Tensor]:
    """Whole gradients that FSDP2 keeps until the last micro-batch."""
    for parameter in (p for unit in fsdp_units(model) for p in unit):
        if parameter.unsharded_accumulated_grad is not None:
            yield parameter.unsharded_accumulated_grad
        unsharded = getattr(parameter, "_unsharded_param", None)
        if unsharded is not None and unsharded.grad is not None:
            yield unsharded.grad


def _gathered_bytes(unit: list[Any], precision: str) -> int:
    return sum(
        p.padded_sharded_param_size.numel()
        * p.mesh_info.shard_mesh_size
        * _DTYPES.get(precision, p.orig_dtype).itemsize
        for p in unit
    )


def _groups(state: Any) -> list[Any]:
    """Parameter groups of an FSDP2 module; before torch 2.12 there is at most one."""
    many = getattr(state, "_fsdp_param_groups", None)
    if many is not None:
        return list(many)
    return [state._fsdp_param_group] if state._fsdp_param_group is not None else []
