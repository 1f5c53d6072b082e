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


def test_a_right_prediction_has_no_error_and_no_regret(table, sweep) -> None:
    pairs = told_exactly(table, sweep)
    line = table.line("all", pairs)
    assert line["n"] == len(pairs) > 20
    assert line["memory_worst_stage_error"] == pytest.approx(0)
    assert line["speed_error"] == pytest.approx(0)
    assert line["spearman_pooled"] == pytest.approx(1)
    assert line["inside_worst_stage"] == line["inside_speed"] == 1
    assert line["regret_of_fastest"] == pytest.approx(0)


@pytest.mark.parametrize(("factor", "inside"), [(0.8, 0), (0.95, 1), (1.05, 1), (1.3, 0)])
def test_memory_off_by_a_factor_is_seen(table, sweep, factor, inside) -> None:
    pairs = told_exactly(table, sweep, memory=factor, stage="first")
    errors = table.memory_errors(pairs, "first")
    assert errors == pytest.approx([abs(factor - 1)] * len(pairs))
    within = table.inside_memory(pairs, "first")
    # An upper end is cut where the device ends, so a few of the largest are not held.
    assert within == pytest.approx(inside, abs=0.1)


def test_ranks_the_wrong_way_round_are_seen(table, sweep) -> None:
    pairs = told_exactly(table, sweep)
    upside_down = [
        (replace(run, step_time_s=run.step_time_s * run.tokens_per_s**2), prediction)
        for run, prediction in pairs
    ]
    assert table.spearman(table.speeds(upside_down)) == pytest.approx(-1)


def test_regret_is_what_the_run_predicted_fastest_loses(table, sweep) -> None:
    pairs = told_exactly(table, sweep)
    fastest = max(range(len(pairs)), key=lambda i: pairs[i][0].tokens_per_s)
    second = sorted(run.tokens_per_s for run, _ in pairs)[-2]
    run, prediction = pairs[fastest]
    pairs[fastest] = (replace(run, step_time_s=4 * run.step_time_s), prediction)
    assert table.regret(pairs) == pytest.approx(1 - run.tokens_per_s / 4 / second)


def test_goals_are_of_the_half_that_nothing_was_fitted_on(table, sweep) -> None:
    runs = [run for run in sweep.nanotron_runs() if run.gpus <= 16]
    pairs = table.predicted(runs)
    held = [pair for pair in pairs if not pair[0].fitted_on and pair[0].ok]
    assert 0 < len(held) < len([run for run in runs if run.ok])
    goals = {goal.name: goal.value for goal in table.goals(pairs)}
    shown = table.line("held", held)
    of = "sweep, held, <= 64 GPUs: "
    for name, key in (
        ("memory of the first stage, median error", "memory_first_stage_error"),
        ("memory of the worst stage, median error", "memory_worst_stage_error"),
        ("memory of the first stage inside intervals", "inside_first_stage"),
        ("memory of the worst stage inside intervals", "inside_worst_stage"),
        ("tokens/s, median error", "speed_error"),
        ("tokens/s inside intervals", "inside_speed"),
        ("tokens/s, pooled Spearman, conflicting siblings too", "spearman_pooled"),
        ("tokens/s, median Spearman over workloads", "spearman_median"),
    ):
        assert goals[of + name] == pytest.approx(shown[key]), name
