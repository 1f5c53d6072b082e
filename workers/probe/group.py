"""The process group of a probe's ranks: how they meet, and one of which only this rank is there."""

import contextlib
import datetime
import fcntl
import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate.utils import check_cuda_p2p_ib_support
from torch import Tensor
from torch._C._distributed_c10d import Store, TCPStore
from torch.testing._internal.distributed.fake_pg import FakeStore

from workers.probe.orders import ADDRESS, POLL_S

# Longer than any probe's deadline, which the supervisor keeps.
COLLECTIVE_TIMEOUT = datetime.timedelta(hours=1)
# Longer than nvidia-smi may take twice. A node's ranks may be numbered otherwise than by node.
FIRST_OF_NODE_TIMEOUT = datetime.timedelta(seconds=10)
# accelerate wants an address even where the process group is there already.
MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
# Linux's request for an interface's IPv4 address (linux/sockios.h).
SIOCGIFADDR = 0x8915

# The meeting place of ranks: torch's ``init_method``, or a function to a rank's store.
Meeting = str | Callable[[int, int], Store]


def rendezvous(place: Path, how: str) -> Meeting:
    """The place where the ranks of an order meet.

    Args:
        place: the order's folder.
        how: ``file`` where they are of one node, else ``address``: rank 0 opens a store, and
            tells in a file beside the order where it is. The supervisor keeps the deadline.
    """
    if how == "file":
        return f"file://{place}/rendezvous"
    address = place / ADDRESS

    def store_of(rank: int, world_size: int) -> Store:
        host, port = os.environ["MASTER_ADDR"], 0
        while rank != 0 and not port:
            try:
                host, told = address.read_text(encoding="utf-8").split()
                port = int(told)
            except FileNotFoundError:
                time.sleep(POLL_S)
        name_interface(host)
        store = TCPStore(
            host,
            port,
            world_size,
            is_master=rank == 0,
            timeout=COLLECTIVE_TIMEOUT,
            wait_for_workers=False,
        )
        if rank == 0:  # at once or not at all: others may be reading
            partial = address.with_suffix(".partial")
            partial.write_text(f"{host} {store.port}", encoding="utf-8")
            partial.replace(address)
        return store

    return store_of


def name_interface(host: str) -> None:
    """Have gloo talk over the interface that reaches rank 0's ``host``, unless one is named."""
    # by itself gloo takes the one that this host's name resolves to, often a loopback one
    if "GLOO_SOCKET_IFNAME" in os.environ:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        try:
            asked.connect((host, 1))  # nothing is sent: the kernel only picks a route
        except OSError:
            return
        own = str(asked.getsockname()[0])
    for _, name in socket.if_nameindex():
        if address_of(name) == own:
            os.environ["GLOO_SOCKET_IFNAME"] = name
            return


def address_of(interface: str) -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("256s", interface.encode()[:15])
        try:
            answer = fcntl.ioctl(asked.fileno(), SIOCGIFADDR, request)
        except OSError:
            return ""
        return socket.inet_ntoa(answer[20:24])


def join(
    world_size: int, rank: int, backend: str, meeting: Meeting, device: torch.device | None = None
) -> None:
    """Join the process group of the probe's ranks, and meet them all over it."""
    for name, value in MASTER.items():
        os.environ.setdefault(name, value)
    where: dict[str, Any] = (
        {"init_method": meeting}
        if isinstance(meeting, str)
        else {"store": meeting(rank, world_size)}
    )
    # It is not told the device, as accelerate does not tell it: NCCL would split a communicator for
    # each group at once, also for those of a mesh that are never used, with memory for each.
    dist.init_process_group(
        backend, **where, rank=rank, world_size=world_size, timeout=COLLECTIVE_TIMEOUT
    )
    # NCCL first looks for its peers when ranks first communicate. That is here, so that where it
    # cannot reach them this is no failure of a step, and the group of all ranks has its buffers in
    # every probe.
    meet(device)


def heed_peer_access(device: torch.device) -> dict[str, str]:
    """Keep NCCL from what GPUs and drivers cannot do, as ``accelerate launch`` does for its users.

    Returns:
        The variables that were set; to be called before NCCL is used.
    """
    # RTX 40 with drivers before 550.40.07 cannot reach each other's memory, and ``Accelerator()``
    # refuses to start there unless NCCL is told so.
    if device.type != "cuda" or check_cuda_p2p_ib_support():
        return {}
    told = {n: "1" for n in ("NCCL_P2P_DISABLE", "NCCL_IB_DISABLE") if n not in os.environ}
    os.environ.update(told)
    return told


