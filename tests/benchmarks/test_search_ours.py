"""The product's search on planted tables."""

from dataclasses import replace
from math import log

import numpy as np
import pytest

from tuner.cost.constants import default_costs


@pytest.fixture
def ours(benchmark):
    return benchmark("search_ours")


@pytest.fixture
def planted(benchmark):
    """A workload whose runs take just as long as predicted, but for a factor."""
    module, sweep = benchmark("replay"), benchmark("sweep")
    rows = [run for run in sweep.nanotron_runs() if run.name == "8B, 16 GPUs"]
    case = module.case_of("8B, 16 GPUs", rows, default_costs(), rules=True)
    seconds = 1.5 * np.exp(case.prior.log_seconds)
    runs = [
        replace(run, ok=True, step_time_s=float(one), memory_gib=None)
        for run, one in zip(case.runs, seconds, strict=True)
    ]
    return module, module.case_of("8B, 16 GPUs", runs, default_costs(), rules=True)


@pytest.mark.parametrize("name", ["product", "prior_only", "ridge"])
def test_a_right_prediction_is_followed(ours, planted, name) -> None:
    module, case = planted
    legal = case.take(np.flatnonzero(case.legal & (case.prior.log_need < case.prior.log_limit - 1)))
    replay = module.Replay(legal, 3)
    getattr(ours, name)(replay, None)
    assert replay.regrets[-1] < 0.02


@pytest.mark.parametrize("name", ["product", "prior_only", "ridge"])
def test_what_is_not_legal_is_never_probed(ours, planted, name) -> None:
    module, case = planted
    none = replace(case, legal=np.arange(len(case.runs)) < 2)
    replay = module.Replay(none, 10)
    getattr(ours, name)(replay, module.past_of([case]))
    assert sorted(trial.index for trial in replay.trials) == [0, 1]


def test_ridge_learns_the_factor_of_trials_and_of_the_past(ours, planted) -> None:
    module, case = planted
    replay = module.Replay(case, 5)
    assert ours.ridge_excess(case.prior, [], None).tolist() == [0.0] * len(case.runs)
    ours.product(replay, None)
    learned = ours.ridge_excess(case.prior, replay.trials, None)
    assert learned == pytest.approx(np.full(len(case.runs), log(1.5)))
    taught = ours.ridge_excess(case.prior, [], module.past_of([case]))
    assert taught == pytest.approx(np.full(len(case.runs), log(1.5)))
