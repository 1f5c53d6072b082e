"""Rivals follow their rules, and waste no probe."""

import numpy as np
import pytest

from tuner.cost.constants import default_costs

pytestmark = pytest.mark.long


@pytest.fixture
def rivals(benchmark):
    return benchmark("search_rivals")


@pytest.fixture
def play(benchmark):
    replay, sweep = benchmark("replay"), benchmark("sweep")
    rows = [run for run in sweep.nanotron_runs() if run.name == "8B, 8 GPUs"]
    case = replay.case_of("8B, 8 GPUs", rows, default_costs(), rules=True)

    def run(search, length=6, seed=0):
        one = replay.Replay(case, length)
        search(one, seed)
        return one, [case.prior.settings[trial.index] for trial in one.trials]

    return run


def test_legal_settings_alone_are_drawn_where_asked(rivals, play) -> None:
    one, _ = play(rivals.legal_at_random, length=1000)
    assert {t.index for t in one.trials} == set(np.flatnonzero(one.case.legal).tolist())


def test_the_grid_goes_from_small_to_large(rivals, play) -> None:
    _, settings = play(rivals.grid)
    assert settings == sorted(settings, key=rivals.grid_order)
    assert settings[0].micro_batch_size == 1


@pytest.mark.parametrize("name", ["tpe", "helped_tpe"])
def test_optuna_probes_candidates_once_each_to_the_end(rivals, play, name) -> None:
    one, settings = play(getattr(rivals, name), length=15)
    assert len(settings) == len(set(settings)) == 15
    assert not one.going


def test_a_taught_sampler_is_told_of_other_workloads_first(rivals, play) -> None:
    one, _ = play(rivals.at_random, length=1)
    taught = rivals.taught_tpe([one.case])
    assert len(set(play(taught, length=5)[1])) == 5
    assert play(taught)[1] != play(rivals.helped_tpe)[1]
