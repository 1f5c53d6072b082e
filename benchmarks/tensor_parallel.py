"""Memory with tensor parallelism that is not sequence parallel, against its dry runs.

    python benchmarks/tensor_parallel.py

One row for each way to split a model: what the dry runs say, arithmetic, and what is said of the
same settings with sequence parallelism, which is what a script without it was told before it could
say so.
"""

import sys
from dataclasses import dataclass, replace

from dry import dry_run_all
from markdown import table

from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import Settings, parse_settings
from tuner.core.framework import Framework, framework
from tuner.core.workload import TensorParallel, Workload
from tuner.cost.prediction import predict
from tuner.model import published_model

CASES = """
llama-3.1-8b  8192  tp_size=8,micro_batch_size=1
llama-3.1-8b  8192  tp_size=8,micro_batch_size=2,activation_checkpointing=full
llama-3.1-8b  8192  sharding=full_shard,tp_size=2,micro_batch_size=1,activation_checkpointing=full
qwen3-4b      4096  sharding=full_shard,tp_size=4,micro_batch_size=2
"""
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Row:
    """Settings of a model that a script splits in one way."""

    workload: Workload
    settings: Settings
    cluster: Cluster
    framework: Framework


def rows() -> list[Row]:
    """Each case without sequence parallelism, logits sharded and gathered."""
    found = []
    for line in CASES.strip().splitlines():
        model, tokens, text = line.split()
        settings, cluster = parse_settings(text), parse_cluster("8xh100-80gb")
        batch = settings.micro_batch_size * settings.data_parallel_size(cluster.world_size)
        for way in (TensorParallel.SHARDED_LOGITS, TensorParallel.GATHERED_LOGITS):
            workload = Workload(
                model=published_model(model),
                sequence_length=int(tokens),
                global_batch_size=batch,
                tensor_parallel=way,
            )
            stack = framework("torch")
            row = Row(workload=workload, settings=settings, cluster=cluster, framework=stack)
            found.append(row)
    return found


def main() -> int:
    asked, lines, worst = rows(), [], 0.0
    dried = dry_run_all(asked)
    for row in asked:
        dry_run = dried.of(row)
        assert dry_run is not None, dried.why_not(row)
        assert dry_run.profile is not None, dried.why_not(row)
        told = []
        before = replace(row.workload, tensor_parallel=TensorParallel.SEQUENCE_PARALLEL)
        for workload, profile in (
            (row.workload, dry_run.profile),
            (row.workload, None),
            (before, None),
        ):
            found = predict(workload, row.cluster, row.framework, row.settings, profile=profile)
            assert found.allocated_bytes.value is not None
            told.append(found.allocated_bytes.value / GIB)
        off = [f"{gib:.1f} ({gib / told[0] - 1:+.1%})" for gib in told[1:]]
        worst = max(worst, abs(told[1] / told[0] - 1))
        where = f"{row.workload.model.name}, {row.workload.sequence_length} tokens"
        way = str(row.workload.tensor_parallel)
        lines.append((where, row.settings, way, f"{told[0]:.1f}", *off))
    head = ("model", "settings", "script", "dry run, GiB", "arithmetic", "as sequence parallel")
    print("\n".join(table(head, lines)))
    return 0 if worst < 0.01 else 1


if __name__ == "__main__":
    sys.exit(main())
