"""Rates that an earlier run has kept, and those that nothing can be made of any more."""

import pytest

from tests.unit.cost.calibrations import calibration_of
from tuner.core.cluster import parse_cluster
from workers.calibrate.plan import plan

CLUSTER = parse_cluster("cpu:1")
FOUND = calibration_of(plan(CLUSTER)["cases"], CLUSTER)


def test_kept_rates_are_not_measured_again(benchmark, monkeypatch) -> None:
    module = benchmark("gpu.calibration")
    monkeypatch.setattr(module, "_measured", lambda place: pytest.fail("measured again"))
    assert module.calibration(None, FOUND.as_dict()).found == FOUND


@pytest.mark.parametrize(
    "kept", [None, {**FOUND.as_dict(), "format": 0}, {"flops_per_s": 1e12}, {"format": 1}]
)
def test_rates_of_another_version_are_measured_anew_with_a_note(
    benchmark, monkeypatch, capsys, kept
) -> None:
    module = benchmark("gpu.calibration")
    monkeypatch.setattr(module, "_measured", lambda place: FOUND)
    assert module.calibration(None, kept).found == FOUND
    noted = "kept rates are of another version" in capsys.readouterr().err
    assert noted is (kept is not None)
