"""Questions to nvidia-smi, which a function plays here, and how its answers are read."""

from types import SimpleNamespace

import pytest

from workers.probe import nvidia_smi

MODERN, OLD = nvidia_smi.REASONS


@pytest.fixture
def smi(monkeypatch):
    """``smi(answer)`` has it answer so, or raise; the questions that it was asked."""

    def says(answer, status=0, refuses="nothing of this name"):
        asked = []

        def run(argv, **_):
            asked.append(" ".join(argv))
            if isinstance(answer, Exception):
                raise answer
            return SimpleNamespace(returncode=2 if refuses in asked[-1] else status, stdout=answer)

        monkeypatch.setattr(nvidia_smi.subprocess, "run", run)
        return asked

    return says


def test_figures_of_some_gpus_by_name(smi):
    asked = smi("GPU-7a, 9, 1, NVIDIA H100\nGPU-5c9d, 7, [N/A], NVIDIA H200\n")
    found = nvidia_smi.ask(["5c9d", "7a"], "memory.used", "power.draw", "name")
    assert found["5c9d"] == {"memory.used": "7", "name": "NVIDIA H200"}
    assert found["7a"] == {"memory.used": "9", "power.draw": "1", "name": "NVIDIA H100"}
    assert asked == [
        "nvidia-smi --id=GPU-5c9d,GPU-7a --query-gpu=uuid,memory.used,power.draw,name"
        " --format=csv,noheader,nounits"
    ]


@pytest.mark.parametrize(
    ("mask", "throttle", "idle"),
    [
        ("0x0000000000000000", [], False),
        ("0x0000000000000102", [], False),  # settings of applications' and displays' clocks
        ("0x0000000000000001", [], True),
        ("0x0000000000000004", ["sw_power_cap"], False),
        ("0x0000000000000048", ["hw_slowdown", "hw_thermal_slowdown"], False),
        ("0x0000000000000030", ["sync_boost", "sw_thermal_slowdown"], False),
        ("0x0000000000000081", ["hw_power_brake_slowdown"], True),
    ],
)
def test_clocks_of_a_gpu(smi, mask, throttle, idle):
    asked = smi(f"GPU-5c9d, 1980, 412.50, 61, {mask}")
    usual = {"sm_mhz": 1980, "power_w": 412.5, "temperature_c": 61, "throttle": throttle}
    assert nvidia_smi.clocks(["5c9d"]) == {"5c9d": usual | ({"idle": True} if idle else {})}
    assert f"=uuid,clocks.sm,power.draw,temperature.gpu,{MODERN} " in asked[0]
    assert len(asked) == 1


def test_a_driver_that_knows_the_mask_by_its_first_name(smi):
    asked = smi("GPU-5c9d, 1410, 250.00, 55, 0x20", refuses=MODERN)
    assert nvidia_smi.clocks(["5c9d"])["5c9d"]["throttle"] == ["sw_thermal_slowdown"]
    assert [OLD in line for line in asked] == [False, True]
