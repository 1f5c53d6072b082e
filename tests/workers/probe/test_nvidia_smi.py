"""What is asked of nvidia-smi, which a script plays here, and how its answers are read."""

from pathlib import Path

import pytest

from workers.probe import nvidia_smi

MODERN, OLD = nvidia_smi.REASONS


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the script must lie; it may use the commands of a shell alone."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path / "nvidia-smi"


def says(smi: Path, script: str) -> None:
    """A script that also keeps what it was asked, in a file beside it."""
    smi.write_text(f'#!/bin/sh\necho "$*" >> {smi}.asked\n{script}\n')
    smi.chmod(0o755)


def asked(smi: Path) -> list[str]:
    return Path(f"{smi}.asked").read_text().splitlines()


def test_figures_of_one_gpu_by_name(smi: Path) -> None:
    says(smi, "echo '7, [N/A], NVIDIA H200'")
    found = nvidia_smi.ask("5c9d", "memory.used", "power.draw", "name")
    assert found == {"memory.used": "7", "name": "NVIDIA H200"}
    assert asked(smi) == [
        "--id=GPU-5c9d --query-gpu=memory.used,power.draw,name --format=csv,noheader,nounits"
    ]


@pytest.mark.parametrize(
    "script",
    ["echo 7; exit 2", "echo 7; echo 8", "echo '7, 8'", "exit 0", "exec sleep 60"],
    ids=["fails", "another GPU too", "another figure too", "says nothing", "hangs"],
)
def test_without_a_good_answer_nothing_is_known(
    smi: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    monkeypatch.setenv("PATH", f"{smi.parent}:/usr/bin:/bin")
    says(smi, script)
    assert nvidia_smi.ask("5c9d", "memory.used", timeout_s=0.5) == {}


def test_without_nvidia_smi_nothing_is_known(smi: Path) -> None:
    assert nvidia_smi.ask("5c9d", "memory.used") == {}
    assert nvidia_smi.clocks("5c9d") == {}


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
def test_what_a_gpu_runs_at(smi: Path, mask: str, throttle: list[str], idle: bool) -> None:
    says(smi, f"echo '1980, 412.50, 61, {mask}'")
    usual = {"sm_mhz": 1980, "power_w": 412.5, "temperature_c": 61, "throttle": throttle}
    assert nvidia_smi.clocks("5c9d") == usual | ({"idle": True} if idle else {})
    fields = f"clocks.sm,power.draw,temperature.gpu,{MODERN}"
    assert asked(smi) == [f"--id=GPU-5c9d --query-gpu={fields} --format=csv,noheader,nounits"]


def test_a_driver_that_knows_the_mask_by_its_first_name(smi: Path) -> None:
    says(smi, f'case "$*" in *{MODERN}*) exit 2;; esac\necho "1410, 250.00, 55, 0x20"')
    found = nvidia_smi.clocks("5c9d")
    assert found["throttle"] == ["sw_thermal_slowdown"]
    assert [OLD in line for line in asked(smi)] == [False, True]


def test_only_what_is_known_is_in_the_clocks(smi: Path) -> None:
    says(smi, "echo '[N/A], [Not Supported], 61, [Requested functionality has been deprecated]'")
    assert nvidia_smi.clocks("5c9d") == {"temperature_c": 61}
