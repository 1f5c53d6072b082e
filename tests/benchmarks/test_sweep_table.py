from dataclasses import replace

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def table(benchmark):
    return benchmark("sweep_table")


@pytest.fixture
def sweep(benchmark):
    return benchmark("sweep")


def told_exactly(table, sweep, *, memory=1.0, speed=1.0, stage="worst", of="8B, 64 GPUs"):
    """Runs of one workload, as measured if every prediction were off by these factors."""
    runs = [run for run in sweep.nanotron_runs() if run.name == of and run.ok]
    found = []
    for run, prediction in table.predicted(runs):
        gib = table.told_gib(prediction) if stage == "worst" else table.printed_gib(run)
        seconds = prediction.step_time_s.value * speed
        found.append((replace(run, memory_gib=gib / memory, step_time_s=seconds), prediction))
    return found


def test_a_right_prediction_has_no_error_and_no_regret(table, sweep):
    pairs = told_exactly(table, sweep)
    line = table.line("all", pairs)
    assert line["n"] == len(pairs) > 20
    assert line["memory_worst_stage_error"] == pytest.approx(0)
    assert line["speed_error"] == pytest.approx(0)
    assert line["spearman_pooled"] == pytest.approx(1)
    assert line["inside_worst_stage"] == line["inside_speed"] == 1
    assert line["regret_of_fastest"] == pytest.approx(0)


@pytest.mark.parametrize(("factor", "inside"), [(0.8, 0), (0.95, 1), (1.05, 1), (1.3, 0)])
def test_memory_off_by_a_factor_is_seen(table, sweep, factor, inside):
    pairs = told_exactly(table, sweep, memory=factor, stage="first")
    errors = table.memory_errors(pairs, "first")
    assert errors == pytest.approx([abs(factor - 1)] * len(pairs))
    within = table.inside_memory(pairs, "first")
    # An upper end is cut where the device ends, so a few of the largest are not held.
    assert within == pytest.approx(inside, abs=0.1)
