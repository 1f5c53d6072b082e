"""Searches replayed on published tables: a row is revealed only when it is probed.

A workload is one model on one number of GPUs, with one global batch. Its candidates are the
distinct settings of its rows. Where settings occur twice, probing them reveals the first row; the
best of a workload is the best of all its rows, so chance may leave a regret that no search avoids.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, log
from typing import Any

import numpy as np
from sweep import Run

from tuner.core.configuration import Settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.study import Question
from tuner.cost.constants import Costs
from tuner.cost.pipeline import refused, stage_memory
from tuner.planner.forecast import Asked
from tuner.planner.prior import prior_among
from tuner.planner.similar import Found, past_trials
from tuner.search.kernel import Array, Mask, Rows
from tuner.search.trials import Past, Prior, Result, Trial, joined

LENGTH = 10
"""Probes of a replay, or as many as there are candidates."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Case:
    """One workload's table, and what is predicted of its candidates."""

    name: str  # the workload's
    prior: Prior  # the candidates
    legal: Mask
    """Which of them the product's space holds, shape ``(n,)``: it never proposes the others."""
    need_off: Array
    """Logarithm of measured over predicted memory, ``nan`` where it is not known, ``(n,)``."""
    runs: Sequence[Run]  # the row that probing each candidate reveals
    best_tokens_per_s: float  # of one GPU, over all rows

    def trial(self, index: int) -> Trial:
        """What probing a candidate tells. The tables do not say why a run failed."""
        run = self.runs[index]
        if not run.ok:
            return Trial(index=index, result=Result.FAILED)
        off = self.need_off[index]
        need = None if np.isnan(off) else float(np.exp(self.prior.log_need[index] + off))
        return Trial(index=index, result=Result.RAN, seconds=run.step_time_s, need_bytes=need)

    def take(self, rows: Rows) -> "Case":
        """Some of the candidates, by index; the best is the best of these."""
        runs = [self.runs[i] for i in rows]
        return replace(
            self,
            prior=part_of(self.prior, rows),
            legal=self.legal[rows],
            need_off=self.need_off[rows],
            runs=runs,
            best_tokens_per_s=max(run.tokens_per_s for run in runs if run.ok),
        )


BY_CANDIDATE = ("features", "log_need", "need_error", "runs", "simplicity")
"""Arrays of a prior with a row for each candidate."""


def part_of(prior: Prior, rows: Rows) -> Prior:
    arrays: dict[str, Any] = {name: getattr(prior, name)[rows] for name in BY_CANDIDATE}
    settings, experts = [prior.settings[i] for i in rows], prior.experts[:, rows]
    return replace(prior, settings=settings, experts=experts, **arrays)


class Replay:
    """One search on one case: what it has probed, and the regret after each probe."""

    def __init__(self, case: Case, length: int = LENGTH) -> None:
        self.case = case
        """Searches look at its prior; of its runs they see :attr:`trials` alone."""
        self.trials: list[Trial] = []
        """In the order of the probes."""
        self.regrets: list[float] = []
        """After each probe: 1 - best found / best of the workload."""
        self.open = np.ones(len(case.runs), dtype=bool)
        """What was not probed, shape ``(n,)``."""
        self._left = min(length, len(case.runs))

    @property
    def going(self) -> bool:
        return self._left > 0

    def probe(self, index: int) -> Trial:
        """Reveal a candidate's row.

        Raises:
            ValueError: it was probed before, or no probe is left.
        """
        if not self.going or not self.open[index]:
            raise ValueError(f"{index} cannot be probed")
        self._left -= 1
        self.open[index] = False
        trial, run = self.case.trial(index), self.case.runs[index]
        reached = run.tokens_per_s / self.case.best_tokens_per_s if run.ok else 0.0
        self.trials.append(trial)
        self.regrets.append(min(self.regrets[-1] if self.regrets else 1.0, 1 - reached))
        return trial

    def curve(self, length: int = LENGTH) -> list[float]:
        """Regrets after 1 to ``length`` probes; a search that has ended keeps its last."""
        kept = self.regrets or [1.0]
        return [kept[min(k, len(kept) - 1)] for k in range(length)]


def workloads(runs: Iterable[Run], least: int) -> dict[str, list[Run]]:
    """Rows by workload, of its most frequent global batch; at least so many that succeeded.

    The global batch is an invariant of a question: rows of another one answer another question.
    """
    found: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        found[run.name].append(run)
    for name, rows in found.items():
        batches = Counter(run.workload.global_batch_size for run in rows)
        (batch, _), *_ = batches.most_common(1)
        found[name] = [run for run in rows if run.workload.global_batch_size == batch]
    return {name: rows for name, rows in found.items() if sum(r.ok for r in rows) >= least}


def case_of(name: str, rows: Sequence[Run], experts: tuple[Costs, ...], *, rules: bool) -> Case:
    """One workload's case, with the prior that the planner makes of such a question.

    Args:
        name: the workload's.
        rows: of one workload and global batch.
        experts: constants of the cost model, in the place of the catalogue's.
        rules: whether nanotron's rules hold for these rows: then what they refuse is not legal.
    """
    first: dict[Settings, Run] = {}
    for run in rows:
        first.setdefault(run.settings, run)
    runs = [*first.values()]
    question = Question(
        workload=runs[0].workload,
        cluster=runs[0].cluster,
        framework=Framework(name=FrameworkName.NANOTRON),
    )
    # The tables' runs had the whole device; of vTrain's nothing is known of memory.
    limit = runs[0].cluster.gpu.memory_bytes if any(run.memory_gib for run in rows) else inf
    prior = prior_among(Asked(question, None, experts), [run.settings for run in runs])
    return Case(
        name=name,
        prior=replace(prior, log_limit=log(limit)),
        legal=np.array([not (rules and refused(run.workload, run.settings)) for run in runs]),
        need_off=np.array([_need_off(run, experts[0]) for run in runs]),
        runs=runs,
        best_tokens_per_s=max(run.tokens_per_s for run in rows if run.ok),
    )


def _need_off(run: Run, costs: Costs) -> float:
    """What is printed is the first stage's memory, so the like of it is looked at."""
    if not run.memory_gib:
        return np.nan
    found = stage_memory(run.workload, run.settings, run.cluster, costs).reserved_bytes
    return log(run.memory_gib * 2**30 / found)


def past_of(cases: Iterable[Case]) -> Past:
    """All rows of other workloads, as the history of a search."""
    found = joined([_past(number, case) for number, case in enumerate(cases)])
    assert found is not None
    return found


def _past(number: int, case: Case) -> Past:
    """As the product makes it, of what it would have been told.

    It probes what is legal only. A failed run of settings that are predicted not to fit is taken
    for one that ran out of memory, of which nothing is learned for other workloads; the other ones
    did not run for another reason.
    """
    prior, run = case.prior, case.runs[0]
    told = [
        place
        for place, one in enumerate(case.runs)
        if case.legal[place] and (one.ok or prior.log_need[place] <= prior.log_limit)
    ]
    found = [
        Found(settings=one.settings, seconds=one.step_time_s if one.ok else None, ran=one.ok)
        for one in (case.runs[place] for place in told)
    ]
    predicted_s = np.exp(prior.experts[:, told]).T.tolist()
    return past_trials(number, run.workload, run.cluster, found, predicted_s)


def cases_of(
    rows: Mapping[str, Sequence[Run]], experts: tuple[Costs, ...], *, rules: bool
) -> dict[str, Case]:
    """All workloads with the same constants."""
    return {name: case_of(name, runs, experts, rules=rules) for name, runs in rows.items()}
