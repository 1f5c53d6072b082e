"""What each compared search may know."""

import numpy as np
import pytest

from tuner.cost.constants import default_costs

pytestmark = pytest.mark.long


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


def test_both_is_the_mean_of_two_forecasts(lines) -> None:
    table = lines.table("sweep")
    name = next(iter(table.rows))
    one, other, both = (
        lines.known(table, source, name)[name].prior.log_seconds
        for source in (lines.OTHER["sweep"], lines.FITTED, lines.BOTH)
    )
    assert not np.allclose(one, other)
    assert both == pytest.approx((one + other) / 2)
