"""All searches that are compared, and what each may know.

Constants may come from anywhere but the replayed workload. ``no history`` is physics, or a fit on
the other file; ``history`` is the rows of the other workloads of the same file, or a fit on them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from zlib import crc32

import deepspeed_tuners
import numpy as np
import replay_costs
import search_ours
import search_rivals
from replay import Case, Replay, cases_of, mean_of, past_of, workloads
from search_ours import Searching
from search_rivals import Rival
from sweep import Run, nanotron_runs, vtrain_runs

from tuner.cost.constants import Costs, default_costs
from tuner.search.trials import Past

SEEDS = 20
"""Of searches that draw at random."""
TPE_SEEDS = 10
OTHER = {"sweep": "vTrain", "vTrain": "sweep"}
"""The other file, whose constants may be known without history."""
SLOW_SEEDS = {"sweep": 10, "vTrain": 3}
"""Of XGBoost, and of samplers told of a whole file; vTrain has six times the workloads."""
GP_SEEDS = {"sweep": 5, "vTrain": 1}
"""Of Optuna's GP, of which one ask takes half a second."""
PHYSICS, FITTED = "physics", "others"
"""Constants of which nothing is fitted, and those fitted on other workloads of the same file."""
BOTH = "both"
"""The mean of two forecasts, from the other file's constants and from those fitted on other
workloads. Equal weights, for nothing says which is nearer; on average the mean errs less than
either (Bates and Granger 1969, The Combination of Forecasts)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One file of published runs, as it is replayed."""

    name: str
    """For the report."""
    rows: Mapping[str, Sequence[Run]]
    """By workload."""
    rules: bool
    """Whether nanotron's rules hold."""
    costs: Mapping[str, Callable[[str], Costs]]
    """Constants for the replay of a workload, by what they come from."""


@cache
def table(name: str) -> Table:
    """``sweep``, nanotron's; or ``vTrain``: one node, no failures, memory unknown, other rules."""
    costs = replay_costs.load()
    if name == "sweep":
        return Table(
            name=name,
            rows=workloads(nanotron_runs(), least=5),
            rules=True,
            costs={
                PHYSICS: lambda workload: costs["physics"],
                "vTrain": lambda workload: costs["vtrain"],
                FITTED: lambda workload: costs["sweep"][workload],
            },
        )
    folds, fold_of = costs["vtrain_folds"], replay_costs.fold_of
    return Table(
        name=name,
        rows=workloads(vtrain_runs(), least=6),
        rules=False,
        costs={
            PHYSICS: lambda workload: costs["physics"],
            "sweep": lambda workload: default_costs(),
            FITTED: lambda workload: folds[fold_of(workload)],
        },
    )


def known(of: Table, source: str, workload: str) -> Mapping[str, Case]:
    """All workloads as the constants of one source, for the replay of one of them, see them."""
    if source == BOTH:
        return _both(of.name, workload)
    same = next(w for w in of.rows if of.costs[source](w) is of.costs[source](workload))
    return _known(of.name, source, same)


@cache
def _known(name: str, source: str, workload: str) -> Mapping[str, Case]:
    of = table(name)
    return cases_of(of.rows, of.costs[source](workload), rules=of.rules)


@cache
def _both(name: str, workload: str) -> Mapping[str, Case]:
    of = table(name)
    found = zip(known(of, OTHER[name], workload).values(),
                known(of, FITTED, workload).values(), strict=True)  # fmt: skip
    return {one.name: mean_of(one, other) for one, other in found}


