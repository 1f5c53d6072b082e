"""How good transferred step times are; ``make bench-search`` records it.

Of a workload of the published runs nothing is known but what a few runs of the nearest other
workloads took; what the planner makes of these (:func:`tuner.planner.similar.corrected_by`) is
compared with what the workload's own runs took, where something at least half alike was run.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median
from typing import Any

import numpy as np
import replay_costs
from common import show
from judging import holds
from replay import Case, cases_of, past_of, workloads
from sweep import Run, nanotron_runs, vtrain_runs

from tuner.core.framework import Framework, FrameworkName
from tuner.cost.constants import Costs, default_costs
from tuner.cost.prediction import predict
from tuner.planner.similar import NEAR, corrected_by
from tuner.search.kernel import Array
from tuner.search.trials import Past

NEAREST = (1, 2, 4)
"""Earlier studies."""
RUNS = 12
"""Of each of them, drawn at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Off:
    """One run against what was said of its step time."""

    log_ratio: float  # logarithm of seconds taken over seconds said
    inside: bool  # whether they lie in the 80% interval


def transfer_lines() -> list[dict[str, Any]]:
    """The table: for each source of constants, half of the times are off by less than a factor, and
    a share of them lies in the interval."""
    costs = replay_costs.load()
    sweep, vtrain = workloads(nanotron_runs(), least=5), workloads(vtrain_runs(), least=6)
    return [
        _line("vTrain, one A100 node", "physics", vtrain, costs["physics"], rules=False),
        _line("nanotron sweep, H100", "physics", sweep, costs["physics"], rules=True),
        _line("nanotron sweep, H100", "the catalogue's", sweep, default_costs(), rules=True),
    ]


def _line(
    runs: str, constants: str, rows: Mapping[str, Sequence[Run]], costs: Costs, *, rules: bool
) -> dict[str, Any]:
    cases = list(cases_of(rows, (costs,), rules=rules).values())
    alone = [off for case in cases for off in _predicted(case, costs)]
    found = {"runs": runs, "constants": constants, **_figures("predicted alone", alone)}
    for count in NEAREST:
        corrected = [off for case in cases for off in _corrected(case, cases, count)]
        found |= _figures(f"from {count} stud{'y' if count == 1 else 'ies'}", corrected)
    return found


def _figures(name: str, offs: Sequence[Off]) -> dict[str, Any]:
    factor = exp(median(abs(off.log_ratio) for off in offs))
    inside = sum(off.inside for off in offs) / len(offs)
    return {
        f"{name}, runs": len(offs),
        f"{name}, factor": round(factor, 3),
        f"{name}, inside": round(inside, 3),
    }


def _ran(case: Case) -> list[int]:
    """Candidates that the product may probe and that ran, by index."""
    return [i for i, run in enumerate(case.runs) if run.ok and case.legal[i]]


def _predicted(case: Case, costs: Costs) -> Iterator[Off]:
    for run in (case.runs[i] for i in _ran(case)):
        name, seconds = Framework(name=FrameworkName.NANOTRON), run.step_time_s
        told = predict(run.workload, run.cluster, name, run.settings, headroom=0.0, costs=costs)
        said = told.step_time_s
        assert said.value
        assert seconds
        yield Off(log_ratio=log(seconds / said.value), inside=holds(said, seconds))


def _corrected(case: Case, cases: Sequence[Case], count: int) -> Iterator[Off]:
    past = _past(case, cases, count)
    found = corrected_by(past, case.prior.workload, case.prior.features)
    for i in _ran(case) if found else ():
        seconds = case.runs[i].step_time_s
        assert seconds
        ratio = seconds / exp(float(case.prior.log_seconds[i]))
        one = found[i]
        if one.near >= NEAR:
            yield Off(log_ratio=log(ratio / one.factor), inside=one.low <= ratio <= one.high)


def _past(case: Case, cases: Sequence[Case], count: int) -> Past:
    """Some runs of the nearest other workloads."""
    others = [one for one in cases if one.name != case.name and _ran(one)]
    others.sort(key=lambda one: (_distance(one.prior.workload, case.prior.workload), one.name))
    return past_of(_part(one) for one in others[:count])


def _distance(one: Array, other: Array) -> float:
    return float(((one - other) ** 2).sum())


def _part(case: Case) -> Case:
    drawn = np.random.default_rng(0).permutation(_ran(case))[:RUNS]
    return case.take(np.sort(drawn))


def main() -> None:
    show("transferred step times", transfer_lines())


if __name__ == "__main__":
    main()
