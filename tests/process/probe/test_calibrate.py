"""The program that times cases: its spec, its clock, and what there is time for."""

import inspect
import json
import math
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from workers.probe.calibrate import (
    DTYPES,
    REPETITIONS,
    CalibrationSpec,
    Stopwatch,
    read_calibration_spec,
    time_cases,
    work_of,
)
from workers.probe.device import CpuDevice
from workers.probe.tracker import Phase

COPY = {"kind": "copy", "dtype": "bf16", "elements": 64}
SPEC = {
    "format": 1, "device": "cpu", "world_size": 1, "gpus_per_node": 1,
    "cases": [COPY, {"kind": "matrix", "dtype": "fp32", "rows": 4, "width": 8}],
    "case_s": 0.001, "budget_s": 5.0,
}  # fmt: skip


def device(phase: Phase | None = None) -> CpuDevice:
    return CpuDevice(phase or Phase(), local_rank=0, limit_bytes=None)


def test_a_spec_is_read_strictly(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    for values in ({**SPEC, "format": 2}, {**SPEC, "more": 1}, {"format": 1}):
        path.write_text(json.dumps(values))
        with pytest.raises(ValueError, match=r"format|fields"):
            read_calibration_spec(path)
    path.write_text(json.dumps(SPEC))
    assert read_calibration_spec(path).cases[0] == COPY


def test_every_case_is_timed_as_it_was_asked_for() -> None:
    phase = Phase()
    readings = time_cases(CalibrationSpec(**SPEC), 0, device(phase), phase, until=math.inf)
    asked = [{k: v for k, v in row.items() if k != "seconds"} for row in readings]
    assert asked == SPEC["cases"]
    least, most = REPETITIONS
    assert all(least <= len(row["seconds"]) <= most for row in readings)
    assert all(seconds > 0 for row in readings for seconds in row["seconds"])
    assert phase.name.startswith("matrix")  # what a failure would be told with
    past = time.monotonic() - 1
    assert time_cases(CalibrationSpec(**SPEC), 0, device(phase), phase, until=past) == []


class Clocked(CpuDevice):
    """A device whose work is waited for."""

    waits = 0

    def synchronize(self) -> None:
        """Counted."""
        self.waits += 1


def test_quick_work_is_queued_before_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Clocked(Phase(), local_rank=0, limit_bytes=None)
    calls: list[int] = []
    clock = SimpleNamespace(perf_counter=lambda: 1e-5 * len(calls))
    monkeypatch.setattr("workers.probe.calibrate.time", clock)
    times = Stopwatch(place, 0.01).seconds_of(lambda: calls.append(1))
    batches = len(times) + 3  # two to warm up, one to see how long it takes
    assert place.waits == 2 * batches
    assert len(calls) > 10 * batches


def test_slow_work_is_repeated_no_more_than_there_is_time_for() -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        time.sleep(0.02)

    least, _ = REPETITIONS
    assert len(Stopwatch(device(), 0.01).seconds_of(work)) == least
    assert len(calls) == least + 1  # one to warm up


def test_layers_are_forward_and_backward_of_a_whole_model() -> None:
    config = {
        "model_type": "llama", "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 32,
        "max_position_embeddings": 8, "tie_word_embeddings": False,
    }  # fmt: skip
    case = {
        "kind": "layers", "dtype": "fp32", "layers": 2, "micro_batch_size": 1,
        "sequence_length": 8, "model": config,
    }  # fmt: skip
    with torch.enable_grad():
        work = work_of(case, torch.device("cpu"))
        model = inspect.getclosurevars(work).nonlocals["model"]  # type: ignore[arg-type]
        seen: dict[str, torch.Tensor] = {}
        for name, parameter in model.named_parameters():
            parameter.register_hook(partial(seen.__setitem__, name))
        work()
    assert seen.keys() == {name for name, _ in model.named_parameters()}
    assert all(torch.isfinite(gradient).all() for gradient in seen.values())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_update_steps_every_parameter() -> None:
    case = {"kind": "update", "dtype": "bf16", "elements": 64, "tensors": 4}
    with torch.no_grad():
        work = work_of(case, torch.device("cpu"))
        work()
    optimizer = work.__self__  # type: ignore[attr-defined]
    assert len(optimizer.state) == 4
    assert all(p.dtype is DTYPES["bf16"] for p in optimizer.state)