def meet(device: torch.device | None = None) -> None:
    """Wait for all ranks; one alone waits for none, and has no communicator."""
    if dist.get_world_size() == 1:
        return
    # NCCL would guess the device otherwise
    is_nccl = dist.get_backend() == "nccl"
    dist.barrier(device_ids=[device.index] if is_nccl and device is not None else None)


def of_first_on_node(name: str, rank: int, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer that the first rank of this rank's node gets, on all ranks of the node.

    It passes through JSON, and is empty where it did not come in time. A name is asked once in a
    process group's life.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    if is_fake_group() or dist.get_world_size() == 1:
        return ask()
    # over the store that the ranks met at: no collective, whose buffers would count as the probe's
    store: Store = dist.distributed_c10d._get_default_store()
    key = f"{name}/{rank - local_rank}"
    if local_rank == 0:
        answer = ask()
        store.set(key, json.dumps(answer))
        return answer
    try:
        store.wait([key], FIRST_OF_NODE_TIMEOUT)
    except RuntimeError:  # DistError is one
        return {}
    return dict(json.loads(store.get(key)))


def wait_for_watchdog() -> None:
    """Wait until NCCL's watchdog has seen the end of all that was sent in the world's group."""
    # A collective that nobody waits for by itself, but for its future, as DDP does, keeps its
    # tensors until the watchdog, which looks ten times a second, has seen its end and another one
    # begins (``shelvesToUnstash_`` in torch's ProcessGroupNCCL.hpp).
    assert dist.group.WORLD is not None
    if dist.get_backend() == "nccl":
        dist.group.WORLD._wait_for_pending_works()


def join_fake_group(world_size: int) -> None:
    """Become rank 0 of ``world_size`` ranks, of which there is only this one.

    Nothing is sent. A gather fills every part with this rank's own.
    """
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world_size)}
    os.environ.update(place, **MASTER)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    dist.init_process_group("fake", rank=0, world_size=world_size, store=FakeStore())


def is_fake_group() -> bool:
    return dist.is_initialized() and dist.get_backend() == "fake"


def keep_own_parts() -> None:
    """Give a scatter a result where torch's fake group leaves it as it was allocated.

    That is before torch 2.13; from then on this rank's part of what would be summed is kept.
    """
    # Steps on whatever memory held would soon be of numbers that are none, and experts would get
    # other shares of the tokens than in training.
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

    It is no collective any more, so nothing of it is recorded.
    """
    # torch's own copies for each rank: hundreds of launches for each gather of a large cluster
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
    whole, part = output.view(-1), shard.reshape(-1)
    # A source that is repeated is not contiguous: the copy's kernel takes so many elements in a
    # second, whatever their size. In elements of 16 bytes it comes near to the memory's bandwidth.
    if all(
        flat.numel() and flat.nbytes % 16 == 0 and flat.data_ptr() % 16 == 0
        for flat in (whole, part)
    ):
        whole, part = whole.view(torch.complex128), part.view(torch.complex128)
    parts = whole.view(-1, part.numel())
    parts.copy_(part.expand_as(parts))


def gather_into(out: Tensor, shard: Tensor, *, group: dist.ProcessGroup) -> None:
    """Gather the shards of all ranks into ``out``, as large as all of them."""
    gather: Any = getattr(dist, "all_gather_single", None)  # its name from torch 2.13 on
    (gather or dist.all_gather_into_tensor)(out, shard, group=group)


def reduce_scatter_into(out: Tensor, whole: Tensor, *, group: dist.ProcessGroup) -> None:
    """Sum ``whole`` over the ranks, each keeping its part in ``out``."""
    scatter: Any = getattr(dist, "reduce_scatter_single", None)  # its name from torch 2.13 on
    (scatter or dist.reduce_scatter_tensor)(out, whole, group=group)


def group_of_name(name: str) -> dist.ProcessGroup:
    resolve: Any = getattr(dist.distributed_c10d, "_resolve_process_group")  # noqa: B009
    group: dist.ProcessGroup = resolve(name)
    return group
