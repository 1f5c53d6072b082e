"""The outcome that an exception stands for: of a device, of memory, of communication.

torch raises ``AcceleratorError`` with CUDA's code where a call of its own failed
(``c10/cuda/CUDAException.cpp``). What a library refuses is a ``RuntimeError``, and of NCCL a
``DistBackendError``, which tell it by names and numbers in their text alone.
"""

import re
import traceback
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist

# CUDA's code of an allocation that failed (``cudaErrorMemoryAllocation`` in driver_types.h).
NO_MEMORY = 2
# CUDA's codes of a device that is gone or defect (``cudaError_t`` in driver_types.h): devices
# unavailable, no device, ECC uncorrectable, NVLink uncorrectable, a contained error; and what
# processes are told when a device falls off the bus, launch failure and unknown. The last two can
# be a kernel's doing too, so the device is looked at before it is used again. An illegal address
# (700) is a kernel's doing alone.
DEVICE_LOST = frozenset({46, 100, 214, 220, 226, 719, 999})
# The status of a library that could not allocate (torch's ``CUDABlas.h``, cuDNN's
# ``cudnn_graph.h``).
_LIBRARY = re.compile(
    r"\b(?:CUBLAS|CUDNN|CUSOLVER|CUSPARSE)_STATUS_"
    r"(?:ALLOC_FAILED|INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED)\b"
)
# NCCL's words for a call of CUDA's that failed (its ``checks.h``).
_NCCL_CODE = re.compile(r"\bCuda failure (\d+)\b")
# NCCL's words for device memory that it did not get (its ``alloc.h``).
_NCCL_MEMORY = re.compile(r"\bFailed to CUDA [mc]alloc(?: async)? (\d+) bytes")
# torch's words for memory that it did not get where NVML does not answer: before it raises
# ``OutOfMemoryError`` it asks NVML what other processes hold (``reportProcessMemoryInfo`` in
# c10/cuda/CUDACachingAllocator.cpp), which a MIG slice, a vGPU or a container may refuse.
_NVML_REFUSED = re.compile(r"\bNVML_SUCCESS == .* INTERNAL ASSERT FAILED at .*CUDACachingAllocator")
# torch's words for host memory that it did not get, in a plain ``RuntimeError``: the kernel gives
# no more, or the process is at its limit of data (c10/core/impl/alloc_cpu.cpp).
_HOST_ALLOCATOR = "DefaultCPUAllocator: "


class NonFiniteLossError(ArithmeticError):
    """The loss is not a finite number."""


class OptimizerUnavailableError(ImportError):
    """The library of an optional optimizer is missing, or cannot run here."""


class AdapterUnavailableError(ImportError):
    """The library of adapters is missing."""


class AttentionUnavailableError(ImportError):
    """The library of a kernel of attention is missing, or cannot run here."""


# Libraries that a workload asks for and this machine has not: the stack refuses the configuration.
_UNAVAILABLE = (OptimizerUnavailableError, AdapterUnavailableError, AttentionUnavailableError)


def outcome_of(error: BaseException, phase: str) -> str:
    """The record's outcome for any error but a device's out of memory."""
    if isinstance(error, MemoryError) or _HOST_ALLOCATOR in str(error):
        return "host_oom"
    if isinstance(error, NonFiniteLossError):
        return "non_finite"
    # before NCCL's errors: a lost device fails collectives too
    if any(cuda_code(each) in DEVICE_LOST for each in chain(error)):
        return "device_lost"
    # gloo raises plain RuntimeErrors: the innermost Python frame tells that it was a collective
    frames = traceback.extract_tb(error.__traceback__)
    inner = Path(frames[-1].filename).parts[-2:] if frames else ()
    if isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError)
        and inner
        in (("distributed", "distributed_c10d.py"), ("distributed", "_functional_collectives.py"))
    ):
        return "communication_error"
    if isinstance(error, _UNAVAILABLE):
        return "invalid"
    if phase == "build" and isinstance(error, ValueError | NotImplementedError):
        return "invalid"
    return "crashed"


def chain(error: BaseException) -> Iterator[BaseException]:
    known: BaseException | None = error
    while known is not None:
        yield known
        known = known.__cause__


def cuda_code(error: BaseException) -> int | None:
    """CUDA's code of an error; ``None`` where it is not told."""
    if isinstance(error, torch.AcceleratorError):
        code: int | None = getattr(error, "error_code", None)
        return code
    if isinstance(error, dist.DistBackendError) and (told := _NCCL_CODE.search(str(error))):
        return int(told[1])
    return None


def refused_bytes(error: BaseException) -> int | None:
    """Bytes that were asked for, when there were not so many and torch's allocator does not say so.

    Returns:
        0 where it is not told how many; ``None`` if ``error`` is of another kind.
    """
    for each in chain(error):
        if isinstance(each, dist.DistBackendError) and (told := _NCCL_MEMORY.search(str(each))):
            return int(told[1])
        if cuda_code(each) == NO_MEMORY:
            return 0
        if isinstance(each, RuntimeError) and any(
            words.search(str(each)) for words in (_LIBRARY, _NVML_REFUSED)
        ):
            return 0
    return None
