import json
import os
import subprocess

import pytest

from tuner import machine
from tuner.errors import UsageError
from tuner.machine import Machine, ReportedGpu

GIB = 2**30
L4 = ReportedGpu(name="NVIDIA L4", memory_mib=23034)


def answers(monkeypatch, stdout, returncode=0):
    def run(argv, **_):
        return subprocess.CompletedProcess([], returncode, stdout, "")

    monkeypatch.setattr(subprocess, "run", run)


def raises(monkeypatch, error):
    def run(*_, **__):
        raise error

    monkeypatch.setattr(subprocess, "run", run)


def test_gpus_are_read_line_by_line(monkeypatch):
    answers(monkeypatch, "GPU-1, NVIDIA L4, 23034\nGPU-2, NVIDIA L4, 23034\n\n")
    assert machine.visible_gpus({}) == (L4, L4)
    assert [gpu.uuid for gpu in machine.visible_gpus({})] == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        ("", ""),
        ("-1", ""),
        ("0", "a0"),
        ("2,0", "b0 a0"),
        ("0,7,1", "a0"),
        ("NoDevFiles", ""),
        ("GPU-b0,GPU-a1", "b0 a1"),
        ("GPU-b,0", "b0 a0"),
        ("0,GPU-a,1", "a0"),
    ],
)
def test_cuda_visible_devices_is_honoured(monkeypatch, visible, chosen):
    answers(monkeypatch, "".join(f"GPU-{uuid}, NVIDIA L4, 23034\n" for uuid in ("a0", "a1", "b0")))
    found = machine.visible_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.uuid for gpu in found] == [f"GPU-{uuid}" for uuid in chosen.split()]


@pytest.mark.parametrize("visible", ["5", "GPU-c0", "GPU-a"])
def test_cuda_visible_devices_that_names_none_is_no_machine_without_gpus(monkeypatch, visible):
    answers(monkeypatch, "".join(f"GPU-{uuid}, NVIDIA L4, 23034\n" for uuid in ("a0", "a1")))
    with pytest.raises(UsageError) as caught:
        machine.visible_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert caught.value.field == "CUDA_VISIBLE_DEVICES"
    assert repr(visible) in str(caught.value)


def test_a_driver_that_hangs_is_an_error_and_not_a_machine_without_gpus(monkeypatch):
    raises(monkeypatch, subprocess.TimeoutExpired("nvidia-smi", 20))
    with pytest.raises(UsageError, match="did not answer within 20 s"):
        machine.visible_gpus({})


def total(monkeypatch, size):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": size // 4096, "SC_PAGE_SIZE": 4096}.get)


def limit(root, file, value):
    path = root / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def group(root, text):
    path = root / "proc/self/cgroup"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_smallest_limit_above_a_version_2_group_counts(monkeypatch, tmp_path):
    total(monkeypatch, 24 * GIB)
    group(tmp_path, "0::/user/job/step\n")
    limit(tmp_path, "user/memory.max", 16 * GIB)
    limit(tmp_path, "user/job/memory.max", 8 * GIB)
    limit(tmp_path, "user/job/step/memory.max", "max")
    assert machine.memory_bytes(tmp_path) == 8 * GIB


def test_version_1_limits_count_and_unlimited_ones_do_not(monkeypatch, tmp_path):
    total(monkeypatch, 24 * GIB)
    group(tmp_path, "9:name=systemd:/\n5:cpu,memory:/job\n0::/\n")
    limit(tmp_path, "memory/memory.limit_in_bytes", 9223372036854771712)
    assert machine.memory_bytes(tmp_path) == 24 * GIB
    limit(tmp_path, "memory/job/memory.limit_in_bytes", 2 * GIB)
    assert machine.memory_bytes(tmp_path) == 2 * GIB


def test_a_machine_can_be_told_elsewhere(monkeypatch):
    answers(monkeypatch, "GPU-1, NVIDIA L4, 23034\nGPU-2, NVIDIA L4, 23034\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = machine.this_machine()
    assert (here.gpus, here.trouble) == ((L4, L4), "")
    assert (here.cores, here.memory_bytes) == (machine.usable_cores(), machine.memory_bytes())
    there = Machine.from_dict(json.loads(json.dumps(here.as_dict())))
    assert there == here
    assert [gpu.uuid for gpu in there.gpus] == ["GPU-1", "GPU-2"]


@pytest.mark.parametrize(
    ("text", "rationed"),
    [("max 100000", False), ("400000 100000", False), ("350000 100000", True), ("", False)],
)
def test_a_quota_below_the_cores_is_a_ration(tmp_path, monkeypatch, text, rationed):
    monkeypatch.setattr(machine, "usable_cores", lambda: 4)
    limit(tmp_path, "cpu.max", text)
    assert machine.is_rationed(tmp_path) is rationed
