"""DDP's buckets by arithmetic: its reducer is C++ and does not run on fake tensors."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist

from workers.probe.spec import Spec
from workers.probe.stack import Stack
from workers.probe.tracker import BLOCK_BYTES, Call

FIRST_BUCKET_BYTES = 2**20
"""``dist._DEFAULT_FIRST_BUCKET_BYTES``: small, so that the first reduction starts early."""
BUCKET_BYTES = 25 * 2**20
"""``bucket_cap_mb`` of ``DistributedDataParallel`` where nobody sets it."""
DDP_NOTE = (
    "ddp_buckets: DDP's buckets and its collectives are arithmetic; where gradients are reduced in"
    " another dtype than their own, the buckets' casts in flight are left out"
)
_REDUCED_BYTES = {"bf16": 2, "fp32": 4}


def buckets(parameters: Iterable[torch.Tensor]) -> list[int]:
    """Bytes of DDP's buckets, in the order of their reductions.

    Gradients are ready from the last parameter to the first. A bucket of one dtype is closed
    by the gradient that brings it to its cap (``compute_bucket_assignment_by_size`` in
    torch/csrc/distributed/c10d/reducer.cpp), so a large gradient makes a large bucket.

    Args:
        parameters: that need gradients, in the model's order, each once.
    """
    closed: list[int] = []
    filling: dict[torch.dtype, int] = {}
    caps: dict[torch.dtype, int] = {}
    for parameter in reversed(list(parameters)):
        dtype = parameter.dtype
        filling[dtype] = filling.get(dtype, 0) + parameter.numel() * parameter.element_size()
        if filling[dtype] >= caps.get(dtype, FIRST_BUCKET_BYTES):
            closed.append(filling.pop(dtype))
            caps[dtype] = BUCKET_BYTES
    return closed + list(filling.values())


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
