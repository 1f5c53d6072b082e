from dataclasses import replace
from math import log

import pytest

from tuner.cost.constants import default_costs


@pytest.fixture
def fit(benchmark):
    return benchmark("fit_costs")


@pytest.fixture
def runs(benchmark):
    found = benchmark("sweep").nanotron_runs()
    return [run for run in found if run.ok and run.name == "8B, 16 GPUs"]


def test_errors_are_logarithms_of_predicted_over_measured(fit, runs) -> None:
    costs, run = default_costs(), runs[0]
    double = replace(run, memory_gib=2 * run.memory_gib, step_time_s=run.step_time_s / 2)
    assert fit.memory_error(run, costs) - fit.memory_error(double, costs) == pytest.approx(log(2))
    assert fit.time_error(double, costs) - fit.time_error(run, costs) == pytest.approx(log(2))


def test_one_strange_run_counts_no_more_than_a_capped_error(fit, runs) -> None:
    costs = default_costs()
    strange = replace(runs[0], memory_gib=1e-9, step_time_s=1e-9)
    assert fit.memory_loss([strange], costs) == fit.time_loss([strange], costs) == 1


def test_runs_on_many_gpus_weigh_a_third(fit, runs) -> None:
    costs = default_costs()
    strange = replace(runs[0], step_time_s=1e-9, gpus=128)
    exact = replace(runs[0], step_time_s=runs[0].step_time_s)
    error = abs(fit.time_error(exact, costs))
    assert fit.time_loss([exact, strange], costs) == pytest.approx((error + 0.33) / 1.33)


def test_the_search_finds_a_planted_constant(fit, capsys) -> None:
    def loss(costs):
        return abs(log(costs.time["overlap_cost"] / 0.31))

    found = fit.search("time", ("overlap_cost",), loss)
    assert found.time["overlap_cost"] == pytest.approx(0.31, rel=0.03)
    assert found.memory == default_costs().memory
    assert "overlap_cost" in capsys.readouterr().out


def test_quantiles_are_of_measured_over_predicted(fit, capsys) -> None:
    fit.quantiles("planted", [log(predicted) for predicted in (0.5, 1, 1, 1, 1.25)] * 20)
    assert "100 runs, 80% of measured over predicted: 0.8 2.0" in capsys.readouterr().out
