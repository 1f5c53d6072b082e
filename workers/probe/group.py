"""The process group of a probe's ranks: the real one, or one of which only this rank is there."""

import datetime
import os
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

COLLECTIVE_TIMEOUT = datetime.timedelta(hours=1)
"""Longer than any probe's deadline, which the supervisor keeps."""
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""accelerate wants one even where the process group is there already."""


def join(world_size: int, rank: int, backend: str, init_method: str) -> None:
    """Join the process group of the probe's ranks."""
    for name, value in ADDRESS.items():
        os.environ.setdefault(name, value)
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )


def join_fake_group(world_size: int) -> None:
    """Become rank 0 of ``world_size`` ranks, of which there is only this one.

    Nothing is sent. A gather fills every part with this rank's own; from torch 2.13 on a
    scatter keeps this rank's part of what would be summed, and before it leaves its result as
    it was allocated.
    """
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)}
    os.environ.update(place, **ADDRESS)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())


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
