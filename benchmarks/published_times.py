"""Step times against published figures: ``python benchmarks/published_times.py``.

No constant of the value is fitted to these rows; the upper end of the interval of frameworks that
were not fitted on (``unfitted``) is set by torchtitan's two. Most leave out what a prediction
needs, so each says what was assumed; differences between two rows of one source tell more than the
rows themselves.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from common import show

from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import FrameworkName
from tuner.core.workload import Precision, ReduceDtype, Workload
from tuner.cost.constants import default_costs
from tuner.cost.time.step import step_time
from tuner.model import published_model as read

TORCH, NANOTRON = FrameworkName.TORCH, FrameworkName.NANOTRON


def seconds(
    model: str,
    sequence_length: int,
    precision: Precision,
    cluster: str | Cluster,
    settings: str,
    framework: FrameworkName = TORCH,
) -> float:
    workload = Workload(
        model=read(model),
        sequence_length=sequence_length,
        global_batch_size=1024,
        precision=precision,
        reduce_dtype=None if precision is Precision.BF16 else ReduceDtype.FP32,
    )
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    found, why = step_time(workload, parse_settings(settings), where, framework, default_costs())
    assert found.value is not None, why
    return found.value


def torchtitan() -> Iterator[dict[str, Any]]:
    """Its selective checkpointing keeps every second matrix product, ours all of them.

    Sources: torchtitan's benchmarks of December 2024 (H100 with 2.4 TB/s, limited to 500 of 700 W,
    which is not modelled), and its docs/performance.md before them (A100, ``full`` for 70B).
    """
    h100, a100 = "700 W, measured at 500; memory 2.4 TB/s", "1 x 8192 tokens"
    cases = (
        ("llama-3.1-8b", slow_memory("8xh100-80gb"), 2, "selective", 5762, h100),
        ("llama-3.1-8b", slow_memory("16x8xh100-80gb"), 2, "selective", 5605, h100),
        ("llama-3-8b", parse_cluster("8x8xa100-80gb"), 1, "selective", 2973, a100),
        ("llama-3-70b", parse_cluster("8x8xa100-80gb"), 1, "full", 323, a100),
    )
    for model, cluster, size, how, measured, assumed in cases:
        text = f"sharding=full_shard,micro_batch_size={size},activation_checkpointing={how}"
        took = seconds(model, 8192, Precision.BF16_MIXED, cluster, text)
        name = f"torchtitan {model}, {cluster.name}, checkpointing {how}: tokens/s per GPU"
        yield row(name, size * 8192 / took, measured, assumed)


def slow_memory(name: str) -> Cluster:
    """H100 with HBM2e."""
    cluster = parse_cluster(name)
    return replace(cluster, gpu=replace(cluster.gpu, memory_bytes_per_s=2.4e12))


def recompute() -> Iterator[dict[str, Any]]:
    """nanotron PR 208: Llama-3-8B, TP 4 on A100, gathering again or not."""
    text = "tp_size=4,gradient_accumulation_steps=8,tp_recompute_allgather={}"
    for framework in (NANOTRON, TORCH):
        kept, again = (
            8 * 4096 / 4 / seconds("llama-3-8b", 4096, Precision.BF16, "4xa100-80gb",
                                   text.format(on), framework)
            for on in ("false", "true")
        )  # fmt: skip
        name = f"nanotron PR 208 as {framework}"
        assumed = "1 x 4096 tokens"
        yield row(f"{name}: tokens/s per GPU, kept", kept, 3525, assumed)
        yield row(f"{name}: tokens/s per GPU, again", again, 3427, assumed)
        yield row(f"{name}: again over kept", again / kept, 3427 / 3525, assumed)


def gradient_sync() -> Iterator[dict[str, Any]]:
    """Syncing each micro-batch over syncing the last, with DDP."""
    text = "micro_batch_size={},gradient_accumulation_steps={},sync_each_batch={}"
    cases = (
        ("accelerate guide, two T4 nodes", "2x1xt4", 128, 4, 2.2, (4, 8, 16)),
        ("accelerate guide, two T4 of one node", "2xt4", 128, 4, 1.22, (4, 8, 16)),
        ("transformers PR 7742", "2xrtx-3090", 1024, 32, 111 / 85, (1,)),
    )
    for name, cluster, length, steps, measured, sizes in cases:
        for size in sizes:
            each, last = (
                seconds("gpt2", length, Precision.FP32, cluster, text.format(size, steps, on))
                for on in ("true", "false")
            )
            assumed = f"gpt2, {size} x {length} tokens, fp32, {cluster}"
            yield row(f"{name}: sync each over last", each / last, measured, assumed)


def row(name: str, predicted: float, measured: float, assumed: str) -> dict[str, Any]:
    error = predicted / measured - 1
    return {"what": name, "predicted": predicted, "published": measured, "error": error,
            "assumed": assumed}  # fmt: skip


def rows() -> list[dict[str, Any]]:
    return [*torchtitan(), *recompute(), *gradient_sync()]


def main() -> None:
    show("step times against published figures", rows())


if __name__ == "__main__":
    main()
