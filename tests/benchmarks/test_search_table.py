"""Figures of replays: regrets, differences, goals."""

import numpy as np
import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def table(benchmark):
    return benchmark("search_table")


def played(table, search: str, history: bool, value: float, name: str = "sweep"):
    curves = np.full((4, 8), value)
    curves[0] = value + 0.04
    return table.Played(table=name, search=search, history=history, ours=True, curves=curves)


@pytest.fixture
def all_played(table):
    names = table.KEPT
    return [
        played(table, names[False], False, 0.10),
        played(table, names[True], True, 0.01),
        played(table, "random", False, 0.5),
        played(table, "taught", True, 0.2),
        played(table, names[True], True, 0.002, "vTrain"),
        played(table, names[False], False, 0.002, "vTrain"),
    ]


def test_goals_are_all_those_of_both_tables(table, all_played) -> None:
    goals = {goal.name: goal for goal in table.goals([table.line(one) for one in all_played])}
    assert len(goals) == 16 + 2
    assert goals["sweep, no history, 1 probe: mean regret"].goal == "<= 0.2"
    assert goals["sweep, no history, 1 probe: mean regret"].met
    assert not goals["sweep, no history, 3 probes: mean regret"].met
    assert goals["sweep, history, 8 probes: median regret"].goal == "<= 0.005"
    assert goals["vTrain, history, 3 probes: mean regret"].value == pytest.approx(0.012)
    assert not goals["vTrain, history, 5 probes: mean regret"].met


def test_differences_are_paired_and_between_equals(table, all_played) -> None:
    found = {(row["kept"], row["against"]): row for row in table.differences(all_played, "sweep")}
    assert set(found) == {
        (table.KEPT[False], "random"),
        (table.KEPT[True], "random"),
        (table.KEPT[True], "taught"),
    }
    assert found[table.KEPT[False], "random"]["@3"] == pytest.approx([-0.4, -0.4, -0.4])


def test_an_interval_holds_what_chance_makes_of_the_mean(table) -> None:
    off = np.random.default_rng(1).normal(1.0, 2.0, 400)
    low, high = table.interval(off)
    assert low < off.mean() < high
    assert high - low == pytest.approx(2 * 1.96 * 2.0 / 20, rel=0.1)
    assert table.interval(np.full(5, 0.25)) == (0.25, 0.25)
