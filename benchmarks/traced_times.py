"""Step times from traces against arithmetic, of models that arithmetic knows.

    python benchmarks/traced_times.py [--only mixtral-8x7b] [--jobs 2]

Each model is predicted twice for the same settings: by arithmetic, and as if its type were not
known, from dry runs alone.
"""

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any
from unittest.mock import patch

from common import Goal, report
from judging import spearman

from tuner.catalog import models
from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import framework
from tuner.core.study import Question
from tuner.core.workload import Precision, Workload
from tuner.cost.prediction import predict
from tuner.dryrun import DryRunner, dry_run_versions, plan_dry_runs
from tuner.model import fields, published_model
from tuner.space import enumerate_space

LIMIT_S = 240.0  # CPU seconds for a layout, on a machine that does other things too
# Model, cluster, sequence length, precision.
CASES: Sequence[tuple[str, str, int, Precision]] = (
    ("llama-3.1-8b", "8xh100-80gb", 4096, Precision.BF16),
    ("qwen2.5-7b", "2x8xa100-80gb", 2048, Precision.BF16_MIXED),
    ("qwen3-4b", "8xa100-80gb", 8192, Precision.BF16),
    ("gemma-2b", "8xa100-80gb", 2048, Precision.BF16),
    ("mixtral-8x7b", "4x8xh100-80gb", 4096, Precision.BF16),
)
# Layouts that are compared, of all that are legal, and micro-batch sizes.
LAYOUTS = {
    ("full_shard", "none", True),
    ("shard_grad_op", "full", False),
    ("full_shard", "selective", False),
}
SIZES = (1, 2, 4, 8)


@contextmanager
def unknown_type(name: str) -> Iterator[None]:
    """Under this a model type is one that arithmetic does not know."""
    rest = tuple(sorted({*models.traced_types(), name}))
    with (
        patch.dict(fields.ARCHITECTURES),
        patch.object(models, "traced_types", lambda: rest),
    ):
        del fields.ARCHITECTURES[name]
        yield


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", help="models")
    parser.add_argument("--jobs", type=int, default=2, help="dry runs at the same time")
    options = parser.parse_args()
    rows = []
    with DryRunner(limit_s=LIMIT_S, jobs=options.jobs) as runner:
        for case in CASES:
            if not options.only or case[0] in options.only:
                rows.append(compared(runner, *case))
                print(rows[-1], flush=True)
    goals = [
        Goal(name="median error of times from traces", goal="<= 0.1",
             value=median(row["median_error"] for row in rows)),
        Goal(name="its largest median of a model", goal="<= 0.1",
             value=max(row["median_error"] for row in rows)),
        Goal(name="least Spearman correlation of a model's settings", goal=">= 0.98",
             value=min(row["spearman"] for row in rows)),
        Goal(name="models whose fastest settings are the same, or within 1%", goal=">= 1.0",
             value=sum(row["lost"] <= 0.01 for row in rows) / len(rows)),
    ]  # fmt: skip
    report("traced_times", goals, rows)
    return 0


def compared(
    runner: DryRunner, name: str, where: str, sequence_length: int, precision: Precision
) -> dict[str, Any]:
    """A row: how far times from traces are from arithmetic's, over the settings of a model."""
    known = published_model(name)
    cluster, stack = parse_cluster(where), framework("torch")
    ranks = cluster.world_size

    def workload(as_name: str) -> Workload:  # caches tell models apart by name too
        return Workload(
            model=type(known)(name=as_name, model_type=known.model_type, fields=known.fields),
            sequence_length=sequence_length,
            global_batch_size=8 * ranks,
            precision=precision,
        )

    started, work = time.perf_counter(), workload(name)
    space = enumerate_space(Question(workload=work, cluster=cluster, framework=stack)).legal
    chosen = [one for one in space if is_chosen(one)]
    by_hand = {one: predict(work, cluster, stack, one).step_time_s.value or 0.0 for one in chosen}
    with unknown_type(known.model_type):
        by_trace = times(runner, workload(f"{name}, traced"), cluster, chosen)
    errors = [by_trace[one] / by_hand[one] - 1 for one in by_trace]
    fastest = min(by_trace, key=by_trace.__getitem__)
    least = min(by_hand[one] for one in by_trace)
    return {
        "model": name,
        "cluster": where,
        "sequence_length": sequence_length,
        "precision": str(precision),
        "settings": len(by_trace),
        "of": len(chosen),
        "median_error": median(map(abs, errors)),
        "lowest": min(errors),
        "highest": max(errors),
        "spearman": spearman([(by_trace[one], by_hand[one]) for one in by_trace]),
        "lost": by_hand[fastest] / least - 1,
        "seconds": time.perf_counter() - started,
    }


def is_chosen(one: Settings) -> bool:
    """Tells whether settings are compared: no tensor parallelism, whose traces there are not."""
    sync = one.sync_each_batch or one.gradient_accumulation_steps == 1
    layout = (str(one.sharding), str(one.activation_checkpointing), sync)
    plain = one.tp_size == 1 and not (one.fused_loss or one.defer_all_reduce)
    return plain and layout in LAYOUTS and one.micro_batch_size in SIZES


def times(
    runner: DryRunner, workload: Workload, cluster: Cluster, chosen: Sequence[Settings]
) -> Mapping[Settings, float]:
    """Step times by dry runs alone, of settings whose layouts can be dry-run."""
    stack, found = framework("torch"), {}
    plans = {
        layout: plan_dry_runs(workload, cluster, stack, layout, dry_run_versions())
        for layout in dict.fromkeys(one.layout for one in chosen)
    }
    made = {one.key: one for one in runner.made([*plans.values()])}
    runs = {of: made[plan.key] for of, plan in plans.items()}
    for of, run in runs.items():
        if run.error:
            print(f"{of}: {run.error}")
    for one in chosen:
        if (profile := runs[one.layout].profile) is not None:
            seconds = predict(workload, cluster, stack, one, profile=profile).step_time_s.value
            assert seconds is not None
            found[one] = seconds
    return found


if __name__ == "__main__":
    raise SystemExit(main())
