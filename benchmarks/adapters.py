"""LoRA by arithmetic against published runs: ``make bench-adapters``, some seconds.

Mistral-7B on one and two A100, full fine-tuning beside it. Two GPUs ran FSDP1, which is predicted
as FSDP2; fused kernels are not predicted, so their rows are apart. It writes
``benchmarks/results/adapters.json``.
"""

import csv
from pathlib import Path
from statistics import median
from typing import Any

from common import Goal, report

from tuner.core.adapter import Adapter
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import framework
from tuner.core.workload import Precision, Workload
from tuner.cost.prediction import predict
from tuner.model import published_model

DATA = Path(__file__).parent / "data" / "lora_a100.csv"
MODEL = "mistral-7b-v0.1"
# Of the months in which the runs were made, so far as they change a prediction.
VERSIONS = {"accelerate": "0.30.0", "torch": "2.3.0", "transformers": "4.41.0"}


def rows() -> list[dict[str, Any]]:
    """Each run, with what is predicted of it."""
    with DATA.open() as file:
        return [_judged(row) for row in csv.DictReader(file)]


def _judged(row: dict[str, str]) -> dict[str, Any]:
    gpus, micro_batch = int(row["n_gpus"]), int(row["micro_batch"])
    workload = Workload(
        model=published_model(MODEL),
        sequence_length=int(row["seq_len"]),
        global_batch_size=gpus * micro_batch,
        precision=Precision.BF16,
        adapter=_adapter(row["lora"]),
    )
    settings = Settings(
        sharding=Sharding.DDP if gpus == 1 else Sharding.FULL_SHARD,
        micro_batch_size=micro_batch,
        activation_checkpointing=Checkpointing.FULL,
    )
    stack = framework("accelerate", VERSIONS)
    found = predict(workload, parse_cluster(f"{gpus}xa100-80gb"), stack, settings)
    gib = (found.allocated_bytes.value or 0.0) / 2**30
    tokens_per_s = found.tokens_per_s_per_gpu.value or 0.0
    measured_gib, measured_speed = map(
        float, (row["peak_allocated_gib"], row["tokens_per_s_per_gpu"])
    )
    return {
        "method": row["method"],
        "kernels": "fused" if row["fused_kernels"] else "torch's",
        "gpus": gpus,
        "micro_batch": micro_batch,
        "measured_gib": measured_gib,
        "predicted_gib": gib,
        "memory_error": gib / measured_gib - 1,
        "measured_tokens_per_s": measured_speed,
        "predicted_tokens_per_s": tokens_per_s,
        "speed_error": tokens_per_s / measured_speed - 1,
    }


def _adapter(text: str) -> Adapter | None:
    """The adapter of ``r=16 alpha=16 dropout=0.1 target=q_proj k_proj``; none of an empty text."""
    if not text:
        return None
    numbers, targets = text.split(" target=")
    rank, alpha, dropout = (float(part.partition("=")[2]) for part in numbers.split())
    names = tuple(targets.split())
    return Adapter(rank=int(rank), alpha=alpha, dropout=dropout, target_modules=names)


def goals(found: list[dict[str, Any]]) -> list[Goal]:
    """What is asked of runs with torch's kernels."""
    asked = []
    for method in ("full", "lora"):
        some = [one for one in found if one["method"] == method and one["kernels"] == "torch's"]
        memory = [abs(one["memory_error"]) for one in some]
        speed = [abs(one["speed_error"]) for one in some]
        figures = (
            ("peak allocated, median error", "<= 0.04", median(memory)),
            ("peak allocated, largest error", "<= 0.12", max(memory)),
            ("tokens/s, median error", "<= 0.15", median(speed)),
        )
        asked += [Goal(name=f"{method}: {name}", goal=goal, value=v) for name, goal, v in figures]
    return asked


if __name__ == "__main__":
    told = rows()
    report("adapters", goals(told), told)
