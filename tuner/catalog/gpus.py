"""GPU kinds with their published figures, read from ``gpus.toml``."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tuner.errors import UnknownNameError, UsageError

MIB = 2**20
# Relative difference in memory that is put down to the driver: releases differ by up to 1.8%.
SAME_MEMORY = 0.02
# Relative difference that is still the same GPU: error correction takes 6.25% of GDDR6.
ECC_MEMORY = 0.10

# Of a GPU's memory, what CUDA offers where that is not known: the least of the known kinds.
CUDA_SHARE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFigures:
    """The peak of a link between two GPUs."""

    bytes_per_s: float
    """Bytes per second that one GPU sends, in one direction."""
    latency_s: float
    """Seconds that one step of a ring takes, however little is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuKind:
    """One kind of GPU as published. Rates are peaks, dense, in floating-point operations per s."""

    name: str
    """Catalogue name, such as ``a100-80gb``."""
    title: str
    """The vendor's name."""
    driver_names: tuple[str, ...]
    """Names under which drivers report it."""
    memory_bytes: int
    """Memory that the driver reports as total."""
    compute_capability: str
    """Of an NVIDIA GPU, such as ``8.6``; empty for others."""
    cuda_bytes: int
    """What CUDA offers of it to processes."""
    bf16_flops_per_s: float | None
    """Matrix rate in bf16; ``None`` without bf16 matrix units."""
    fp16_flops_per_s: float
    """Matrix rate in fp16."""
    fp32_flops_per_s: float
    """Rate in plain fp32, without tensor cores."""
    memory_bytes_per_s: float
    """Bandwidth of the device's memory."""
    intra_node: LinkFigures
    """Link to another GPU of the same node."""
    inter_node: LinkFigures
    """Default link to a GPU of another node."""
    host_bytes_per_s: float
    """Peak of the link to the host's memory, in one direction."""
    sources: Mapping[str, str]
    """The document of each figure: memory, capability (where there is one), rates,
    memory_bandwidth, intra, inter, host, latency."""
    note: str = ""
    """What else one should know."""


@cache
def gpu_kinds() -> Mapping[str, GpuKind]:
    """All kinds by name, in the file's order. The file is read once."""
    data = _data()
    return {name: _kind(name, row, data["documents"]) for name, row in data["kinds"].items()}


def gpu_kind(name: str, field: str = "gpu") -> GpuKind:
    """The kind called ``name``; case and ``_`` for ``-`` do not matter, and aliases are known.

    Raises:
        UsageError: the name fits several kinds.
        UnknownNameError: it fits none; with the nearest names.
    """
    wanted = name.strip().lower().replace("_", "-")
    kinds, aliases = gpu_kinds(), _data()["aliases"]
    if wanted in kinds:
        return kinds[wanted]
    choices = aliases.get(wanted, [])
    if len(choices) == 1:
        return kinds[choices[0]]
    if choices:
        raise UsageError(field, name, f"there are several: write {_either(choices)}")
    raise UnknownNameError(field, name, kinds)


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


def cuda_bytes(name: str, memory_bytes: int) -> int:
    """Bytes that CUDA offers of a GPU's memory: the driver keeps some for itself.

    Args:
        name: of the GPU, which need not be one of the catalogue.
        memory_bytes: that its driver reports as total.
    """
    kind = gpu_kinds().get(name)
    if kind is not None and kind.memory_bytes == memory_bytes:
        return kind.cuda_bytes
    return int(CUDA_SHARE * memory_bytes)


def _near(value: int, published: int, tolerance: float) -> bool:
    return abs(value - published) <= tolerance * published


@cache
def _data() -> Mapping[str, Any]:
    text = files("tuner.catalog").joinpath("gpus.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _kind(name: str, row: Mapping[str, Any], documents: Mapping[str, Any]) -> GpuKind:
    bf16 = row.get("bf16_tflops")
    return GpuKind(
        name=name,
        title=row["title"],
        driver_names=tuple(row["driver_names"]),
        memory_bytes=row["memory_mib"] * MIB,
        compute_capability=row.get("compute_capability", ""),
        cuda_bytes=int(row.get("cuda_mib", CUDA_SHARE * row["memory_mib"]) * MIB),
        bf16_flops_per_s=None if bf16 is None else bf16 * 1e12,
        fp16_flops_per_s=row["fp16_tflops"] * 1e12,
        fp32_flops_per_s=row["fp32_tflops"] * 1e12,
        memory_bytes_per_s=row["memory_gb_per_s"] * 1e9,
        intra_node=_link(row["intra"]),
        inter_node=_link(row["inter"]),
        host_bytes_per_s=row["host_gb_per_s"] * 1e9,
        sources={figure: _document(documents[key]) for figure, key in row["sources"].items()},
        note=row.get("note", ""),
    )


def _document(row: Mapping[str, str]) -> str:
    return f"{row['title']} (read: {row['read']})"


def _link(row: Mapping[str, float]) -> LinkFigures:
    return LinkFigures(bytes_per_s=row["gb_per_s"] * 1e9, latency_s=row["latency_us"] / 1e6)


def _either(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
