"""CUDA's codes and libraries' words for memory, in the forms that torch raises them in."""

import pytest
import torch
import torch.distributed as dist

from workers.probe.cuda_errors import cuda_code, is_device_lost, refused_bytes

NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:96, unhandled cuda error"
    " (run with NCCL_DEBUG=INFO for details), NCCL version 2.29.7\nncclUnhandledCudaError: Call to"
    " CUDA function failed.\nLast error:\n"
)


def accelerator_error(code: int, text: str = "unspecified launch failure") -> Exception:
    error = torch.AcceleratorError(f"CUDA error: {text}")
    error.error_code = code
    return error


@pytest.mark.parametrize(
    ("code", "lost"),
    [
        *((code, True) for code in (46, 100, 214, 220, 226, 719, 999)),
        *((code, False) for code in (1, 2, 700, 710, 716)),
    ],
)
def test_a_lost_device_is_told_by_its_code(code: int, lost: bool) -> None:
    assert is_device_lost(accelerator_error(code)) is lost
    nccl = dist.DistBackendError(f"{NCCL}Cuda failure {code} 'whatever it is'")
    assert cuda_code(nccl) == code
    assert is_device_lost(nccl) is lost


def test_an_error_without_a_code_has_none() -> None:
    for error in (torch.AcceleratorError("CUDA error"), RuntimeError("Cuda failure 719")):
        assert cuda_code(error) is None
        assert not is_device_lost(error)


REFUSED = (
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/pytorch/c10/cuda/CUDACachingAllocator.cpp":1407,'
    " please report a bug to PyTorch. "
)


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
        (dist.DistBackendError(f"{NCCL}Cuda failure 2 'out of memory'"), 0),
        (dist.DistBackendError(f"{NCCL}Failed to CUDA calloc 6291456 bytes"), 6291456),
        (dist.DistBackendError(f"{NCCL}Failed to CUDA calloc async 608 bytes"), 608),
        (dist.DistBackendError(f"{NCCL}Failed to CUDA host alloc 608 bytes"), None),
        (dist.DistBackendError(f"{NCCL}Cuda failure 719 'unspecified launch failure'"), None),
        (RuntimeError("CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"), None),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED"), None),
        (RuntimeError("Failed to CUDA calloc 608 bytes"), None),
        (ValueError("CUBLAS_STATUS_ALLOC_FAILED"), None),
        (accelerator_error(700), None),
    ],
)
def test_memory_that_libraries_did_not_get(error: Exception, size: int | None) -> None:
    assert refused_bytes(error) == size


def test_what_an_error_was_raised_from_counts() -> None:
    outer = RuntimeError("the step failed")
    outer.__cause__ = accelerator_error(719)
    assert is_device_lost(outer)
    outer.__cause__ = RuntimeError("CUBLAS_STATUS_ALLOC_FAILED")
    assert refused_bytes(outer) == 0
