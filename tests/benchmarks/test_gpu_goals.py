"""Each figure of planted rows is what they were planted for, and a worse row changes it."""

import pytest

from tests.benchmarks.gpu_rows import measurement, no_memory, row, told

pytestmark = pytest.mark.long


@pytest.fixture
def goals(benchmark):
    module = benchmark("gpu.goals")
    return lambda rows, runs=(): {goal.name: goal for goal in module.goals(rows, runs)}


def off(name: str, error: float, **other):
    predicted = {"dry_run": told(1000, error), "arithmetic": told(1000, 0.0)}
    return row("memory", name, predicted=predicted, **other)


def test_nothing_is_met_where_nothing_was_measured(goals) -> None:
    found = goals([])
    assert not any(goal.met for goal in found.values())
    assert all(goal.value is None for goal in found.values())


def test_peaks_are_judged_by_median_and_largest_error_whatever_its_sign(goals) -> None:
    rows = [off("a", 0.01), off("b", -0.03), off("c", 0.02)]
    what = "memory, dry run: peak allocated against emulated"
    found = goals(rows)
    assert found[f"{what}, median error"].value == pytest.approx(0.02)
    assert found[f"{what}, largest error"].value == pytest.approx(0.03)
    assert found[f"{what}, largest error"].met
    worse = goals([*rows, off("d", -0.06)])
    assert not worse[f"{what}, largest error"].met


def seed(name: str, *, fits: bool, said: bool, ended: bool, run: bool = True):
    predicted = {"dry_run": told(1, 0.0, fits=said), "arithmetic": None}
    make = row if ended else no_memory
    other = {} if run else {"outcome": "not_run", "measurement": None}
    return make("seed", name, published={"fits": fits, "gib": None}, predicted=predicted) | other


def test_verdicts_are_right_when_probe_and_publication_agree(goals) -> None:
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


def test_computing_is_judged_by_each_way_of_having_rates(goals) -> None:
    def timed(name: str, catalogue: float, calibrated: float | None):
        seen = {"measured_s": 0.1, "catalogue_s": catalogue, "calibrated_s": calibrated}
        return row("time", name, computing=seen)

    rows = [timed("a", 0.12, 0.101), timed("b", 0.09, 0.095), timed("c", 0.13, None)]
    found = goals(rows)
    assert found["computing, with the catalogue's rates: median error"].value == pytest.approx(0.2)
    calibrated = found["computing, after calibration: median error"]
    assert calibrated.value == pytest.approx(0.03)
    assert calibrated.met
    assert goals([timed("a", 0.12, None)])[calibrated.name].value is None


def warm_pair(model: str, warm_s: float, mib: float):
    shown = measurement(mib, [1.0, 1.0], 0.0, warm_s)
    cold = measurement(1000, [1.0, 1.0], 0.0, 20.0)
    for way, one in (("cold", cold), ("warm", shown)):
        yield row("warm", "", key=f"warm {way} {model} x #0", way=way, model=model, measurement=one)


def test_warm_probes_are_judged_by_seconds_and_by_what_of_them_is_measured(goals) -> None:
    found = goals([*warm_pair("llama-3.2-1b", 4.0, 1005), *warm_pair("llama-3.1-8b", 12.5, 995)])
    assert found["warm probes of llama-3.2-1b: s each, median"].value == 4.0
    assert found["warm probes of llama-3.2-1b: s each, median"].met
    share = "warm probes of {}: share of measured steps, median"
    assert found[share.format("llama-3.2-1b")].value == 0.5
    assert found[share.format("llama-3.1-8b")].value == pytest.approx(0.16)
    assert not found["warm probes of llama-3.1-8b: s each, median"].met
    same = found["warm against cold: peak allocated, largest difference"]
    assert same.value == pytest.approx(0.005)
    assert not goals(list(warm_pair("llama-3.2-1b", 4.0, 1020)))[same.name].met
