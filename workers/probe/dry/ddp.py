"""DDP's buckets by arithmetic: its reducer is C++ and does not run on fake tensors."""

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

from workers.probe.dry.ledger import Category, Change, Ledger
from workers.probe.replica import assigned, buckets, bytes_of
from workers.probe.spec import Spec
from workers.probe.stack import Stack
from workers.probe.tracker import BLOCK_BYTES, Call

DDP_NOTE = (
    "ddp_buckets: DDP's buckets and its collectives are arithmetic; where gradients are reduced in"
    " another dtype than their own, each bucket's cast is held until backward's end, though a"
    " reduction that is faster frees some of them before"
)
_REDUCED_BYTES = {"bf16": 2, "fp32": 4}


class Casts:
    """Casts of buckets to the dtype that they are reduced in, as the stack's own hook makes them.

    A bucket is cast when backward has its last gradient. The cast lives until it is reduced,
    which can be as late as backward's end: CPU ranks were seen with all of them.

    Args:
        stack: what is trained; nothing is cast where DDP does not wrap it, or where gradients
            are reduced in their own dtype.
        ledger: told of casts.
    """

    def __init__(self, stack: Stack, ledger: Ledger) -> None:
        self._stack, self._ledger = stack, ledger
        self._held: list[Change] = []
        self._missing: list[int] = []
        self._buckets: list[list[torch.Tensor]] = []
        if _scale(stack.spec) == 1:
            return
        self._buckets = assigned(_reduced(stack))
        for index, bucket in enumerate(self._buckets):
            for parameter in bucket:
                parameter.register_post_accumulate_grad_hook(self._count(index))

    def start(self) -> None:
        """Backward begins: no gradient is there."""
        self._missing = [len(bucket) for bucket in self._buckets]

    def end(self) -> None:
        """Backward ended: all is reduced."""
        for held in self._held:
            self._ledger.release(held)
        self._held.clear()

    def _count(self, index: int) -> Callable[[torch.Tensor], None]:
        def count(_: torch.Tensor) -> None:
            self._missing[index] -= 1
            reduces = (
                self._stack.accelerator.sync_gradients or self._stack.spec.settings.sync_each_batch
            )
            if self._missing[index] == 0 and reduces:
                size = int(bytes_of(self._buckets[index]) * _scale(self._stack.spec))
                self._held.append(self._ledger.hold(size, Category.DDP_BUCKETS))

        return count


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
    scale = _scale(spec)
    follows_sync = True
    for micro_batch in range(1, count + 1) if sizes else ():
        if follows_sync and buffers:
            yield Call("broadcast", group, "forward", micro_batch, buffers)
        follows_sync = spec.settings.sync_each_batch or micro_batch == count
        if follows_sync:
            for size in sizes:
                yield Call("all_reduce", group, "backward", micro_batch, int(size * scale))


def _sizes(stack: Stack) -> list[int]:
    return buckets(_reduced(stack))


def _reduced(stack: Stack) -> list[torch.Tensor]:
    """Parameters whose gradients DDP reduces."""
    spec = stack.spec
    if spec.is_sharded or spec.data_parallel_size == 1:
        return []
    return [p for p in stack.model.parameters() if p.requires_grad]


def _scale(spec: Spec) -> float:
    """Bytes that are reduced for each byte of gradients."""
    return _REDUCED_BYTES[spec.reduce_dtype] / (2 if spec.precision == "bf16" else 4)
