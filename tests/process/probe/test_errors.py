"""The outcome follows from the kind of an exception, where it came from, and its codes."""

from dataclasses import fields

import pytest
import torch
import torch.distributed as dist

from tuner.integrations import FORMAT as SCRIPTS_FORMAT
from tuner.integrations import Record as ScriptsRecord
from workers.probe.errors import (
    NonFiniteLossError,
    OptimizerUnavailableError,
    cuda_code,
    outcome_of,
    refused_bytes,
)
from workers.probe.record import FORMAT, Record

NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:96, unhandled cuda error"
    " (run with NCCL_DEBUG=INFO for details), NCCL version 2.29.7\nncclUnhandledCudaError: Call to"
    " CUDA function failed.\nLast error:\n"
)
REFUSED = (
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1407,'
    " please report a bug to PyTorch. "
)


def nccl(words):
    return dist.DistBackendError(f"{NCCL}{words}")


def accelerator_error(code, text="unspecified launch failure"):
    error = torch.AcceleratorError(f"CUDA error: {text}")
    error.error_code = code
    return error


@pytest.mark.parametrize(
    ("error", "phase", "outcome"),
    [
        (ValueError("heads"), "build", "invalid"),
        (NotImplementedError("no plan"), "build", "invalid"),
        (OptimizerUnavailableError("no library"), "build", "invalid"),
        (OptimizerUnavailableError("no compiler"), "optimizer", "invalid"),
        (ValueError("a bug"), "forward", "crashed"),
        (RuntimeError("CUDA out of memory"), "forward", "crashed"),
        (RuntimeError("Cuda failure 719"), "forward", "crashed"),
        (torch.AcceleratorError("CUDA error"), "forward", "crashed"),  # without a code
        (MemoryError(), "build", "host_oom"),
        (NonFiniteLossError("nan"), "instrument", "non_finite"),
        (dist.DistBackendError("refused"), "time", "communication_error"),
    ],
)
def test_the_kind_of_an_error_decides(error, phase, outcome):
    record = Record(rank=0)
    record.fail(error, phase, None)
    assert (record.outcome, record.phase) == (outcome, phase)
    assert record.error["type"] == type(error).__name__
    assert cuda_code(error) is None


def test_host_memory_that_torch_does_not_get_is_out_of_memory():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)  # more than a process can address
    assert outcome_of(caught.value, "forward") == "host_oom"


def test_a_runtime_error_out_of_torch_distributed_is_one_of_communication():
    where = "/site-packages/torch/distributed/distributed_c10d.py"
    with pytest.raises(RuntimeError) as caught:
        exec(compile("raise RuntimeError('Connection closed by peer')", where, "exec"), {})
    assert outcome_of(caught.value, "backward") == "communication_error"


@pytest.mark.parametrize(
    ("code", "lost"),
    [
        *((code, True) for code in (46, 100, 214, 220, 226, 719, 999)),
        *((code, False) for code in (1, 2, 700, 710, 716)),
    ],
)
def test_a_lost_device_is_told_by_its_code_also_through_nccl(code, lost):
    outer = RuntimeError("the step failed")
    outer.__cause__ = accelerator_error(code)
    of_nccl = nccl(f"Cuda failure {code} 'whatever it is'")
    assert cuda_code(of_nccl) == code
    for error in (accelerator_error(code), outer, of_nccl):
        assert (outcome_of(error, "backward") == "device_lost") is lost


@pytest.mark.parametrize(
    ("error", "size"),
    [
        (RuntimeError(REFUSED), 0),
        (RuntimeError(REFUSED.replace("== r", "== DriverAPI::get()->nvmlInit_v2_()")), 0),
        (RuntimeError(REFUSED.replace("CachingAllocator", "Blas")), None),
        (accelerator_error(2, "out of memory"), 0),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`"), 0),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), 0),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"), 0),
        (nccl("Cuda failure 2 'out of memory'"), 0),
        (nccl("Failed to CUDA calloc 6291456 bytes"), 6291456),
        (nccl("Failed to CUDA calloc async 608 bytes"), 608),
        (nccl("Failed to CUDA host alloc 608 bytes"), None),
        (nccl("Cuda failure 719 'unspecified launch failure'"), None),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), None),
        (RuntimeError("Failed to CUDA calloc 608 bytes"), None),
        (ValueError("CUBLAS_STATUS_ALLOC_FAILED"), None),
        (accelerator_error(700), None),
    ],
)
def test_memory_that_libraries_did_not_get(error, size):
    assert refused_bytes(error) == size
    outer = RuntimeError("the step failed")
    outer.__cause__ = error
    assert refused_bytes(outer) == size


def test_a_script_s_rank_writes_the_same_form():
    """Neither may import the other; what reads their files is one."""
    own, script = ({field.name for field in fields(kind)} for kind in (Record, ScriptsRecord))
    tracked = {"attention", "host_bytes", "loss_kernel", "moved_frozen"}
    tracked |= {"recomputed_products", "whole_logits"}
    assert own - script == {*tracked, "readings"}  # those are of calibrations
    assert script - own == {"sequences"}  # what only a script can tell
    assert FORMAT == SCRIPTS_FORMAT
