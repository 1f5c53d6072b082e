import json
import os
import subprocess
from pathlib import Path

import pytest

from tuner.errors import UsageError
from tuner.machine import Machine, ReportedGpu
from tuner.machine import facts as machine

GIB = 2**30
L4 = ReportedGpu(name="NVIDIA L4", memory_mib=23034)


def answers(monkeypatch: pytest.MonkeyPatch, stdout: str, returncode: int = 0) -> None:
    def run(argv: object, **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], returncode, stdout, "")

    monkeypatch.setattr(subprocess, "run", run)


def raises(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def run(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", run)


def test_gpus_are_read_line_by_line(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_cuda_visible_devices_is_honoured(
    monkeypatch: pytest.MonkeyPatch, visible: str, chosen: str
) -> None:
    answers(monkeypatch, "".join(f"GPU-{uuid}, NVIDIA L4, 23034\n" for uuid in ("a0", "a1", "b0")))
    found = machine.visible_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert [gpu.uuid for gpu in found] == [f"GPU-{uuid}" for uuid in chosen.split()]


@pytest.mark.parametrize("visible", ["5", "GPU-c0", "GPU-a"])
def test_cuda_visible_devices_that_names_none_is_no_machine_without_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    answers(monkeypatch, "".join(f"GPU-{uuid}, NVIDIA L4, 23034\n" for uuid in ("a0", "a1")))
    with pytest.raises(UsageError) as caught:
        machine.visible_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert caught.value.field == "CUDA_VISIBLE_DEVICES"
    assert repr(visible) in str(caught.value)


def test_a_machine_without_nvidia_smi_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    raises(monkeypatch, FileNotFoundError())
    assert machine.visible_gpus({}) == ()


def test_a_driver_that_finds_no_devices_has_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "No devices were found\n", returncode=6)
    assert machine.visible_gpus({}) == ()


def test_a_driver_that_hangs_is_an_error_and_not_a_machine_without_gpus(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raises(monkeypatch, subprocess.TimeoutExpired("nvidia-smi", 20))
    with pytest.raises(UsageError, match="did not answer within 20 s"):
        machine.visible_gpus({})


@pytest.mark.parametrize(
    "line", ["GPU-1, NVIDIA GB10, [N/A]", "23034", "GPU-1, 23034", "GPU-1, , 23034"]
)
def test_a_gpu_without_a_memory_size_is_an_error(
    monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    answers(monkeypatch, f"{line}\n")
    with pytest.raises(UsageError, match="describe the GPU in a cluster file"):
        machine.visible_gpus({})


def test_slices_of_a_gpu_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "GPU-1, NVIDIA H100 80GB HBM3, 81559\n")
    with pytest.raises(UsageError, match="MIG"):
        machine.visible_gpus({"CUDA_VISIBLE_DEVICES": "MIG-1111"})


def test_the_program_is_asked_for_ids_names_and_total_memory(tmp_path: Path) -> None:
    script = tmp_path / "nvidia-smi"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --query-gpu=uuid,name,memory.total,mig.mode.current ]'
        ' && [ "$2" = --format=csv,noheader,nounits ] && echo "GPU-1, NVIDIA L4, 23034, [N/A]"\n'
    )
    script.chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        assert machine.visible_gpus({}) == (L4,)


def total(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": size // 4096, "SC_PAGE_SIZE": 4096}.get)


def limit(root: Path, file: str, value: object) -> None:
    path = root / "sys/fs/cgroup" / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{value}\n")


def group(root: Path, text: str) -> None:
    path = root / "proc/self/cgroup"
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_the_smallest_limit_above_a_version_2_group_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    total(monkeypatch, 24 * GIB)
    group(tmp_path, "0::/user/job/step\n")
    limit(tmp_path, "user/memory.max", 16 * GIB)
    limit(tmp_path, "user/job/memory.max", 8 * GIB)
    limit(tmp_path, "user/job/step/memory.max", "max")
    assert machine.memory_bytes(tmp_path) == 8 * GIB


def test_inside_a_container_the_mount_is_the_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    total(monkeypatch, 24 * GIB)
    group(tmp_path, "0::/../../docker/abc\n")
    limit(tmp_path, "memory.max", 4 * GIB)
    assert machine.memory_bytes(tmp_path) == 4 * GIB


def test_version_1_limits_count_and_unlimited_ones_do_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    total(monkeypatch, 24 * GIB)
    group(tmp_path, "9:name=systemd:/\n5:cpu,memory:/job\n0::/\n")
    limit(tmp_path, "memory/memory.limit_in_bytes", 9223372036854771712)
    assert machine.memory_bytes(tmp_path) == 24 * GIB
    limit(tmp_path, "memory/job/memory.limit_in_bytes", 2 * GIB)
    assert machine.memory_bytes(tmp_path) == 2 * GIB


def test_a_machine_can_be_told_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    answers(monkeypatch, "GPU-1, NVIDIA L4, 23034\nGPU-2, NVIDIA L4, 23034\n")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    here = machine.this_machine()
    assert (here.gpus, here.trouble) == ((L4, L4), "")
    assert (here.cores, here.memory_bytes) == (machine.usable_cores(), machine.memory_bytes())
    there = Machine.from_dict(json.loads(json.dumps(here.as_dict())))
    assert there == here
    assert [gpu.uuid for gpu in there.gpus] == ["GPU-1", "GPU-2"]


def test_machines_of_one_worker_can_be_told_as_one() -> None:
    first, second = (Machine(name=n, gpus=(L4,), cores=2, memory_bytes=GIB) for n in ("a", "b"))
    both = machine.together([first, second])
    assert (both.name, both.nodes) == ("a", (first, second))
    assert Machine.from_dict(json.loads(json.dumps(both.as_dict()))) == both
    values = first.as_dict()
    del values["others"]  # as workers wrote it before
    assert Machine.from_dict(values) == first
    assert first.nodes == (first,)
