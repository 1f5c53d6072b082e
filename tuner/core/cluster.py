"""A file that describes a cluster, read as plain values."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from tuner.catalog.gpus import (
    GpuKind,
    LinkFigures,
    gpu_kind,
    is_published_memory,
    reported_kind,
)
from tuner.errors import UsageError
from tuner.machine import facts as machine

LARGEST_FILE_BYTES = 64 * 1024


def read_cluster_file(path: Path) -> Any:
    """Reads a TOML or JSON file, by the ending of its name; its fields are not looked at.

    Raises:
        UsageError: it cannot be read, is too large, or is not what its name says.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # a ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("cluster", str(path), f"cannot be read: {reason}") from error
    if len(data) > LARGEST_FILE_BYTES:
        raise UsageError("cluster", str(path), f"must be at most {LARGEST_FILE_BYTES} bytes")
    loads = tomllib.loads if path.suffix.lower() == ".toml" else json.loads
    try:
        return loads(data.decode())
    except (ValueError, RecursionError) as error:
        reason = str(error) or "nested too deeply"
        raise UsageError("cluster", str(path), f"is not {path.suffix[1:]}: {reason}") from error


T = TypeVar("T")

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

    bytes_per_s: float | None = None
    """Bytes per second in one direction, at its peak; ``None`` when not known."""
    latency_s: float | None = None
    """Seconds that one step of a ring takes, however little is sent; ``None`` when not known."""

    def __post_init__(self) -> None:
        _rate(self, "bytes_per_s", SLOWEST, FASTEST)
        _rate(self, "latency_s", 0.0, LONGEST_LATENCY_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One rank's device: a GPU, or a share of this machine."""

    name: str
    """Catalogue name, or a name of the user's own."""
    device: Device = Device.CUDA
    """GPU or CPU."""
    memory_bytes: int
    """Usable memory: what the driver reports as total; for a CPU rank, its share of the RAM."""
    dense_bf16_flops_per_s: float | None = None
    """Peak rate of bf16 matrices without sparsity; ``None`` if unknown, or without such units."""
    memory_bytes_per_s: float | None = None
    """Peak bandwidth of its memory; ``None`` when not known."""
    dense_fp16_flops_per_s: float | None = None
    """Peak rate of fp16 matrices without sparsity; ``None`` when not known."""
    fp32_flops_per_s: float | None = None
    """Peak rate in plain fp32, without tensor cores; ``None`` when not known."""
    processor: str = ""
    """Of a CPU rank, its machine's processor as the kernel names it; empty when not known."""
    cores: int = 0
    """Of a CPU rank, its machine's cores, which all ranks share; 0 when not known."""
    compute_capability: str = ""
    """Of a user's own NVIDIA GPU, such as ``8.6``. Empty where it is not known, and for GPUs of the
    catalogue, which has their own (:func:`tuner.cost.memory.attention.capability_of`)."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not re.fullmatch(r"[\w][\w.+-]{0,63}", self.name):
            raise UsageError("name", self.name, "must be a short name without spaces")
        if self.device not in list(Device):
            raise UsageError("device", self.device, f"must be {' or '.join(Device)}")
        object.__setattr__(self, "device", Device(self.device))
        _whole(self, "memory_bytes", 2**20, 2**50)
        for rate in (
            "dense_bf16_flops_per_s",
            "memory_bytes_per_s",
            "dense_fp16_flops_per_s",
            "fp32_flops_per_s",
        ):
            _rate(self, rate, SLOWEST, FASTEST)
        self._check_processor()
        self._check_capability()

    def _check_processor(self) -> None:
        name = self.processor
        if not isinstance(name, str) or len(name) > LONGEST_NAME or not name.isprintable():
            allowed = f"must be a name of at most {LONGEST_NAME} characters, in one line"
            raise UsageError("processor", name, allowed)
        _whole(self, "cores", 0, MOST_CORES)
        if self.device is not Device.CPU and (self.processor or self.cores):
            given = self.processor or self.cores
            raise UsageError("processor" if self.processor else "cores", given, "is of CPU ranks")

    def _check_capability(self) -> None:
        capability = self.compute_capability
        if capability == "":
            return
        if not isinstance(capability, str) or not re.fullmatch(r"[1-9][0-9]?\.[0-9]", capability):
            raise UsageError("compute_capability", capability, 'must look like "8.6"')
        if self.device is Device.CPU:
            raise UsageError("compute_capability", capability, "is of NVIDIA GPUs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Equal nodes of equal GPUs; one rank on each GPU."""

    nodes: int
    """Number of nodes."""
    gpus_per_node: int
    """GPUs, and ranks, of one node."""
    gpu: Gpu
    """Each of them."""
    intra_node: Link
    """Link between two GPUs of a node."""
    inter_node: Link
    """Link between GPUs of two nodes, as one GPU's share."""

    def __post_init__(self) -> None:
        _whole(self, "nodes", 1, MOST_NODES)
        _whole(self, "gpus_per_node", 1, MOST_GPUS_PER_NODE)
        if self.gpu.device is Device.CPU and self.world_size > MOST_CPU_RANKS:
            raise UsageError(
                "nodes x gpus_per_node", self.world_size, f"at most {MOST_CPU_RANKS} CPU ranks"
            )

    @property
    def world_size(self) -> int:
        """Ranks of the whole cluster."""
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
        for name in ("processor", "cores", "compute_capability"):
            if not values["gpu"][name]:
                del values["gpu"][name]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Cluster":
        """The reverse of :meth:`as_dict`; it also reads what a user writes.

        ``gpu`` may be a catalogue name, and then links may be left out: they are the kind's. Links
        of other GPUs may be left out too, and are unknown then.

        Raises:
            UsageError: a field is missing, unknown, of a wrong type or out of bounds; named with
                its path, such as ``cluster.gpu.memory_bytes``.
        """
        fields = _table("cluster", values, {"nodes", "gpus_per_node", "gpu"}, _LINKS)
        gpu, links = _read_gpu(fields["gpu"])
        for name in _LINKS & fields.keys():
            links[name] = _read(Link, f"cluster.{name}", fields[name])
        return _built(cls, "cluster", {**fields, **links, "gpu": gpu})


_LINKS = {"intra_node", "inter_node"}


def parse_cluster(
    text: str, *, allow_files: bool = True, there: machine.Machine | None = None
) -> Cluster:
    """The cluster that a user wrote.

    Args:
        text: ``8xa100-80gb``; ``4x8xh100-80gb`` (nodes, GPUs of each, kind); ``a100-80gb`` (one);
            ``cpu:2`` (two CPU ranks on this machine); ``2x2xcpu`` (two groups of two, standing for
            nodes); ``local`` (this machine); or the path of a file that ends in ``.toml`` or
            ``.json``, with the fields of :class:`Cluster`.
        allow_files: whether a path is read. Off for text that comes over a network.
        there: another machine, whose CPU ranks are then meant, and which is ``local``.

    Raises:
        UsageError: none of these, a size that is out of bounds, or a bad file.
        UnknownNameError: an unknown GPU; with the nearest names.
    """
    wanted = text.strip()
    if allow_files and wanted.lower().endswith((".toml", ".json")):
        return on_machine(Cluster.from_dict(read_cluster_file(Path(wanted))), there)
    wanted = wanted.lower()
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
    return _named(text, int(nodes or 1), int(gpus or 1), sizes[3])


def local_cluster(there: machine.Machine | None = None) -> Cluster:
    """This machine: its NVIDIA GPUs, or up to 8 CPU ranks where there are none.

    GPUs are read from ``nvidia-smi``; a kind that is not in the catalogue has the memory measured
    and rates unknown. AMD GPUs are not detected: name them, as in ``8xmi300x``.

    Args:
        there: another machine, which is then told instead.

    Raises:
        UsageError: GPUs of different kinds or sizes, or a driver that does not answer.
    """
    if there is not None and there.others:
        return _equal_nodes([local_cluster(node) for node in there.nodes])
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
    return _local_gpus(gpus[0], len(gpus))


def _equal_nodes(nodes: Sequence[Cluster]) -> Cluster:
    """One cluster of nodes that were told as one each; CPU ranks have the smallest one's memory."""
    least = min(nodes, key=lambda node: node.gpu.memory_bytes)
    sizes = {(node.gpus_per_node, node.gpu.name, node.gpu.cores) for node in nodes}
    if len(sizes) > 1:
        kinds = ", ".join(dict.fromkeys(node.name for node in nodes))
        raise UsageError("cluster", "local", f"its nodes differ ({kinds}); name equal ones")
    return replace(least, nodes=len(nodes))


def _local_gpus(gpu: machine.ReportedGpu, count: int) -> Cluster:
    memory_bytes = gpu.memory_mib * 2**20
    kind = reported_kind(gpu.name, memory_bytes)
    if kind is None:
        slug = re.sub(r"[^a-z0-9]+", "-", gpu.name.lower()).strip("-")[:64] or "gpu"
        unknown = Gpu(name=slug, memory_bytes=memory_bytes)
        return Cluster(
            nodes=1, gpus_per_node=count, gpu=unknown, intra_node=Link(), inter_node=Link()
        )
    # The published memory keeps `local` and the kind's name the same question.
    published = kind.memory_bytes if is_published_memory(kind, memory_bytes) else memory_bytes
    return Cluster(nodes=1, gpus_per_node=count, gpu=_gpu(kind, published), **_links(kind))


def _named(text: str, nodes: int, gpus_per_node: int, name: str) -> Cluster:
    kind = gpu_kind(name, "cluster")
    _in_bounds(text, nodes, MOST_NODES, "nodes")
    _in_bounds(text, gpus_per_node, MOST_GPUS_PER_NODE, "GPUs of a node")
    return Cluster(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        gpu=_gpu(kind, kind.memory_bytes),
        **_links(kind),
    )


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


def _links(kind: GpuKind) -> dict[str, Link]:
    def link(figures: LinkFigures) -> Link:
        return Link(bytes_per_s=figures.bytes_per_s, latency_s=figures.latency_s)

    return {"intra_node": link(kind.intra_node), "inter_node": link(kind.inter_node)}


def _read_gpu(value: object) -> tuple[Gpu, dict[str, Link]]:
    """The GPU of a name or a table, and the links that go with it."""
    if value == Device.CPU:
        allowed = 'for CPU ranks, a table with name, device = "cpu" and memory_bytes'
        raise UsageError("cluster.gpu", value, allowed)
    if isinstance(value, str):
        kind = gpu_kind(value, "cluster.gpu")
        return _gpu(kind, kind.memory_bytes), _links(kind)
    if not isinstance(value, Mapping):
        raise UsageError("cluster.gpu", value, "must be a catalogue name or a table of fields")
    gpu = _read(Gpu, "cluster.gpu", value, frozenset({"name", "memory_bytes"}))
    return gpu, {name: Link() for name in _LINKS}


def _read(kind: type[T], path: str, value: object, required: frozenset[str] = frozenset()) -> T:
    optional = set(kind.__annotations__) - required
    return _built(kind, path, _table(path, value, required, optional))


def _table(path: str, value: object, required: Set[str], optional: Set[str]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(path, value, "must be a table of fields")
    for name in value:
        if name not in required | optional:
            known = ", ".join(sorted(required | optional))
            raise UsageError(f"{path}.{name}", value[name], f"no such field; there are {known}")
    for name in sorted(required - value.keys()):
        raise UsageError(f"{path}.{name}", None, "is required")
    return dict(value)


def _built(kind: type[T], path: str, fields: Mapping[str, Any]) -> T:
    try:
        return kind(**fields)
    except UsageError as error:
        raise UsageError(f"{path}.{error.field}", error.given, error.allowed) from error


def _whole(owner: object, name: str, least: int, most: int) -> None:
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(name, value, f"must be a whole number from {least} to {most}")


def _rate(owner: object, name: str, least: float, most: float) -> None:
    """A figure that may be unknown; stored as float."""
    value = getattr(owner, name)
    if value is None:
        return
    is_number = not isinstance(value, bool) and isinstance(value, int | float)
    if not is_number or not least <= value <= most:
        allowed = f"must be a number from {least:g} to {most:g}, or left out when not known"
        raise UsageError(name, value, allowed)
    object.__setattr__(owner, name, float(value))
