"""A device that computes, and one that does not."""

import json
from pathlib import Path

import pytest
import torch

from workers.probe.check import check_device


@pytest.fixture(autouse=True)
def rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")


def written(folder: Path) -> tuple[str, str]:
    record = json.loads((folder / "rank-00000.json").read_text())
    return record["outcome"], record["phase"]


def test_a_device_that_computes_is_well(tmp_path: Path) -> None:
    assert check_device("cpu", tmp_path).outcome == "ok"
    assert written(tmp_path)[0] == "ok"


def test_a_device_that_fails_says_how(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        error = torch.AcceleratorError("CUDA error: unknown error")
        error.error_code = 999
        raise error

    monkeypatch.setattr(torch.Tensor, "__matmul__", fail)
    assert check_device("cpu", tmp_path).outcome == "device_lost"
    assert written(tmp_path) == ("device_lost", "check")


def test_a_device_that_computes_something_else_is_not_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda one, _: one)
    record = check_device("cpu", tmp_path)
    assert record.outcome == "crashed"
    assert record.error is not None
    assert "sums of 256 ones are [1.0]" in record.error["message"]
