from types import SimpleNamespace

import pytest

from tuner.core.quantity import Provenance, Quantity

pytestmark = pytest.mark.long


@pytest.fixture
def module(benchmark):
    return benchmark("probe_table")


def told(module, value, block=0):
    quantity = Quantity(
        value=value, low=0.98 * value, high=1.02 * value, provenance=Provenance.PREDICTED
    )
    prediction = SimpleNamespace(allocated_bytes=quantity, by_phase={"forward": value})
    return module._told(prediction, 1e6, block)


@pytest.mark.parametrize(
    ("value", "block", "near", "strict", "inside"),
    [
        (1.01e6, 0, True, True, True),
        (1.011e6, 0, False, False, True),
        (1.05e6, 50_000, True, False, False),
        (1.05e6, 49_999, False, False, False),
        (0.95e6, 50_000, True, False, False),
    ],
)
def test_a_block_is_allowed_in_one_of_two_views(module, value, block, near, strict, inside) -> None:
    found = told(module, value, block)
    assert (found["near"], found["within_1%"], found["inside"]) == (near, strict, inside)
    assert found["error"] == pytest.approx(value / 1e6 - 1)


def rows(module, bad=None, profiled=6):
    good = told(module, 1e6)
    found = [{"dry_run": good, "arithmetic": good} for _ in range(40)]
    for row in found[:profiled]:
        row |= {"profiler_mb": 1.0, "dry_run_by_profiler": good}
    found[0].update(bad or {})
    return found


def missed(goals):
    return [goal.name for goal in goals if not goal.met]


def test_what_was_measured_meets_all_goals(module) -> None:
    assert missed(module.goals(rows(module))) == []


def test_a_row_without_a_dry_run_misses(module) -> None:
    assert missed(module.goals(rows(module, {"dry_run": None}))) == [
        "CPU probes: share with dry run within 1% or one gathered block",
        "CPU probes: share with dry run within 1%",
        "CPU probes: share answered unknown",
    ]


def test_the_committed_measurements_are_all_of_known_cases(module) -> None:
    probed = module.probed(module.load())
    assert len(probed) >= 40
    assert sum(bool(one.profiled) for one in probed) == 6
