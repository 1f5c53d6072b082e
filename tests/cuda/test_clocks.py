"""Probes note what their GPUs ran at, and what that says of the node."""

from tests.cuda.probing import probe_all, spec

HOT = "0x0000000000000022"
"""sw_thermal_slowdown, and a setting of clocks, which is none of its business."""


def test_a_rank_that_runs_slower_and_hot_gpus_are_noted(gpus, tmp_path):
    gpus(2, sm_mhz="1980,1700", watts="412.50,300", celsius=87, clocks_reasons=HOT)
    (probed,) = probe_all([spec(2)], tmp_path)
    found = probed.measurement
    assert found.outcome == "ok", found.detail
    assert found.hardware["clocks"] == {
        "sm_mhz": 1980, "power_w": 412.5, "temperature_c": 87, "throttle": ["sw_thermal_slowdown"],
    }  # fmt: skip
    assert found.notes == (
        "ranks 0, 1: GPU slowed down after the last step (sw_thermal_slowdown), so steps may"
        " have taken longer than the settings need",
        "SM clocks differ by 14%: 1700 MHz on rank 1, 1980 MHz on rank 0",
    )


def test_a_probe_does_without_nvidia_smi(gpus, tmp_path):
    recorded = tmp_path / "smi"
    recorded.mkdir()
    (recorded / "failure.txt").write_text("9\nNVIDIA-SMI has failed\n")
    gpus(1, smi=recorded)
    (probed,) = probe_all([spec(1)], tmp_path)
    assert probed.measurement.outcome == "ok", probed.measurement.detail
    assert probed.measurement.notes == ()
    assert "clocks" not in probed.measurement.hardware
