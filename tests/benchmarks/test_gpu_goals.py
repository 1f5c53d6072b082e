"""Each figure of planted rows is what they were planted for, and a worse row changes it."""

import pytest

from tests.benchmarks.gpu_rows import no_memory, row, told

pytestmark = pytest.mark.long


@pytest.fixture
def goals(benchmark):
    module = benchmark("gpu.goals")
    return lambda rows, runs=(): {goal.name: goal for goal in module.goals(rows, runs)}


def off(name, error, **other):
    predicted = {"dry_run": told(1000, error), "arithmetic": told(1000, 0.0)}
    return row("memory", name, predicted=predicted, **other)


def test_peaks_are_judged_by_median_and_largest_error_whatever_its_sign(goals):
    rows = [off("a", 0.01), off("b", -0.03), off("c", 0.02)]
    what = "memory, dry run: peak allocated against emulated"
    found = goals(rows)
    assert found[f"{what}, median error"].value == pytest.approx(0.02)
    assert found[f"{what}, largest error"].value == pytest.approx(0.03)
    assert found[f"{what}, largest error"].met
    worse = goals([*rows, off("d", -0.06)])
    assert not worse[f"{what}, largest error"].met


def seed(name, *, fits, said, ended, run=True):
    predicted = {"dry_run": told(1, 0.0, fits=said), "arithmetic": None}
    make = row if ended else no_memory
    other = {} if run else {"outcome": "not_run", "measurement": None}
    return make("seed", name, published={"fits": fits, "gib": None}, predicted=predicted) | other


def test_verdicts_are_right_when_probe_and_publication_agree(goals):
    what = "issue 29425 under an 80 GiB cap"
    rows = [
        seed("a", fits=True, said=True, ended=True),
        seed("b", fits=False, said=False, ended=False),
        seed("c", fits=False, said=True, ended=True),
        seed("d", fits=True, said=False, ended=False),
        seed("e", fits=True, said=True, ended=True, run=False),
    ]
    found = goals(rows)
    assert found[f"{what}, emulated: verdicts right of 7"].value == 2
    assert found[f"{what}, dry run: verdicts right of 7"].value == 3  # one of them not run
    assert found[f"{what}, arithmetic: verdicts right of 7"].value == 0
    seven = [seed(str(n), fits=n < 5, said=n < 5, ended=n < 5) for n in range(7)]
    assert goals(seven)[f"{what}, emulated: verdicts right of 7"].met
