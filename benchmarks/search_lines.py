"""All searches that are compared, and what each may know.

Constants are never fitted on the replayed model: on the sweep the catalogue's are fitted to the
other model's rows, as those that ship are to both models'; on vTrain they are the catalogue's, with
physics in the place of what was fitted to vTrain. ``history`` is rows of other workloads of the
file: on the sweep those of the other model, unless all are meant.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from zlib import crc32

import bayesian
import deepspeed_tuners
import numpy as np
import replay_costs
import search_rivals
from replay import Case, Replay, cases_of, past_of, workloads
from search_rivals import Rival
from sweep import Run, nanotron_runs, vtrain_runs

from tuner.cost.constants import Costs
from tuner.search.belief import believe
from tuner.search.engine import ask
from tuner.search.gain import HOPEFUL, log_expected_speed
from tuner.search.trials import Past

SEEDS = 20
"""Of searches that draw at random."""
TPE_SEEDS = 10
SLOW_SEEDS = {"sweep": 10, "vTrain": 3}
"""Of XGBoost, and of samplers told of a whole file; vTrain has six times the workloads."""
GP_SEEDS = {"sweep": 5, "vTrain": 1}
"""Of Optuna's GP, of which one ask takes half a second."""
SHIPPED, FITTED, ELSEWHERE = "shipped", "fitted", "elsewhere"
"""All experts that the product weighs; the first of them alone; the last of them alone."""
OTHER_MODELS, ALL_OTHERS = "rows of other models", "rows of all other workloads"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One file of published runs, as it is replayed."""

    name: str  # for the report
    rows: Mapping[str, Sequence[Run]]  # by workload
    rules: bool  # whether nanotron's rules hold

    def model(self, workload: str) -> str:
        return self.rows[workload][0].model


@cache
def table(name: str) -> Table:
    """``sweep``, nanotron's; or ``vTrain``: one node, no failures, memory unknown, other rules."""
    if name == "sweep":
        return Table(name=name, rows=workloads(nanotron_runs(), least=5), rules=True)
    return Table(name=name, rows=workloads(vtrain_runs(), least=6), rules=False)


def known(of: Table, source: str, workload: str) -> Mapping[str, Case]:
    """All workloads as the constants of one source, for the replay of one of them, see them."""
    return _known(of.name, source, of.model(workload) if of.name == "sweep" else "")


@cache
def _known(name: str, source: str, model: str) -> Mapping[str, Case]:
    experts: tuple[Costs, ...] = replay_costs.experts(model)
    if source != SHIPPED:
        experts = experts[:1] if source == FITTED else experts[-1:]
    of = table(name)
    return cases_of(of.rows, experts, rules=of.rules)


@cache
def past(name: str, source: str, workload: str, rows: str) -> Past:
    """The rows of other workloads, or of those of other models."""
    of, cases = table(name), known(table(name), source, workload)
    same = [
        other
        for other in cases
        if other == workload or (rows == OTHER_MODELS and of.model(other) == of.model(workload))
    ]
    return past_of(case for other, case in cases.items() if other not in same)


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One search."""

    name: str  # for the report
    source: str  # of the constants of the cost model; of rivals, which have none, any
    history: bool  # whether it knows anything of the other workloads of the same file
    ours: bool  # whether it is the product's, or a part of that
    search: Callable[[str, Replay, int], None]  # runs it: the table's name, the replay, a seed
    seeds: int = 1  # how often it is run
    stable: bool = True  # whether it is run on random parts of the tables too


def lines(name: str) -> list[Line]:
    """All searches of a table that can be run here: the product's without history first."""
    return [line for line in every_line(name) if line.name not in not_run()]


def every_line(name: str) -> list[Line]:
    """Also those whose packages are not installed."""
    return [*_ours(name), *_rivals(name)]


Searching = Callable[[Replay, Past | None], None]
"""A search of ours: it probes until no probe is left."""


def product(replay: Replay, past: Past | None) -> None:
    """What the planner does: :func:`tuner.search.engine.ask`, of what is legal."""
    while replay.going and (allowed := replay.open & replay.case.legal).any():
        replay.probe(ask(replay.case.prior, replay.trials, allowed, past).index)


def prior_only(replay: Replay, past: Past | None) -> None:
    """Candidates in the order of their expected speed, before any trial and whatever happens."""
    belief = believe(replay.case.prior, [], past)
    speeds = log_expected_speed(belief)
    # what is hardly expected to succeed comes last, as in the product
    scores = np.where(belief.succeeds < HOPEFUL, speeds - 1e6, speeds)
    while replay.going and (allowed := replay.open & replay.case.legal).any():
        replay.probe(int(np.argmax(np.where(allowed, scores, -np.inf))))


KEPT = {False: "ours", True: "ours, history"}
"""The product's own way to a proposal, without and with history."""


def _ours(name: str) -> list[Line]:
    found = [
        _our(KEPT[False], product, SHIPPED),
        _our("ours, the catalogue's constants alone", product, FITTED),
        _our("ours, the other stack's constants alone", product, ELSEWHERE),
        _our("ours, nothing learned", prior_only, SHIPPED),
        _our(KEPT[True], product, SHIPPED, OTHER_MODELS),
    ]
    if name == "sweep":  # most of vTrain's models are in one workload or two
        found.append(_our("ours, history of all others", product, SHIPPED, ALL_OTHERS))
    return found


def _our(name: str, run: Searching, source: str, rows: str = "") -> Line:
    def search(of: str, replay: Replay, seed: int) -> None:
        run(replay, past(of, source, replay.case.name, rows) if rows else None)

    stable = name in KEPT.values()
    return Line(
        name=name, source=source, history=bool(rows), ours=True, search=search, stable=stable
    )


NEEDS = {
    "Optuna GP": "scipy",
    "Optuna GP, helped": "scipy",
    "BoTorch, cost model as mean": "botorch",
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
    found = [
        _rival("random", rivals.at_random, SEEDS, stable=True),
        _rival("random, legal only", rivals.legal_at_random, SEEDS),
        _rival("grid", rivals.grid, 1, stable=True),
        _rival("largest micro-batch first", rivals.largest_micro_batch, SEEDS, stable=True),
        _rival("least model parallelism first", rivals.least_parallel, SEEDS, stable=True),
        _rival("Optuna TPE", rivals.tpe, TPE_SEEDS),
        _rival("Optuna TPE, helped", rivals.helped_tpe, TPE_SEEDS),
        Line(name="Optuna TPE, helped, history", source=SHIPPED, history=True, ours=False,
             search=_taught, seeds=slow, stable=False),
        _rival("Optuna GP", rivals.gp, TPE_SEEDS),
        _rival("Optuna GP, helped", rivals.helped_gp, gp),
        _rival("DeepSpeed grid", deepspeed.grid, 1),
        _rival("DeepSpeed random", deepspeed.at_random, SEEDS),
        _rival("DeepSpeed model-based", deepspeed.model_based, slow),
        _rival("DeepSpeed model-based, no early end", deepspeed.patient_model_based, slow),
    ]  # fmt: skip
    if name == "sweep":  # a probe of which takes a second
        found.append(_rival("BoTorch, cost model as mean", bayesian.cost_model_gp, 1))
    return found


def _rival(name: str, rival: Rival, seeds: int, *, stable: bool = False) -> Line:
    return Line(
        name=name,
        source=SHIPPED,
        history=False,
        ours=False,
        search=lambda of, replay, seed: rival(replay, seed),
        seeds=seeds,
        stable=stable,
    )


def _taught(of: str, replay: Replay, seed: int) -> None:
    cases = known(table(of), SHIPPED, replay.case.name)
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
