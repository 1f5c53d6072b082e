"""Constants for replays, from other rows than are replayed: ``make bench-replay-costs``.

It writes ``data/replay_costs.json``, and takes 5 minutes. The catalogue's own constants are fitted
on half of nanotron's sweep, so no replay of that sweep may use them. There are instead

- ``physics``: counted and usual values, with nothing fitted; each has its reason below;
- ``vtrain``: those, with what vTrain can show fitted to it (one node of A100s); the catalogue has
  them as an expert;
- ``sweep``: for each model of the sweep, ``vtrain`` fitted further to the rows of the other one.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any

from common import write
from fit_costs import MEMORY, TIME, memory_loss, search, time_loss
from sweep import DATA, nanotron_runs, vtrain_runs

from tuner.core.framework import FrameworkName
from tuner.cost.constants import Costs, Width, crossed, default_costs, experts_of

FILE = DATA / "replay_costs.json"
PHYSICS_MEMORY = {
    "passing_bytes": 2.0,  # counted: bf16 gradients
    "activation_factor": 1.0,  # counted
    "tp_factor": 0.0,  # nothing beside what is counted
    "fragment_factor": 0.0,  # the same
    "gathered_bytes": 0.0,  # the same
    "in_flight_sharded_bytes": 0.0,  # the same
    "logit_bytes": 12.0,  # counted: bf16 and fp32 of logits and of their gradients
    "in_flight_bytes": 4.0,  # counted: a micro-batch's input and output of a stage in bf16
}
ASSUMED = Width(low=0.8, high=1.25)  # one part in five or four either way
PHYSICS_TIME = {
    "matmul_efficiency": 0.7,  # usual of large products
    "small_dim": 128.0,  # a tile of matrix units
    "traffic_factor": 6.0,  # each kept activation is written and read forward, backward twice that
    "logit_traffic": 24.0,  # the 12 bytes of memory, written and read
    "layer_host_s": 0.0015,  # 109 kernels of 14 us, as the catalogue assumes of transformers
    "pipelined_host_s": 0.0,  # nothing beside it
    "tp_exposed": 1.0,  # tensor parallelism's collectives are waited for
    "inter_efficiency": 0.8,  # as of links within a node
    "inter_step_s": 2e-5,  # two kernels' launches and a few hops of 2 us
    "scale_exponent": 0.0,  # rings reach their rate at any size
    "data_exposed": 0.5,  # half of the backward pass is there to hide behind
    "stall_s": 0.0,  # no stalls
}
SHOWN_BY_VTRAIN = (
    "matmul_efficiency", "small_dim", "traffic_factor", "logit_traffic", "layer_host_s",
    "tp_exposed", "data_exposed",
)  # fmt: skip
STARTS_MEMORY = {
    "tp_factor": 0.05,
    "fragment_factor": 0.1,
    "gathered_bytes": 20.0,
    "in_flight_sharded_bytes": 4.0,
}
"""The fit goes by factors, so it never leaves zero: small shares of what is counted."""
STARTS_TIME = {
    "stall_s": 0.2,
    "stall_ranks_log2": 8.0,
    "scale_exponent": 0.2,
    "pipelined_host_s": 0.001,
    "matmul_efficiency": 0.7,
    "small_dim": 128.0,
    "logit_traffic": 24.0,
}
"""The same; and what vTrain's A100s say of matrix products is not kept for H100s."""


def physics() -> Costs:
    return _with(_unfitted(), {"memory": PHYSICS_MEMORY, "time": PHYSICS_TIME})


def _unfitted() -> Costs:
    """The catalogue's constants, which are replaced, with the interval that is assumed for all."""
    shipped = default_costs()
    return replace(shipped, memory=replace(shipped.memory, nanotron=ASSUMED))


def by_vtrain() -> Costs:
    """Physics, and what vTrain shows."""
    runs = vtrain_runs()
    return search("time", SHOWN_BY_VTRAIN, partial(time_loss, runs), physics())


def by_other_models(model: str, start: Costs) -> Costs:
    """Fitted on all rows of the sweep but one model's; memory and time apart, as fit_costs does."""
    runs = [run for run in nanotron_runs() if run.ok and run.model != model]
    small = [run for run in runs if run.gpus <= 64]
    start = _with(start, {"memory": STARTS_MEMORY, "time": STARTS_TIME})
    memory = search("memory", MEMORY, partial(memory_loss, small), start).memory
    return replace(search("time", TIME, partial(time_loss, runs), start), memory=memory)


def experts(left_out: str) -> tuple[Costs, ...]:
    """The experts that ship, without what was fitted to a model of the sweep; or to vTrain, where
    none is named.
    """
    found = load()
    if not left_out:
        shipped = experts_of(FrameworkName.NANOTRON)
        return crossed(shipped[0], replace(shipped[-1], time=found["physics"].time))
    fitted = found["sweep"][left_out]
    return crossed(fitted, replace(fitted, time=found["vtrain"].time))


def _with(costs: Costs, values: Mapping[str, Mapping[str, float]]) -> Costs:
    changed: dict[str, Any] = {
        table: replace(getattr(costs, table), **those) for table, those in values.items()
    }
    return replace(costs, **changed)


def _stated(costs: Costs) -> dict[str, dict[str, float]]:
    """What was changed or fitted, to four digits."""
    names = {"memory": {**PHYSICS_MEMORY, **dict.fromkeys(MEMORY)},
             "time": {**PHYSICS_TIME, **dict.fromkeys(TIME)}}  # fmt: skip
    return {
        table: {name: float(f"{getattr(getattr(costs, table), name):.4g}") for name in of}
        for table, of in names.items()
    }


@cache
def load() -> Mapping[str, Any]:
    """What the file holds, as constants, by the names above."""
    found = json.loads(FILE.read_text(encoding="utf-8"))
    whole = _unfitted()
    return {
        "physics": _with(whole, found["physics"]),
        "vtrain": _with(whole, found["vtrain"]),
        "sweep": {name: _with(whole, one) for name, one in found["sweep"].items()},
    }


def fit_all(names: Sequence[str], workers: int) -> dict[str, Any]:
    start = by_vtrain()
    with ProcessPoolExecutor(workers) as pool:
        others = pool.map(partial(by_other_models, start=start), names)
        return {
            "physics": _stated(physics()),
            "vtrain": _stated(start),
            "sweep": {name: _stated(c) for name, c in zip(names, others, strict=True)},
        }


def main() -> None:
    names = list(dict.fromkeys(run.model for run in nanotron_runs()))
    write(FILE, json.dumps(fit_all(names, workers=2), indent=1) + "\n")
    print(f"written: {FILE}")


if __name__ == "__main__":
    main()
