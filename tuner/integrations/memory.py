"""Memory that a script's process needs: of its CUDA device, or its resident set."""

import resource
import sys
from pathlib import Path
from typing import Any

from tuner.integrations.torch_here import cuda_here

STATUS = Path("/proc/self/status")


class Memory:
    """Peaks of the steps so far, in bytes.

    On a CUDA device they are the caching allocator's; elsewhere the peak resident set of the
    process, which holds its libraries and its data too.
    """

    def __init__(self) -> None:
        self._peak = self._reserved = 0
        self._lowest: int | None = None

    def end_step(self, *, steady: bool) -> None:
        """Take the peak of the step that has ended; ``steady``: after the warm-up."""
        cuda = cuda_here()
        if cuda is None:
            peak = held = resident_bytes()
        else:
            peak, held = cuda.max_memory_allocated(), cuda.max_memory_reserved()
            cuda.reset_peak_memory_stats()
        self._peak, self._reserved = max(self._peak, peak), max(self._reserved, held)
        if steady:
            self._lowest = peak if self._lowest is None else min(self._lowest, peak)

    def values(self) -> dict[str, Any]:
        """As a record of the probe program has them."""
        device, overhead = _device_bytes()
        return {
            "peak_allocated_bytes": self._peak,
            "low_peak_bytes": self._peak if self._lowest is None else self._lowest,
            "peak_reserved_bytes": self._reserved,
            "device_bytes": device,
            "overhead_bytes": overhead,
            "allocation_retries": _retries(),
            "by_phase": {},
            "by_category": {},
        }


def hardware() -> dict[str, Any]:
    """What the process computes on, and what its memory is."""
    cuda = cuda_here()
    if cuda is None:
        return {"device": "cpu", "memory": "peak resident set of the process"}
    properties = cuda.get_device_properties(cuda.current_device())
    return {
        "device": properties.name,
        "total_memory_bytes": properties.total_memory,
        "memory": "peak of torch's caching allocator",
    }


def shortage() -> dict[str, int]:
    """What is known when an allocation on the device has failed."""
    cuda = cuda_here()
    if cuda is None:
        held = resident_bytes()
        return _shortage(held, held, held)
    total = cuda.get_device_properties(cuda.current_device()).total_memory
    # tensors die while the error rises, and the peak stays
    return _shortage(cuda.max_memory_allocated(), cuda.max_memory_reserved(), total)


def _shortage(allocated: int, reserved: int, limit: int) -> dict[str, int]:
    """The request is not told by the error but in words: at least a byte more was wanted."""
    return {
        "requested_bytes": 1,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        "limit_bytes": limit,
    }


def resident_bytes() -> int:
    """Peak resident set of this process. That of ``getrusage`` begins with its parent's."""
    try:
        for line in STATUS.read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _device_bytes() -> tuple[int, int]:
    """What the device's own tool shows, and what of it is outside of the allocator."""
    cuda = cuda_here()
    if cuda is None:
        return resident_bytes(), 0
    free, total = cuda.mem_get_info()
    return total - free, max(0, total - free - cuda.memory_reserved())


def _retries() -> int:
    cuda = cuda_here()
    return 0 if cuda is None else int(cuda.memory_stats().get("num_alloc_retries", 0))