@cache
def past(name: str, source: str, workload: str) -> Past:
    """The rows of all other workloads."""
    cases = known(table(name), source, workload)
    return past_of(case for other, case in cases.items() if other != workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One search."""

    name: str
    """For the report."""
    source: str
    """Of the constants of the cost model; of rivals, which have none, any."""
    history: bool
    """Whether it knows anything of the other workloads of the same file."""
    ours: bool
    """Whether it is the product's, or a part of that."""
    search: Callable[[str, Replay, int], None]
    """Runs it: the table's name, the replay, a seed."""
    seeds: int = 1
    """How often it is run."""
    stable: bool = True
    """Whether it is run on random parts of the tables too."""


def lines(name: str) -> list[Line]:
    """All searches of a table that can be run here: the product's without history first."""
    return [line for line in every_line(name) if line.name not in not_run()]


def every_line(name: str) -> list[Line]:
    """Also those whose packages are not installed."""
    return [*_ours(name), *_rivals(name)]


KEPT = {False: "prior + GP", True: "prior + GP, history"}
"""The line that the product is nearest to, without and with history: one set of constants, fitted
on none of the workloads, and the rows of others. The mean of two forecasts is no part of it."""


def _ours(name: str) -> list[Line]:
    other = OTHER[name]
    product = search_ours.product
    return [
        _our("prior + GP", product, other),
        _our("prior + GP, physics", product, PHYSICS),
        _our("prior + ridge", search_ours.ridge, other),
        _our("prior only", search_ours.prior_only, other),
        _our("prior + GP, history", product, other, rows=True),
        _our("prior + GP, both", product, BOTH),
        _our("prior + GP, both, history", product, BOTH, rows=True),
        _our("prior + GP, fitted", product, FITTED),
        _our("prior + GP, fitted, history", product, FITTED, rows=True),
        _our("prior + ridge, history", search_ours.ridge, other, rows=True),
        _our("prior only, history", search_ours.prior_only, other, rows=True),
        _our("prior only, fitted", search_ours.prior_only, FITTED),
    ]


def _our(name: str, run: Searching, source: str, *, rows: bool = False) -> Line:
    def search(of: str, replay: Replay, seed: int) -> None:
        run(replay, past(of, source, replay.case.name) if rows else None)

    history = rows or source in (FITTED, BOTH)
    return Line(name=name, source=source, history=history, ours=True, search=search)


NEEDS = {
    "Optuna GP": "scipy",
    "Optuna GP, helped": "scipy",
    "DeepSpeed model-based": "xgboost",
    "DeepSpeed model-based, no early end": "xgboost",
}
"""Packages of the extra ``bench``, by the search that cannot be run without."""


def not_run() -> dict[str, str]:
    """Why searches are left out, by their name."""
    missing = {package for package in NEEDS.values() if find_spec(package) is None}
    return {
        name: f"{package} is not installed (the extra `bench`)"
        for name, package in NEEDS.items()
        if package in missing
    }


def _rivals(name: str) -> list[Line]:
    rivals, deepspeed = search_rivals, deepspeed_tuners
    slow, gp = SLOW_SEEDS[name], GP_SEEDS[name]
    return [
        _rival("random", rivals.at_random, SEEDS, stable=True),
        _rival("random, legal only", rivals.legal_at_random, SEEDS),
        _rival("grid", rivals.grid, 1, stable=True),
        _rival("largest micro-batch first", rivals.largest_micro_batch, SEEDS, stable=True),
        _rival("least model parallelism first", rivals.least_parallel, SEEDS, stable=True),
        _rival("Optuna TPE", rivals.tpe, TPE_SEEDS),
        _rival("Optuna TPE, helped", rivals.helped_tpe, TPE_SEEDS),
        Line(name="Optuna TPE, helped, history", source=PHYSICS, history=True, ours=False,
             search=_taught, seeds=slow, stable=False),
        _rival("Optuna GP", rivals.gp, TPE_SEEDS),
        _rival("Optuna GP, helped", rivals.helped_gp, gp),
        _rival("DeepSpeed grid", deepspeed.grid, 1),
        _rival("DeepSpeed random", deepspeed.at_random, SEEDS),
        _rival("DeepSpeed model-based", deepspeed.model_based, slow),
        _rival("DeepSpeed model-based, no early end", deepspeed.patient_model_based, slow),
    ]  # fmt: skip


def _rival(name: str, rival: Rival, seeds: int, *, stable: bool = False) -> Line:
    return Line(
        name=name,
        source=PHYSICS,
        history=False,
        ours=False,
        search=lambda of, replay, seed: rival(replay, seed),
        seeds=seeds,
        stable=stable,
    )


def _taught(of: str, replay: Replay, seed: int) -> None:
    cases = known(table(of), PHYSICS, replay.case.name)
    others = [case for name, case in cases.items() if name != replay.case.name]
    search_rivals.taught_tpe(others)(replay, seed)


def curve(name: str, line: Line, workload: str, length: int) -> list[float]:
    """Regrets of one search on one workload after 1 to ``length`` probes, mean over its seeds."""
    case = known(table(name), line.source, workload)[workload]
    return mean_curve(name, line, case, length)


def mean_curve(name: str, line: Line, case: Case, length: int) -> list[float]:
    """The same on any part of a workload's table."""
    curves = [_curve(name, line, case, seed, length) for seed in range(line.seeds)]
    return [sum(values) / len(curves) for values in zip(*curves, strict=True)]


def _curve(name: str, line: Line, case: Case, seed: int, length: int) -> list[float]:
    replay = Replay(case, length)
    # Workloads draw differently: a lucky seed is not lucky everywhere.
    line.search(name, replay, seed + crc32(case.name.encode()))
    return replay.curve(length)


def part(case: Case, share: float, seed: int) -> Case:
    """A random part of a workload's candidates; at least one of them runs."""
    random = np.random.default_rng(seed)
    count = max(2, round(share * len(case.runs)))
    while True:
        rows = np.sort(random.permutation(len(case.runs))[:count])
        if any(case.runs[i].ok for i in rows):
            return case.take(rows)
