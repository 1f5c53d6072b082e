"""A device that computes, and one that does not; drivers and builds of torch."""

import json
from types import SimpleNamespace

import pytest
import torch

from workers.probe import check as module
from workers.probe.check import MINIMUM_DRIVER, UnusableError, check, driver_version, why_too_old


@pytest.fixture(autouse=True)
def rank(monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def test_a_device_that_computes_is_well(tmp_path):
    record, device = check("cpu", tmp_path, "")
    assert record.outcome == "ok"
    assert device is not None
    assert record.hardware["torch"] == torch.__version__
    assert record.hardware["cuda"] is None
    json.dumps(record.hardware)


def test_a_device_that_fails_says_how(tmp_path, monkeypatch):
    def fail(*_):
        error = torch.AcceleratorError("CUDA error: unknown error")
        error.error_code = 999
        raise error

    monkeypatch.setattr(torch.Tensor, "__matmul__", fail)
    record, _ = check("cpu", tmp_path, "")
    assert (record.outcome, record.phase) == ("device_lost", "check")


def test_a_device_that_computes_something_else_is_not_well(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda one, _: one)
    record, _ = check("cpu", tmp_path, "")
    assert record.outcome == "crashed"
    assert "sums of 256 ones are [1.0]" in record.error["message"]


def said(tmp_path):
    record, _ = check("cuda", tmp_path, "")
    assert record.error["type"] == UnusableError.__name__
    return record.error["message"]


def test_a_device_that_torch_does_not_open_says_why(tmp_path, monkeypatch):
    def fail(*_, **__):
        error = torch.AcceleratorError("CUDA error: system not yet initialized\nmore")
        error.error_code = 802
        raise error

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr("workers.probe.record.open_device", fail)
    monkeypatch.setattr(module, "driver_version", lambda: "580.95.05")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-7")
    words = said(tmp_path)
    assert "system not yet initialized" in words
    assert "more" not in words
    assert "GPU-7" in words
    assert "nvidia-fabricmanager" in words
    monkeypatch.setattr(module, "driver_version", lambda: "535.183.01")
    assert "535.183.01 is too old" in said(tmp_path)


@pytest.mark.parametrize(
    ("driver", "cuda", "wants"),
    [
        ("535.183.01", "13.0", ["580.65.06", "CUDA 12"]),
        ("575.57.08", "13.2", ["580.65.06", "CUDA 12"]),
        ("470.256.02", "12.6", ["525.60.13", "CUDA 11"]),
        ("390.157", "12.6", ["525.60.13"]),
        ("580.65.06", "13.0", []),
        ("580.126.09", "13.0", []),
        ("610.43.02", "12.8", []),
        ("535.183.01", "12.8", []),  # minor versions run on the driver of their major one
        ("", "13.0", []),
        ("535.183.01", "", []),
        ("535.183.01", "17.0", []),
    ],
)
def test_drivers_that_are_too_old_and_what_runs_on_them(driver, cuda, wants):
    words = why_too_old(driver, cuda, "torch 9.9")
    assert bool(words) == bool(wants)
    assert all(want in words for want in wants)
    if driver == "390.157":
        assert "install" not in words
    assert max(MINIMUM_DRIVER) == 13


def test_the_driver_tells_its_version(tmp_path):
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    for words, version in (
        ("Kernel Module  535.183.01  Sun May 12 19:39:15 UTC", "535.183.01"),
        ("Open Kernel Module for x86_64  580.95.05  Release Build ", "580.95.05"),
    ):
        file.write_text(f"NVRM version: NVIDIA UNIX {words}\nGCC version:  gcc version 13.3.0\n")
        assert driver_version(tmp_path) == version


def test_nvidia_smi_tells_it_where_the_kernel_does_not(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert driver_version(tmp_path) == ""
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 580.95.05\necho 580.95.05\n")
    smi.chmod(0o755)
    assert driver_version(tmp_path) == "580.95.05"


def test_a_small_dev_shm_is_named_where_an_all_reduce_fails(monkeypatch):
    device = SimpleNamespace(type="cuda", backend="nccl")
    error = RuntimeError("NCCL error in: x.cpp:1\nLast error:\nError: No space left on device (28)")
    for mib, is_named in ((64, True), (2048, False)):
        size = SimpleNamespace(total=mib * 2**20)
        monkeypatch.setattr(module, "_shm", lambda size=size: size)
        words = module._no_all_reduce(device, error)
        assert "No space left on device (28)" in words
        assert "x.cpp" not in words
        assert ("/dev/shm has 64 MiB" in words) is is_named
