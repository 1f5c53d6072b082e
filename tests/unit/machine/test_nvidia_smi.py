"""Machines whose GPUs are cut, lost, hidden or without a driver, by what nvidia-smi says there."""

import re
import subprocess

import pytest

from tests.unit.machine import nvidia_smi as said
from tuner import machine
from tuner.client.request import read_cluster
from tuner.errors import UsageError


@pytest.fixture
def root(tmp_path):
    """A machine's files, without a GPU."""
    return tmp_path / "root"


def answers(monkeypatch, answer):
    def run(argv, **_):
        words = answer.listing if argv[1:] == ("-L",) else answer.rows
        return subprocess.CompletedProcess(argv, answer.code, words, "")

    monkeypatch.setattr(subprocess, "run", run)


def has(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()


def refusal(root, environment=None):
    with pytest.raises(UsageError) as raised:
        machine.visible_gpus(environment or {}, root)
    assert "\n" not in str(raised.value)
    return raised.value.allowed


@pytest.mark.parametrize(
    "answer", [said.LOST, said.UNKNOWN_ERROR, said.MISMATCH, said.NO_PERMISSION]
)
def test_a_driver_that_names_a_failure_is_quoted_where_no_device_is_seen(monkeypatch, root, answer):
    answers(monkeypatch, answer)
    why = refusal(root)
    assert str(answer.code) in why
    assert " ".join(answer.rows.split()) in why


@pytest.mark.parametrize("answer", [said.NO_DRIVER, said.NO_ACCESS, said.NO_DEVICES])
@pytest.mark.parametrize("path", ["dev/nvidia0", "proc/driver/nvidia/gpus/0000:01:00.0/numa"])
def test_other_failures_are_errors_where_the_kernel_shows_a_gpu(monkeypatch, root, answer, path):
    answers(monkeypatch, answer)
    assert machine.visible_gpus({}, root) == ()
    has(root, path)
    assert " ".join(answer.rows.split()) in refusal(root)


def test_a_gpu_without_nvidia_smi_is_named(monkeypatch, root):
    def run(*_, **__):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(subprocess, "run", run)
    assert machine.visible_gpus({}, root) == ()
    has(root, "dev/nvidia0")
    assert "/dev/nvidia0" in refusal(root)


@pytest.mark.parametrize("visible", ["", "-1", "NoDevFiles"])
def test_gpus_that_are_hidden_are_none_whatever_their_driver_says(monkeypatch, root, visible):
    has(root, "dev/nvidia0")
    answers(monkeypatch, said.MISMATCH)
    assert machine.visible_gpus({"CUDA_VISIBLE_DEVICES": visible}, root) == ()


def test_a_gpu_without_memory_of_its_own(monkeypatch, root):
    answers(monkeypatch, said.GB10)
    assert "NVIDIA GB10" in refusal(root)


def described(why, folder):
    """The cluster of the lines that a refusal gives."""
    lines = re.search(r"whose lines are: (.*?\})", why)
    assert lines is not None, why
    file = folder / "slice.toml"
    file.write_text(lines[1].replace("; ", "\n"))
    return read_cluster(str(file))


def test_a_gpu_that_is_cut_is_not_whole(monkeypatch, root, tmp_path):
    answers(monkeypatch, said.MIG)
    why = refusal(root)
    assert "1g.10gb, 3g.40gb" in why
    cluster = described(why, tmp_path)
    assert (cluster.world_size, cluster.gpu.name) == (1, "nvidia-a100-sxm4-80gb-3g.40gb")
    assert 37 * 2**30 < cluster.gpu.memory_bytes < 39.25 * 2**30  # nvidia-smi mig -lgip: 39.25 GiB
    # the other one is whole, and the refusal names it
    whole = re.search(r"CUDA_VISIBLE_DEVICES=(\S+)", why)
    (gpu,) = machine.visible_gpus({"CUDA_VISIBLE_DEVICES": whole[1]}, root)
    assert gpu.memory_mib == 81_920
