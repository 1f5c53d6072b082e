"""GPU kinds with their published figures, read from ``gpus.toml``."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from tuner.errors import UnknownNameError, UsageError

MIB = 2**20
# Relative difference in memory that is put down to the driver: releases differ by up to 1.8%.
SAME_MEMORY = 0.02
# Relative difference that is still the same GPU: error correction takes 6.25% of GDDR6.
ECC_MEMORY = 0.10

# Of a GPU's memory, what CUDA offers where that is not known: the least of the known kinds.
CUDA_SHARE = 0.99
# Of the peak, what wide products reach where nobody has published it: NVIDIA's reach 0.78 to 0.87.
MATMUL_SHARE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """The peak of a link between two GPUs."""

    bytes_per_s: float  # bytes per second that one GPU sends, in one direction
    latency_s: float  # seconds that one step of a ring takes, however little is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """One kind of GPU as published. Rates are peaks, dense, in floating-point operations per s."""

    name: str  # catalogue name, such as ``a100-80gb``
    title: str  # the vendor's name
    driver_names: tuple[str, ...]  # names under which drivers report it
    memory_bytes: int  # memory that the driver reports as total
    compute_capability: str  # of an NVIDIA GPU, such as ``8.6``; empty for others
    cuda_bytes: int  # what CUDA offers of it to processes
    bf16_flops_per_s: float | None  # matrix rate in bf16; ``None`` without bf16 matrix units
    fp16_flops_per_s: float  # matrix rate in fp16
    fp32_flops_per_s: float  # rate in plain fp32, without tensor cores
    matmul_share: float | None  # of the bf16 rate, what was measured of the best matrix products
    memory_bytes_per_s: float  # bandwidth of the device's memory
    intra_node: LinkFigures  # link to another GPU of the same node
    inter_node: LinkFigures  # default link to a GPU of another node
    host_bytes_per_s: float  # peak of the link to the host's memory, in one direction
    sources: Mapping[str, str]
    """The document of each figure: memory, capability (where there is one), rates,
    matmul (where it is known), memory_bandwidth, intra, inter, host, latency."""
    note: str = ""  # what else one should know
    aliases: tuple[str, ...] = ()  # other spellings; one of several kinds is ambiguous


@cache
def gpu_kinds() -> Mapping[str, GpuKind]:
    """All kinds by name, in the file's order. The file is read once."""
    data = tomllib.loads(files("tuner.catalog").joinpath("gpus.toml").read_text(encoding="utf-8"))

    def link(figures: Mapping[str, float]) -> LinkFigures:
        rate, latency = figures["gb_per_s"] * 1e9, figures["latency_us"] / 1e6
        return LinkFigures(bytes_per_s=rate, latency_s=latency)

    kinds = {}
    for name, row in data["kinds"].items():
        bf16 = row.get("bf16_tflops")
        documents = {figure: data["documents"][key] for figure, key in row["sources"].items()}
        kinds[name] = GpuKind(
            name=name,
            title=row["title"],
            driver_names=tuple(row["driver_names"]),
            memory_bytes=row["memory_mib"] * MIB,
            compute_capability=row.get("compute_capability", ""),
            cuda_bytes=int(row.get("cuda_mib", CUDA_SHARE * row["memory_mib"]) * MIB),
            bf16_flops_per_s=None if bf16 is None else bf16 * 1e12,
            fp16_flops_per_s=row["fp16_tflops"] * 1e12,
            fp32_flops_per_s=row["fp32_tflops"] * 1e12,
            matmul_share=row["matmul_tflops"] / bf16 if "matmul_tflops" in row else None,
            memory_bytes_per_s=row["memory_gb_per_s"] * 1e9,
            intra_node=link(row["intra"]),
            inter_node=link(row["inter"]),
            host_bytes_per_s=row["host_gb_per_s"] * 1e9,
            sources={k: f"{one['title']} (read: {one['read']})" for k, one in documents.items()},
            note=row.get("note", ""),
            aliases=tuple(alias for alias, named in data["aliases"].items() if name in named),
        )
    return kinds


# Of a GPU that the catalogue does not have.
BY_ITS_FIGURES = "(any other GPU is an object with name, memory_bytes and rates)"


def gpu_kind(name: str, field: str = "gpu") -> GpuKind:
    """The kind called ``name``; case and ``_`` for ``-`` do not matter, and aliases are known.

    Raises:
        UsageError: the name fits several kinds.
        UnknownNameError: it fits none; with the nearest names.
    """
    wanted = name.strip().lower().replace("_", "-")
    kinds = gpu_kinds()
    if wanted in kinds:
        return kinds[wanted]
    choices = [one.name for one in kinds.values() if wanted in one.aliases]
    if len(choices) == 1:
        return kinds[choices[0]]
    if choices:
        several = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise UsageError(field, name, f"there are several: write {several}")
    what = f"GPU {name[:80]!r} is not in the catalogue"
    raise UnknownNameError(field, name, kinds, BY_ITS_FIGURES, what=what)


def reported_kind(driver_name: str, memory_bytes: int) -> GpuKind | None:
    """The kind that a driver reports under ``driver_name`` with about ``memory_bytes``.

    ``None`` when no kind has that name, or when the memory is that of a part of the GPU (a slice,
    or a virtual GPU), for then the published rates are not its own.
    """
    for kind in gpu_kinds().values():
        if driver_name in kind.driver_names and _near(memory_bytes, kind.memory_bytes, ECC_MEMORY):
            return kind
    return None


def is_published_memory(kind: GpuKind, memory_bytes: int) -> bool:
    """Says if ``memory_bytes`` is the kind's own, up to differences between driver releases."""
    return _near(memory_bytes, kind.memory_bytes, SAME_MEMORY)


def matmul_share(name: str) -> float:
    """Share of the peak matrix rate that the widest products reach on a GPU of this name; an
    assumed one where the catalogue has none."""
    kind = gpu_kinds().get(name)
    return (kind.matmul_share if kind else None) or MATMUL_SHARE


def has_matmul_share(name: str) -> bool:
    """Tells whether that share was measured on GPUs of this name."""
    kind = gpu_kinds().get(name)
    return kind is not None and kind.matmul_share is not None


def cuda_bytes(name: str, memory_bytes: int) -> int:
    """Bytes that CUDA offers of a GPU's memory, of which its driver keeps some for itself; the name
    need not be one of the catalogue."""
    kind = gpu_kinds().get(name)
    if kind is not None and kind.memory_bytes == memory_bytes:
        return kind.cuda_bytes
    return int(CUDA_SHARE * memory_bytes)


def _near(value: int, published: int, tolerance: float) -> bool:
    return abs(value - published) <= tolerance * published
