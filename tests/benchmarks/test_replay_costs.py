"""Constants for replays come from other rows than those that are replayed."""

import pytest

from tuner.cost.constants import default_costs


@pytest.fixture
def costs(benchmark):
    return benchmark("replay_costs")


def test_every_workload_has_constants_of_its_own(costs, benchmark) -> None:
    found = costs.load()
    names = {run.name for run in benchmark("sweep").nanotron_runs()}
    assert set(found["sweep"]) == names
    assert len({str(one) for one in found["sweep"].values()}) == len(names)
    assert len(found["vtrain_folds"]) == costs.FOLDS


def test_a_fit_does_not_see_the_workload_that_is_replayed(costs, monkeypatch) -> None:
    seen = []

    def search(table, names, loss, start):
        seen.append({run.name for run in loss.args[0]})
        return start

    monkeypatch.setattr(costs, "search", search)
    costs.by_other_workloads("1B, 8 GPUs", costs.physics())
    assert len(seen) == 2
    assert all(names and "1B, 8 GPUs" not in names for names in seen)


def test_a_fold_does_not_see_its_own_workloads(costs, monkeypatch) -> None:
    seen = []
    monkeypatch.setattr(costs, "search", lambda t, names, loss, start: seen.append(loss.args[0]))
    costs.by_other_folds(2)
    assert seen[0]
    assert 2 not in {costs.fold_of(run.name) for run in seen[0]}


def test_fits_on_the_sweep_start_from_nothing_that_was_fitted_on_it(costs) -> None:
    physics, shipped = costs.physics(), default_costs()
    fitted = {"memory": costs.MEMORY, "time": costs.TIME}
    unused = {"fragment_from_mb", "stall_ranks_log2", "stall_memory", "stall_replicated"}
    for table, names in fitted.items():
        for name in set(names) - unused:
            assert getattr(physics, table)[name] != getattr(shipped, table)[name], name
    assert physics.time.stall_s == 0  # so that the stalls' other constants have no effect
    assert physics.memory.fragment_factor == 0


def test_only_what_vtrain_shows_is_fitted_on_it(costs) -> None:
    found, physics = costs.load()["vtrain"], costs.physics()
    assert found.memory == physics.memory
    changed = {name for name in found.time if found.time[name] != physics.time[name]}
    assert changed
    assert changed <= set(costs.SHOWN_BY_VTRAIN)
