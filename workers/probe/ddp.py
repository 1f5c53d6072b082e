"""DDP where the other ranks are not there: its buckets, copies and collectives, on plain tensors.

DDP's reducer is C++ and fails in a fake process group. What it does in a step is little, and is
done here by hooks, so that memory and time hold it.
"""

import contextlib
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

# ``dist._DEFAULT_FIRST_BUCKET_BYTES``: small, so that the first reduction starts early.
FIRST_BUCKET_BYTES = 2**20
# ``bucket_cap_mb`` of ``DistributedDataParallel`` where nobody sets it.
BUCKET_BYTES = 25 * 2**20


def assigned(parameters: Iterable[torch.Tensor]) -> list[list[torch.Tensor]]:
    """The parameters of each of DDP's buckets, in the order of their reductions.

    Gradients are ready from the last parameter to the first. A bucket of one dtype is closed
    by the gradient that brings it to its cap (``compute_bucket_assignment_by_size`` in
    torch/csrc/distributed/c10d/reducer.cpp), so a large gradient makes a large bucket.
    """
    closed: list[list[torch.Tensor]] = []
    filling: dict[torch.dtype, list[torch.Tensor]] = {}
    caps: dict[torch.dtype, int] = {}
    for parameter in reversed(list(parameters)):
        dtype = parameter.dtype
        filling.setdefault(dtype, []).append(parameter)
        if bytes_of(filling[dtype]) >= caps.get(dtype, FIRST_BUCKET_BYTES):
            closed.append(filling.pop(dtype))
            caps[dtype] = BUCKET_BYTES
    return closed + list(filling.values())


class DdpAlone(nn.Module):
    """A model as DDP would train it, by one of its ranks.

    As in DDP (torch/nn/parallel/distributed.py, reducer.cpp), a bucket is reduced when its last
    gradient is there, and all are copied back at the end of backward.
    """

    def __init__(self, module: nn.Module, reduce_dtype: torch.dtype | None) -> None:
        super().__init__()
        self.module = module
        self._syncs = self._syncs_buffers = True
        parameters = [p for p in module.parameters() if p.requires_grad]
        self._buckets = [_Bucket(some, reduce_dtype) for some in assigned(parameters)]
        self._waiting = len(self._buckets)
        for bucket in self._buckets:
            for index, parameter in enumerate(bucket.parameters):
                parameter.register_post_accumulate_grad_hook(self._hook(bucket, index))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self._syncs = self._syncs, False
        try:
            yield
        finally:
            self._syncs = before

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        # as DDP: rank 0's buffers, before a forward that follows one with synchronisation
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = defaultdict(list)
        for buffer in self.module.buffers() if self._syncs_buffers else ():
            by_dtype[buffer.dtype].append(buffer.reshape(-1))
        for some in by_dtype.values():
            dist.broadcast(torch.cat(some), src=0)
        self._syncs_buffers = self._syncs
        return self.module(*args, **kwargs)

    def _hook(self, bucket: "_Bucket", index: int) -> Callable[[torch.Tensor], None]:
        # a parameter must not keep what keeps it: the collector sees no cycle through a hook
        own, its = weakref.ref(self), weakref.ref(bucket)

        def ready(_: torch.Tensor) -> None:
            ddp, filling = own(), its()
            if ddp is not None and filling is not None:
                ddp._ready(filling, index)

        return ready

    def _ready(self, bucket: "_Bucket", index: int) -> None:
        if self._syncs and bucket.take(index):
            self._waiting -= 1
            if self._waiting == 0:
                self._waiting = len(self._buckets)
                for done in self._buckets:
                    done.give_back()


class _Bucket:
    """One buffer, and the gradients that are copied into it and out of it again."""

    def __init__(self, parameters: list[torch.Tensor], reduce_dtype: torch.dtype | None) -> None:
        self.parameters = parameters
        sizes = [parameter.numel() for parameter in parameters]
        self._buffer = torch.empty(
            sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device
        )
        self._parts = self._buffer.split(sizes)
        self._reduce_dtype = reduce_dtype
        self._cast: torch.Tensor | None = None
        self._missing = len(parameters)

    @torch.no_grad()
    def take(self, index: int) -> bool:
        """Copy a gradient in; true if it was the last one, and the bucket is reduced now."""
        grad = self.parameters[index].grad
        assert grad is not None
        casts = self._reduce_dtype is not None
        share = 1.0 if casts else 1 / dist.get_world_size()
        torch.mul(grad.reshape(-1), share, out=self._parts[index])
        self._missing -= 1
        if self._missing:
            return False
        self._missing = len(self.parameters)
        if self._reduce_dtype is not None:
            self._cast = self._buffer.to(self._reduce_dtype).div_(dist.get_world_size())
            dist.all_reduce(self._cast)
            self._buffer.copy_(self._cast)
        else:
            dist.all_reduce(self._buffer)
        return True

    @torch.no_grad()
    def give_back(self) -> None:
        """Copy the reduced gradients to where the optimizer looks for them."""
        self._cast = None  # not before: of CPU ranks all casts were seen to live until here
        for parameter, part in zip(self.parameters, self._parts, strict=True):
            assert parameter.grad is not None
            parameter.grad.copy_(part.view_as(parameter.grad))


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
