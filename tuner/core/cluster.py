"""The cluster: equal nodes of equal GPUs, in its fields or as it is spelled."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

from tuner import machine
from tuner.catalog.gpus import (
    GpuKind,
    LinkFigures,
    gpu_kind,
    gpu_kinds,
    is_published_memory,
    reported_kind,
)
from tuner.core.bounds import Number, Spelled, Whole, check_bounds
from tuner.errors import UsageError

MOST_NODES = 65_536
MOST_GPUS_PER_NODE = 1_024
# CPU ranks of one machine; each holds a Python process with torch.
MOST_CPU_RANKS = 256
MOST_CORES = 65_536
# Characters of a processor's name.
LONGEST_NAME = 128
# Of links, memories and GPUs, per second: what no device is, and arithmetic still bears.
SLOWEST, FASTEST = 1.0, 1e21
LONGEST_LATENCY_S = 3600.0
_UNKNOWN = ", or left out when not known"
Rate = Annotated[
    float, Number(SLOWEST, FASTEST, f"must be a number from {SLOWEST:g} to {FASTEST:g}{_UNKNOWN}")
]
Latency = Annotated[
    float,
    Number(0.0, LONGEST_LATENCY_S, f"must be seconds from 0 to {LONGEST_LATENCY_S:g}{_UNKNOWN}"),
]
Price = Annotated[float, Number(0.0, 1e6, "must be a price of a GPU for an hour, such as 2.5")]
# CPU ranks that ``local`` uses of a machine without GPUs.
MOST_LOCAL_CPU_RANKS = 8

SPELLINGS = (
    "must look like 8xa100-80gb, 4x8xh100-80gb (nodes x GPUs x kind), cpu:2 (two CPU ranks),"
    " 2x2xcpu, local, or be a .toml or .json file"
)


class Device(StrEnum):
    """Kinds of device that a rank computes on."""

    CUDA = "cuda"  # one GPU (AMD's too: torch calls them cuda)
    CPU = "cpu"  # a share of this machine's cores and memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A link between two GPUs, as one of them sees it."""

    bytes_per_s: Rate | None = None
    """Bytes per second in one direction, at its peak; ``None`` when not known."""
    latency_s: Latency | None = None
    """Seconds that one step of a ring takes, however little is sent; ``None`` when not known."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One rank's device: a GPU, or a share of this machine."""

    name: Annotated[str, Spelled(r"\w[\w.+-]{0,63}", "must be a short name without spaces")]
    """Catalogue name, or a name of the user's own."""
    device: Device = Device.CUDA  # GPU or CPU
    memory_bytes: Annotated[int, Whole(2**20, 2**50)]
    """Usable memory: what the driver reports as total; for a CPU rank, its share of the RAM."""
    dense_bf16_flops_per_s: Rate | None = None
    """Peak rate of bf16 matrices without sparsity; ``None`` if unknown, or without such units."""
    memory_bytes_per_s: Rate | None = None  # peak bandwidth of its memory; ``None`` when not known
    dense_fp16_flops_per_s: Rate | None = None
    """Peak rate of fp16 matrices without sparsity; ``None`` when not known."""
    fp32_flops_per_s: Rate | None = None
    """Peak rate in plain fp32, without tensor cores; ``None`` when not known."""
    processor: Annotated[
        str,
        Spelled(f".{{0,{LONGEST_NAME}}}", f"must be a name of at most {LONGEST_NAME} characters"),
    ] = ""
    """Of a CPU rank, its machine's processor as the kernel names it; empty when not known."""
    cores: Annotated[int, Whole(0, MOST_CORES)] = 0
    """Of a CPU rank, its machine's cores, which all ranks share; 0 when not known."""
    compute_capability: Annotated[
        str, Spelled(r"([1-9][0-9]?\.[0-9])?", 'must look like "8.6"')
    ] = ""
    """Of a user's own NVIDIA GPU, such as ``8.6``. Empty where it is not known, and for GPUs of the
    catalogue, which has their own: see :attr:`capability`."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.device not in list(Device):
            raise UsageError("device", self.device, f"must be {' or '.join(Device)}")
        object.__setattr__(self, "device", Device(self.device))
        if not self.processor.isprintable():
            raise UsageError("processor", self.processor, "must be printable, in one line")
        is_cpu = self.device is Device.CPU
        for name in ("processor", "cores"):
            if getattr(self, name) and not is_cpu:
                raise UsageError(name, getattr(self, name), "is of CPU ranks")
        if self.compute_capability and is_cpu:
            raise UsageError("compute_capability", self.compute_capability, "is of NVIDIA GPUs")

    @property
    def capability(self) -> tuple[int, int]:
        """The compute capability that is stated, or else the catalogue's, or else Ampere's."""
        kind = gpu_kinds().get(self.name)
        text = self.compute_capability or (kind.compute_capability if kind else "")
        major, _, minor = (text or "8.0").partition(".")
        return int(major), int(minor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs; one rank on each GPU."""

    nodes: Annotated[int, Whole(1, MOST_NODES)]  # number of nodes
    gpus_per_node: Annotated[int, Whole(1, MOST_GPUS_PER_NODE)]  # GPUs, and ranks, of one node
    gpu: Gpu  # each of them
    intra_node: Link  # link between two GPUs of a node
    inter_node: Link  # link between GPUs of two nodes, as one GPU's share
    price_per_gpu_hour: Price | None = field(default=None, compare=False)
    """Of a GPU for an hour, in any currency, where it is known; no part of a question."""

    def __post_init__(self) -> None:
        check_bounds(self)
        if self.gpu.device is Device.CPU and self.world_size > MOST_CPU_RANKS:
            raise UsageError(
                "nodes x gpus_per_node", self.world_size, f"at most {MOST_CPU_RANKS} CPU ranks"
            )

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus_per_node

    @property
    def name(self) -> str:
        """The short spelling, such as ``4x8xh100-80gb``, ``8xa100-80gb`` or ``cpu:2``.

        It tells sizes and kind; figures of the user's own do not show in it.
        """
        if self.nodes > 1:
            return f"{self.nodes}x{self.gpus_per_node}x{self.gpu.name}"
        if self.gpu.device is Device.CPU:
            return f"cpu:{self.gpus_per_node}"
        return f"{self.gpus_per_node}x{self.gpu.name}"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; fields that few clusters have are left out where they say nothing: so
        the identity of questions does not hang on them."""
        values = asdict(self)
        values["gpu"]["device"] = str(self.gpu.device)
        del values["price_per_gpu_hour"]
        for name in ("processor", "cores", "compute_capability"):
            if not values["gpu"][name]:
                del values["gpu"][name]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Cluster":
        """The reverse of :meth:`as_dict`; links that are left out are unknown."""
        return cls(
            nodes=values["nodes"],
            gpus_per_node=values["gpus_per_node"],
            gpu=Gpu(**values["gpu"]),
            intra_node=Link(**values.get("intra_node", {})),
            inter_node=Link(**values.get("inter_node", {})),
        )


def parse_cluster(text: str, there: machine.Machine | None = None) -> Cluster:
    """The cluster that a user wrote.

    ``8xa100-80gb``; ``4x8xh100-80gb`` (nodes, GPUs of each, kind); ``a100-80gb`` (one); ``cpu:2``
    (two CPU ranks on this machine); ``2x2xcpu`` (two groups of two, standing for nodes); or
    ``local`` (this machine). ``there`` is another machine, whose CPU ranks are then meant. Raises
    UsageError: none of these, or a size that is out of bounds; UnknownNameError: an unknown GPU;
    with the nearest names."""
    wanted = text.strip().lower()
    if wanted == "local":
        return local_cluster(there)
    if ranks := re.fullmatch(r"cpu:([0-9]{1,18})", wanted):
        return _cpu_cluster(text, 1, int(ranks[1]), there)
    sizes = re.fullmatch(r"(?:([0-9]{1,18})x)?(?:([0-9]{1,18})x)?([a-z][a-z0-9._-]*)", wanted)
    if not sizes:
        raise UsageError("cluster", text, SPELLINGS)
    nodes, gpus = (sizes[1], sizes[2]) if sizes[2] else (None, sizes[1])
    if sizes[3] == "cpu":
        return _cpu_cluster(text, int(nodes or 1), int(gpus or 1), there)
    count = int(gpus or 1)
    try:
        kind = gpu_kind(sizes[3])
    except UsageError as error:
        raise error.at("cluster", text) from None
    _in_bounds(text, int(nodes or 1), MOST_NODES, "nodes")
    _in_bounds(text, count, MOST_GPUS_PER_NODE, "GPUs of a node")
    gpu = _gpu(kind, kind.memory_bytes)
    return Cluster(nodes=int(nodes or 1), gpus_per_node=count, gpu=gpu, **_links(kind))


def local_cluster(there: machine.Machine | None = None) -> Cluster:
    """This machine: its NVIDIA GPUs, or up to 8 CPU ranks where there are none.

    GPUs are read from ``nvidia-smi``; a kind that is not in the catalogue has the memory measured
    and rates unknown. AMD GPUs are not detected: name them, as in ``8xmi300x``. Raises UsageError:
    GPUs of different kinds or sizes, or a driver that does not answer."""
    if there is not None and there.others:
        nodes = [local_cluster(node) for node in there.nodes]
        if len({(node.gpus_per_node, node.gpu.name, node.gpu.cores) for node in nodes}) > 1:
            kinds = ", ".join(dict.fromkeys(node.name for node in nodes))
            raise UsageError("cluster", "local", f"its nodes differ ({kinds}); name equal ones")
        # CPU ranks have the smallest one's memory
        return replace(min(nodes, key=lambda node: node.gpu.memory_bytes), nodes=len(nodes))
    if there is not None and there.trouble:
        raise UsageError("cluster", "local", there.trouble)
    gpus = machine.visible_gpus() if there is None else there.gpus
    if not gpus:
        cores = machine.usable_cores() if there is None else there.cores
        return _cpu_cluster("local", 1, min(cores, MOST_LOCAL_CPU_RANKS), there)
    if len(set(gpus)) > 1:
        kinds = ", ".join(sorted({f"{gpu.name} with {gpu.memory_mib} MiB" for gpu in gpus}))
        raise UsageError(
            "cluster", "local", f"the GPUs of this machine differ ({kinds}); show one kind only"
        )
    memory_bytes = gpus[0].memory_mib * 2**20
    kind = reported_kind(gpus[0].name, memory_bytes)
    if kind is None:
        slug = re.sub(r"[^a-z0-9]+", "-", gpus[0].name.lower()).strip("-")[:64] or "gpu"
        gpu, links = Gpu(name=slug, memory_bytes=memory_bytes), {}
    else:
        # The published memory keeps `local` and the kind's name the same question.
        is_published = is_published_memory(kind, memory_bytes)
        gpu, links = _gpu(kind, kind.memory_bytes if is_published else memory_bytes), _links(kind)
    return Cluster(
        nodes=1, gpus_per_node=len(gpus), gpu=gpu,
        **{"intra_node": Link(), "inter_node": Link(), **links},
    )  # fmt: skip


def on_machine(cluster: Cluster, there: machine.Machine | None = None) -> Cluster:
    """A cluster whose CPU ranks are of a machine, by default this one, unless it names another.

    What is measured on CPU ranks holds for that processor and so many cores: they are part of the
    cluster, and of the identity of questions.
    """
    if cluster.gpu.device is not Device.CPU or cluster.gpu.processor:
        return cluster
    processor, cores = processor_of(there)
    return replace(cluster, gpu=replace(cluster.gpu, processor=processor, cores=cores))


def processor_of(there: machine.Machine | None) -> tuple[str, int]:
    """A machine's processor, as long as names may be, and cores; by default this one's."""
    if there is not None:
        return there.processor[:LONGEST_NAME], there.cores
    return machine.processor()[:LONGEST_NAME], machine.usable_cores()


def _cpu_cluster(
    text: str, nodes: int, ranks_per_node: int, there: machine.Machine | None
) -> Cluster:
    """Ranks that share a machine's memory, by default this one's; so do groups like nodes.

    Of several machines that one worker has, each is a node.
    """
    ranks = nodes * ranks_per_node
    _in_bounds(text, ranks, MOST_CPU_RANKS, "CPU ranks")
    whole_bytes = machine.memory_bytes() if there is None else there.memory_bytes
    sharing = ranks_per_node if there is not None and there.others else ranks
    share = Gpu(name="cpu", device=Device.CPU, memory_bytes=whole_bytes // sharing)
    found = Cluster(
        nodes=nodes, gpus_per_node=ranks_per_node, gpu=share, intra_node=Link(), inter_node=Link()
    )
    return on_machine(found, there)


def _in_bounds(text: str, count: int, most: int, what: str) -> None:
    if not 1 <= count <= most:
        raise UsageError("cluster", text, f"the number of {what} must be from 1 to {most}")


def _gpu(kind: GpuKind, memory_bytes: int) -> Gpu:
    return Gpu(
        name=kind.name,
        memory_bytes=memory_bytes,
        dense_bf16_flops_per_s=kind.bf16_flops_per_s,
        memory_bytes_per_s=kind.memory_bytes_per_s,
        dense_fp16_flops_per_s=kind.fp16_flops_per_s,
        fp32_flops_per_s=kind.fp32_flops_per_s,
    )


def _links(kind: GpuKind) -> dict[str, Any]:
    def link(figures: LinkFigures) -> Link:
        return Link(bytes_per_s=figures.bytes_per_s, latency_s=figures.latency_s)

    return {"intra_node": link(kind.intra_node), "inter_node": link(kind.inter_node)}


def catalogue_gpu(name: str, field: str) -> tuple[Gpu, dict[str, Any]]:
    """A GPU of the catalogue, and the links that go with it. Raises UnknownNameError: there is none
    of this name; told of ``field``."""
    kind = gpu_kind(name, field)
    return _gpu(kind, kind.memory_bytes), _links(kind)
