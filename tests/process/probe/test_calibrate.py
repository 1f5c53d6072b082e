"""The program that times cases: its spec, its clock, and what there is time for."""

import inspect
import math
import time
from functools import partial

import torch

from workers.probe.calibrate import DTYPES, REPETITIONS, CalibrationSpec, time_cases, work_of
from workers.probe.device import CpuDevice
from workers.probe.tracker import Phase

COPY = {"kind": "copy", "dtype": "bf16", "elements": 64}
SPEC = {
    "format": 1, "device": "cpu", "world_size": 1, "gpus_per_node": 1,
    "cases": [COPY, {"kind": "matrix", "dtype": "fp32", "rows": 4, "width": 8}],
    "case_s": 0.001, "budget_s": 5.0,
}  # fmt: skip


def device(phase=None):
    return CpuDevice(phase or Phase(), local_rank=0, limit_bytes=None)


def test_every_case_is_timed_as_it_was_asked_for():
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


def test_layers_are_forward_and_backward_of_a_whole_model():
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
        model = inspect.getclosurevars(work).nonlocals["model"]
        seen = {}
        for name, parameter in model.named_parameters():
            parameter.register_hook(partial(seen.__setitem__, name))
        work()
    assert seen.keys() == {name for name, _ in model.named_parameters()}
    assert all(torch.isfinite(gradient).all() for gradient in seen.values())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_update_steps_every_parameter():
    case = {"kind": "update", "dtype": "bf16", "elements": 64, "tensors": 4}
    with torch.no_grad():
        work = work_of(case, torch.device("cpu"))
        work()
    optimizer = work.__self__
    assert len(optimizer.state) == 4
    assert all(p.dtype is DTYPES["bf16"] for p in optimizer.state)
