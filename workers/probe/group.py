"""The process group of a probe's ranks: the real one, or one of which only this rank is there."""

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.testing._internal.distributed.fake_pg import FakeStore

COLLECTIVE_TIMEOUT = datetime.timedelta(hours=1)
"""Longer than any probe's deadline, which the supervisor keeps."""
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""accelerate wants one even where the process group is there already."""


Meeting = str | Callable[[int, int], Store]
"""Where ranks meet: an ``init_method`` of torch's, or what has the store of a rank of so many."""


def join(world_size: int, rank: int, backend: str, meeting: Meeting) -> None:
    """Join the process group of the probe's ranks."""
    for name, value in ADDRESS.items():
        os.environ.setdefault(name, value)
    where: dict[str, Any]
    if isinstance(meeting, str):
        where = {"init_method": meeting}
    else:
        where = {"store": meeting(rank, world_size)}
    dist.init_process_group(
        backend,
        **where,
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )


def join_fake_group(world_size: int) -> None:
    """Become rank 0 of ``world_size`` ranks, of which there is only this one.

    Nothing is sent. A gather fills every part with this rank's own.
    """
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)}
    os.environ.update(place, **ADDRESS)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())


def keep_own_parts() -> None:
    """Give a scatter a result where torch's fake group leaves it as it was allocated.

    That is before torch 2.13; from then on this rank's part of what would be summed is kept.
    Steps on whatever memory held would soon be of numbers that are none, and experts would get
    other shares of the tokens than in training.
    """
    assert dist.group.WORLD is not None
    part, whole = torch.zeros(1), torch.ones(dist.get_world_size())
    reduce_scatter_into(part, whole, group=dist.group.WORLD)
    if not float(part):
        setattr(dist, "reduce_scatter_tensor", own_part_of(dist.reduce_scatter_tensor))  # noqa: B010


def own_part_of(scatter: Callable[..., Any]) -> Callable[..., Any]:
    """``scatter``, as ``dist.reduce_scatter_tensor``, with rank 0's part as its result."""

    def scattered(output: Tensor, input: Tensor, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
        work = scatter(output, input, *args, **kwargs)
        with torch.no_grad():
            output.copy_(input.reshape(-1)[: output.numel()].view_as(output))
        return work

    return scattered


@contextlib.contextmanager
def one_copy_gathers() -> Iterator[None]:
    """Under this, a gather in a fake group is one copy, as a real one is one kernel.

    torch's own copies for each rank: hundreds of launches for each gather of a large cluster.
    What is done instead is no collective, so nothing of it is recorded.
    """
    names = ("all_gather_single", "all_gather_into_tensor")  # torch 2.13, and before
    originals = {name: getattr(dist, name) for name in names if hasattr(dist, name)}
    for name in originals:
        setattr(dist, name, gather_own)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(dist, name, original)


@torch.no_grad()
def gather_own(output: Tensor, shard: Tensor, group: object = None, async_op: bool = False) -> None:
    """Fill every part of ``output`` with ``shard``, which may be one of its parts."""
    parts = output.view(-1, shard.numel())
    parts.copy_(shard.reshape(1, -1).expand_as(parts))


def is_fake_group() -> bool:
    """Whether the other ranks are not there."""
    return dist.is_initialized() and dist.get_backend() == "fake"


def gather_into(out: Tensor, shard: Tensor, *, group: dist.ProcessGroup) -> None:
    """Gather the shards of all ranks into ``out``, as large as all of them."""
    gather: Any = getattr(dist, "all_gather_single", None)  # its name from torch 2.13 on
    (gather or dist.all_gather_into_tensor)(out, shard, group=group)


def reduce_scatter_into(out: Tensor, whole: Tensor, *, group: dist.ProcessGroup) -> None:
    """Sum ``whole`` over the ranks, each keeping its part in ``out``."""
    scatter: Any = getattr(dist, "reduce_scatter_single", None)  # its name from torch 2.13 on
    (scatter or dist.reduce_scatter_tensor)(out, whole, group=group)


def group_of_name(name: str) -> dist.ProcessGroup:
    """The process group of a name."""
    resolve: Any = getattr(dist.distributed_c10d, "_resolve_process_group")  # noqa: B009
    group: dist.ProcessGroup = resolve(name)
    return group
