"""The outcome follows from the kind of an exception, where it came from, and its codes."""

from dataclasses import fields

import pytest
import torch
import torch.distributed as dist

from tuner.integrations.record import FORMAT as SCRIPTS_FORMAT
from tuner.integrations.record import Record as ScriptsRecord
from workers.probe.optimizers import OptimizerUnavailableError
from workers.probe.record import FORMAT, NonFiniteLossError, Record


@pytest.mark.parametrize(
    ("error", "phase", "outcome"),
    [
        (ValueError("heads"), "build", "invalid"),
        (NotImplementedError("no plan"), "build", "invalid"),
        (OptimizerUnavailableError("no library"), "build", "invalid"),
        (OptimizerUnavailableError("no compiler"), "optimizer", "invalid"),
        (ValueError("a bug"), "forward", "crashed"),
        (RuntimeError("CUDA out of memory"), "forward", "crashed"),
        (MemoryError(), "build", "host_oom"),
        (NonFiniteLossError("nan"), "instrument", "non_finite"),
        (dist.DistBackendError("refused"), "time", "communication_error"),
    ],
)
def test_the_kind_of_an_error_decides(error: Exception, phase: str, outcome: str) -> None:
    record = Record(rank=0)
    record.fail(error, phase, None)
    assert (record.outcome, record.phase) == (outcome, phase)
    assert record.error is not None
    assert record.error["type"] == type(error).__name__


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(214, "device_lost"), (719, "device_lost"), (999, "device_lost"), (700, "crashed")],
)
def test_a_lost_device_is_told_by_its_error_code(code: int, outcome: str) -> None:
    error = torch.AcceleratorError("uncorrectable ECC error")
    error.error_code = code
    record = Record(rank=0)
    record.fail(error, "backward", None)
    assert record.outcome == outcome


def test_a_device_that_nccl_finds_lost_is_no_failure_of_communication() -> None:
    record = Record(rank=0)
    lost = "unhandled cuda error\nLast error:\nCuda failure 719 'unspecified launch failure'"
    record.fail(dist.DistBackendError(lost), "backward", None)
    assert record.outcome == "device_lost"


def test_a_script_s_rank_writes_the_same_form() -> None:
    """Neither may import the other; what reads their files is one."""
    own, script = ({field.name for field in fields(kind)} for kind in (Record, ScriptsRecord))
    assert own - script == {"attention", "readings"}  # what a tracker sees; of calibrations
    assert script - own == {"sequences"}  # what only a script can tell
    assert FORMAT == SCRIPTS_FORMAT
