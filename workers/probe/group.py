"""The process group of a probe's ranks: the real one, or one of which only this rank is there."""

import contextlib
import datetime
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import check_cuda_p2p_ib_support
from torch import Tensor
from torch._C._distributed_c10d import Store
from torch.testing._internal.distributed.fake_pg import FakeStore

COLLECTIVE_TIMEOUT = datetime.timedelta(hours=1)
"""Longer than any probe's deadline, which the supervisor keeps."""
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
"""accelerate wants one even where the process group is there already."""


Meeting = str | Callable[[int, int], Store]
"""Where ranks meet: an ``init_method`` of torch's, or what has the store of a rank of so many."""


def join(
    world_size: int, rank: int, backend: str, meeting: Meeting, device: torch.device | None = None
) -> None:
    """Join the process group of the probe's ranks, and meet them all over it.

    NCCL first looks for its peers when ranks first communicate. That is here, so that where it
    cannot reach them this is no failure of a step, and the group of all ranks has its buffers in
    every probe. Other groups get theirs as they do in training: ``init_process_group`` is not told
    the device, as accelerate does not tell it, or NCCL would split a communicator for each group at
    once, also for those of a mesh that are never used.

    Args:
        world_size: how many there are.
        rank: which this is.
        backend: gloo or nccl.
        meeting: where they meet.
        device: of this rank, for nccl.
    """
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
    meet(device)


def heed_peer_access(device: torch.device) -> dict[str, str]:
    """Keep NCCL from what GPUs and drivers cannot do, as ``accelerate launch`` does for its users.

    RTX 40 with drivers before 550.40.07 cannot reach each other's memory. ``Accelerator()`` refuses
    to start there unless NCCL is told so.

    Returns:
        The variables that were set; to be called before NCCL is used.
    """
    if device.type != "cuda" or check_cuda_p2p_ib_support():
        return {}
    told = {n: "1" for n in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE") if n not in os.environ}
    os.environ.update(told)
    return told


def meet(device: torch.device | None = None) -> None:
    """Wait for all ranks; one alone waits for none, and has no communicator.

    Args:
        device: of this rank, for nccl, which would guess it otherwise.
    """
    if dist.get_world_size() == 1:
        return
    is_nccl = dist.get_backend() == "nccl"
    dist.barrier(device_ids=[device.index] if is_nccl and device is not None else None)


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
    whole, part = _wide(output.view(-1)), _wide(shard.reshape(-1))
    if whole is None or part is None:
        whole, part = output.view(-1), shard.reshape(-1)
    parts = whole.view(-1, part.numel())
    parts.copy_(part.expand_as(parts))


def _wide(flat: Tensor) -> Tensor | None:
    """The same bytes in elements of 16; ``None`` where they cannot be had so.

    The copy's kernel takes so many elements in a second, whatever their size: a source that is
    repeated is not contiguous. In wide ones it comes near to the memory's bandwidth.
    """
    size = flat.numel() * flat.element_size()
    if not size or size % 16 or flat.data_ptr() % 16:
        return None
    return flat.view(torch.complex128)


def wait_for_watchdog() -> None:
    """Wait until NCCL's watchdog has seen the end of all that was sent in the world's group.

    A collective that nobody waits for by itself, but for its future, as DDP does, keeps its tensors
    until the watchdog has seen its end and another one begins (``shelvesToUnstash_`` in torch's
    ProcessGroupNCCL.hpp). It looks ten times a second.
    """
    assert dist.group.WORLD is not None
    if dist.get_backend() == "nccl":
        dist.group.WORLD._wait_for_pending_works()


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
