"""The cases that are timed on a cluster: sizes that fill a device, the most telling first."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tuner.core.cluster import Cluster, Device

Case = dict[str, Any]
OPERATIONS = ("all_gather", "reduce_scatter", "all_reduce")
# Layers of the two depths that a model is timed at: their difference is three layers.
FEW, MANY = 1, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of one kind of device."""

    rows: int  # tokens of matrix products
    widths: tuple[int, ...]  # channels of matrix products
    copied: int  # elements that are copied: several times the last cache
    models: tuple[tuple[int, int, int, int], ...]
    """Hidden size, heads, sequence length and micro-batch size of models; the first is so small
    that a GPU waits for the host."""
    vocabulary: int
    """Tokens that the models know: as many as usual, or their logits would stay in caches."""
    updated: int
    tensors: int  # parameters that these are in: few enough that launching them is nothing
    sent: tuple[int, ...]
    """Elements of collectives, from those where latency is all to those where bandwidth is."""
    beside: tuple[int, int]  # channels of products, and elements of an all-reduce beside them
    case_s: float  # seconds for the repetitions of one case, about


CUDA = Sizes(
    rows=8192,
    widths=(512, 1024, 2048, 4096, 8192),
    copied=2**27,
    models=((64, 1, 32, 1), (1024, 8, 1024, 4), (2048, 16, 2048, 2), (4096, 32, 4096, 1)),
    vocabulary=32_000,
    updated=2**26,
    tensors=8,
    sent=(2**10, 2**15, 2**19, 2**22, 2**25, 2**27),
    beside=(4096, 2**25),
    case_s=0.5,
)
# What is larger than 32 MiB, glibc's malloc takes from the kernel at each call and gives back
# (M_MMAP_THRESHOLD in malloc/malloc.c), so all its pages are faulted in and zeroed anew. The logits
# of a usual batch and AdamW's temporaries of an embedding are that large, and timed so: smaller
# ones take as little as a quarter of the time per element.
CPU = Sizes(
    rows=512,
    widths=(128, 256, 512, 1024),
    copied=2**24,
    models=((64, 1, 32, 1), (256, 4, 128, 4), (512, 8, 256, 2)),
    vocabulary=2**15,
    updated=17 * 2**20,
    tensors=1,
    sent=(2**10, 2**16, 2**19, 2**22, 2**24),
    beside=(512, 2**21),
    case_s=0.4,
)
# To see that all of it runs; its rates mean nothing.
QUICK = Sizes(
    rows=64,
    widths=(64, 128),
    copied=2**18,
    models=((32, 1, 16, 1), (128, 2, 64, 1)),
    vocabulary=256,
    updated=2**14,
    tensors=8,
    sent=(2**8, 2**14),
    beside=(64, 2**12),
    case_s=0.01,
)


def plan(cluster: Cluster, sizes: Sizes | None = None) -> dict[str, Any]:
    """The spec of a calibration, without the seconds that it may take."""
    if sizes is None:
        sizes = CPU if cluster.gpu.device is Device.CPU else CUDA
    return {
        "format": 1,
        "device": str(cluster.gpu.device),
        "world_size": cluster.world_size,
        "gpus_per_node": cluster.gpus_per_node,
        "cases": list(_cases(cluster, sizes)),
        "case_s": sizes.case_s,
    }


def _cases(cluster: Cluster, sizes: Sizes) -> Iterator[Case]:
    """First what every prediction needs, in the usual number format."""
    yield {"kind": "copy", "dtype": "bf16", "elements": sizes.copied}
    for dtype in ("bf16", "fp32"):
        yield from _matrices(dtype, sizes)
        yield from _layers(dtype, sizes)
        yield {
            "kind": "update",
            "dtype": dtype,
            "elements": sizes.updated,
            "tensors": sizes.tensors,
        }
        if dtype == "bf16":
            yield from _collectives(cluster, sizes)


def _matrices(dtype: str, sizes: Sizes) -> Iterator[Case]:
    for width in sizes.widths:
        yield {"kind": "matrix", "dtype": dtype, "rows": sizes.rows, "width": width}


def _layers(dtype: str, sizes: Sizes) -> Iterator[Case]:
    for hidden, heads, length, micro_batch in sizes.models:
        for layers in (FEW, MANY):
            yield {
                "kind": "layers",
                "dtype": dtype,
                "layers": layers,
                "micro_batch_size": micro_batch,
                "sequence_length": length,
                "model": _llama(hidden, heads, length, layers, sizes.vocabulary),
            }


def _llama(hidden: int, heads: int, length: int, layers: int, vocabulary: int) -> dict[str, Any]:
    """A decoder as most are: gated MLP, rotary positions, fused attention."""
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": hidden * 11 // 4,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": length,
        "tie_word_embeddings": False,
    }


def _collectives(cluster: Cluster, sizes: Sizes) -> Iterator[Case]:
    axes = {"intra": cluster.gpus_per_node, "inter": cluster.nodes}
    used = {axis: ranks for axis, ranks in axes.items() if ranks > 1}
    for axis, ranks in used.items():
        for op in OPERATIONS:
            for elements in sizes.sent:
                whole = max(1, elements // ranks) * ranks
                common = {"kind": "collective", "axis": axis, "op": op}
                yield {**common, "dtype": "bf16", "elements": whole}
    for axis in list(used)[:1]:
        width, elements = sizes.beside
        for part in ("matrix", "collective", "both"):
            yield {
                "kind": "both",
                "part": part,
                "axis": axis,
                "dtype": "bf16",
                "rows": sizes.rows,
                "width": width,
                "products": 8,
                "elements": elements,
            }
