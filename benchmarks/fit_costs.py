"""Fit the cost model's constants: ``python benchmarks/fit_costs.py``.

Coordinate search on half of the sweep's workloads (``Run.fitted_on``): each constant in turn is
tried a step up and down, and steps shrink. Memory: mean of |log(predicted / measured)|, all runs
of 64 GPUs or fewer; time: the same over all runs, those above 64 GPUs at a third of the weight,
capped at 1 so that single strange runs do not count. It prints constants to be copied into
``tuner/catalog/costs.toml``, and the quantiles that intervals come from; it writes nothing.
These are of nanotron on H100. How far off they are elsewhere is seen on every second workload
of vTrain (Megatron-DeepSpeed, A100), from which only the width of an interval is taken.

With ``torch`` as its argument it fits what one A100 computes under torch, in the same way, to half
of llm-foundry's models (``FoundryRow.fitted_on``).
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from math import log
from typing import Any

from foundry import FoundryRow, foundry_rows
from sweep import Run, nanotron_runs, vtrain_runs

from tuner.cost.constants import Costs, default_costs
from tuner.cost.pipeline import pipeline_seconds, spans_nodes, stage_memory
from tuner.cost.time.step import sharded_step_s

MEMORY = (
    "passing_bytes", "activation_factor", "tp_factor", "fragment_factor", "fragment_from_mb",
    "logit_bytes", "gathered_bytes", "in_flight_bytes", "in_flight_sharded_bytes",
)  # fmt: skip
TIME = (
    "matmul_efficiency", "small_dim", "traffic_factor", "logit_traffic", "layer_host_s",
    "pipelined_host_s", "tp_exposed", "inter_efficiency", "inter_step_s", "scale_exponent",
    "data_exposed", "stall_s", "stall_ranks_log2", "stall_memory", "stall_replicated",
)  # fmt: skip
TORCH = ("small_dim", "attention_forward", "attention_backward", "attention_dim")
AT_MOST = {
    "matmul_efficiency": 0.9,
    "tp_exposed": 1.0,
    "data_exposed": 1.0,
    "stall_replicated": 1.0,
    "inter_efficiency": 1.0,
}


def memory_error(run: Run, costs: Costs) -> float:
    found = stage_memory(run.workload, run.settings, run.cluster, costs)
    assert run.memory_gib is not None
    return log(found.reserved_bytes / 2**30 / run.memory_gib)


def time_error(run: Run, costs: Costs) -> float:
    assert run.step_time_s is not None
    found = pipeline_seconds(run.workload, run.settings, run.cluster, costs)
    return log(found.expected_s / run.step_time_s)


def foundry_error(row: FoundryRow, costs: Costs) -> float:
    (found,) = sharded_step_s(row.workload, row.settings, row.cluster, costs)
    return log(found / row.step_time_s)


def memory_loss(runs: list[Run], costs: Costs) -> float:
    return sum(min(1.0, abs(memory_error(run, costs))) for run in runs) / len(runs)


def time_loss(runs: list[Run], costs: Costs) -> float:
    weights = [1.0 if run.gpus <= 64 else 0.33 for run in runs]
    errors = [min(1.0, abs(time_error(run, costs))) for run in runs]
    return sum(w * e for w, e in zip(weights, errors, strict=True)) / sum(weights)


def search(
    table: str,
    names: tuple[str, ...],
    loss: Callable[[Costs], float],
    start: Costs | None = None,
) -> Costs:
    """Coordinate search from ``start``, by default from the constants as they are."""
    costs, step = default_costs() if start is None else start, 0.16
    best = loss(costs)
    while step > 0.01:
        before = best
        for name in names:
            for factor in (1 + step, 1 / (1 + step)):
                values = getattr(costs, table)
                value = min(getattr(values, name) * factor, AT_MOST.get(name, float("inf")))
                changed: dict[str, Any] = {table: replace(values, **{name: value})}
                tried = replace(costs, **changed)
                if (found := loss(tried)) < best - 1e-6:
                    costs, best = tried, found
        if best > before - 1e-4:
            step /= 2
    print(
        table,
        "loss",
        round(best, 4),
        {n: float(f"{getattr(getattr(costs, table), n):.3g}") for n in names},
    )
    return costs


def quantiles(name: str, errors: list[float]) -> None:
    """Where the middle 80% of measured over predicted lie."""
    ratios = sorted(2.718281828**-error for error in errors)
    low, high = (ratios[int(q * (len(ratios) - 1))] for q in (0.1, 0.9))
    print(name, len(ratios), "runs, 80% of measured over predicted:", round(low, 3), round(high, 3))


def main() -> None:
    fitted = [run for run in nanotron_runs() if run.ok and run.fitted_on]
    small = [run for run in fitted if run.gpus <= 64]
    costs = search("memory", MEMORY, lambda costs: memory_loss(small, costs))
    quantiles("memory", [memory_error(run, costs) for run in fitted])
    costs = search("time", TIME, lambda costs: time_loss(fitted, costs))
    for over, name in ((False, "time"), (True, "time, pipelines over nodes")):
        runs = [run for run in fitted if spans_nodes(run.settings, run.cluster) is over]
        quantiles(name, [time_error(run, costs) for run in runs])
    other = [run for run in vtrain_runs() if run.fitted_on]
    quantiles("time, vTrain, nothing fitted", [time_error(run, costs) for run in other])


def main_torch() -> None:
    """Fit what one GPU computes under torch, and print."""
    rows = [row for row in foundry_rows() if row.fitted_on]

    def loss(costs: Costs) -> float:
        return sum(min(1.0, abs(foundry_error(row, costs))) for row in rows) / len(rows)

    costs = search("torch", TORCH, loss)
    quantiles("time, torch", [foundry_error(row, costs) for row in rows])


if __name__ == "__main__":
    main_torch() if sys.argv[1:] == ["torch"] else main()
