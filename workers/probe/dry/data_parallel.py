"""The memory of data parallelism: DDP's buckets by arithmetic, and FSDP2's own units."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from workers.probe.collectives import Call
from workers.probe.ddp import assigned, bytes_of
from workers.probe.dry.ledger import Category, Change, Ledger
from workers.probe.spec import Spec
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
        """Backward ended: all is reduced."""
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
