"""What each compared search may know."""

import numpy as np
import pytest

from tuner.cost.constants import default_costs


@pytest.fixture
def lines(benchmark):
    return benchmark("search_lines")


@pytest.mark.parametrize("name", ["sweep", "vTrain"])
def test_names_are_unique_and_what_is_kept_is_among_them(lines, name) -> None:
    names = [line.name for line in lines.lines(name)]
    assert len(names) == len(set(names))
    history = {line.name: line.history for line in lines.lines(name)}
    assert all(history[kept] is known for known, kept in lines.KEPT.items())


def test_no_replay_of_the_sweep_uses_constants_of_the_catalogue(lines) -> None:
    table = lines.table("sweep")
    used = [table.costs[source](name) for source in table.costs for name in table.rows]
    assert all(costs.time != default_costs().time for costs in used)
    assert all(costs.memory != default_costs().memory for costs in used)


def test_a_line_without_history_has_constants_from_elsewhere(lines) -> None:
    for name in ("sweep", "vTrain"):
        for line in lines.lines(name):
            assert line.history or line.source not in (lines.FITTED, lines.BOTH)


def test_a_past_leaves_the_replayed_workload_out(lines) -> None:
    table = lines.table("sweep")
    workload = next(iter(table.rows))
    cases = lines.known(table, lines.PHYSICS, workload)
    past = lines.past("sweep", lines.PHYSICS, workload)
    others = [case for other, case in cases.items() if other != workload]
    ran = [run.ok and bool(case.legal[i]) for case in others for i, run in enumerate(case.runs)]
    assert past.ran.sum() == sum(ran)
    own = cases[workload].prior.workload
    assert not (np.abs(past.workload - own).sum(1) < 1e-9).any()


def test_the_issue_asks_of_fourteen_and_eighty_eight_workloads(lines) -> None:
    assert len(lines.table("sweep").rows) == 14
    assert len(lines.table("vTrain").rows) == 88


def test_a_part_is_the_same_for_the_same_seed(lines) -> None:
    table = lines.table("sweep")
    case = lines.known(table, lines.PHYSICS, "8B, 8 GPUs")["8B, 8 GPUs"]
    one, same, other = (lines.part(case, 0.6, seed).prior.settings for seed in (1, 1, 2))
    assert one == same != other
    assert len(one) == round(0.6 * len(case.runs))


def test_a_curve_is_the_mean_over_seeds(lines) -> None:
    line = next(one for one in lines.lines("sweep") if one.name == "random")
    case = lines.known(lines.table("sweep"), line.source, "8B, 8 GPUs")["8B, 8 GPUs"]
    curve = lines.mean_curve("sweep", line, case, 4)
    each = [lines._curve("sweep", line, case, seed, 4) for seed in range(line.seeds)]
    assert curve == pytest.approx(np.mean(each, axis=0).tolist())
    assert len({tuple(one) for one in each}) > 1


def test_searches_without_their_package_are_left_out_with_the_reason(lines, monkeypatch) -> None:
    monkeypatch.setattr(lines, "find_spec", lambda name: None if name == "xgboost" else object())
    assert "xgboost is not installed" in lines.not_run()["DeepSpeed model-based"]
    names = {line.name for line in lines.lines("sweep")}
    assert "DeepSpeed model-based" not in names
    assert "DeepSpeed grid" in names


def test_both_is_the_mean_of_two_forecasts(lines) -> None:
    table = lines.table("sweep")
    name = next(iter(table.rows))
    one, other, both = (
        lines.known(table, source, name)[name].prior.log_seconds
        for source in (lines.OTHER["sweep"], lines.FITTED, lines.BOTH)
    )
    assert not np.allclose(one, other)
    assert both == pytest.approx((one + other) / 2)
