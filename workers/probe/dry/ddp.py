"""DDP's buckets by arithmetic: its reducer is C++ and does not run on fake tensors."""

from collections.abc import Iterator

import torch.distributed as dist

from workers.probe.replica import buckets
from workers.probe.spec import Spec
from workers.probe.stack import Stack
from workers.probe.tracker import BLOCK_BYTES, Call

DDP_NOTE = (
    "ddp_buckets: DDP's buckets and its collectives are arithmetic; where gradients are reduced in"
    " another dtype than their own, the buckets' casts in flight are left out"
)
_REDUCED_BYTES = {"bf16": 2, "fp32": 4}


def held_bytes(stack: Stack) -> int:
    """Bytes that buckets take from the allocator, from the first step to the last."""
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in _sizes(stack))


def ddp_calls(spec: Spec, stack: Stack) -> Iterator[Call]:
    """DDP's collectives of one step, in their order; none where it does not wrap the model.

    Rank 0's buffers are broadcast before each forward that follows a synchronised backward
    (``require_forward_param_sync`` in torch/nn/parallel/distributed.py).

    Args:
        spec: of the step.
        stack: what is trained.
    """
    assert dist.group.WORLD is not None
    group, sizes = dist.group.WORLD.group_name, _sizes(stack)
    buffers = sum(b.numel() * b.element_size() for b in stack.model.buffers())
    count = spec.accumulation_counts[-1]
    scale = _REDUCED_BYTES[spec.reduce_dtype] / (2 if spec.precision == "bf16" else 4)
    follows_sync = True
    for micro_batch in range(1, count + 1) if sizes else ():
        if follows_sync and buffers:
            yield Call("broadcast", group, "forward", micro_batch, buffers)
        follows_sync = spec.settings.sync_each_batch or micro_batch == count
        if follows_sync:
            for size in sizes:
                yield Call("all_reduce", group, "backward", micro_batch, int(size * scale))


def _sizes(stack: Stack) -> list[int]:
    spec = stack.spec
    if spec.is_sharded or spec.data_parallel_size == 1:
        return []
    return buckets(p for p in stack.model.parameters() if p.requires_grad)
