"""torch, if the script has imported it: nothing here imports it."""

import json
import os
import platform
import resource
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any


def torch_here() -> Any:
    """The module; ``None`` where it is not imported, or not to its end."""
    torch = sys.modules.get("torch")
    return torch if hasattr(torch, "autograd") and hasattr(torch, "optim") else None


def cuda_here() -> Any:
    """``torch.cuda``, if the script computes on it; else ``None``."""
    torch = torch_here()
    if torch is None or not torch.cuda.is_initialized():
        return None
    return torch.cuda


STATUS = Path("/proc/self/status")


class ScriptMemory:
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
        """Returns the values as a record of the probe program has them."""
        cuda = cuda_here()
        if cuda is None:
            device, overhead, retries = resident_bytes(), 0, 0
        else:  # what the device's own tool shows, and what of it is outside of the allocator
            free, total = cuda.mem_get_info()
            device, overhead = total - free, max(0, total - free - cuda.memory_reserved())
            retries = int(cuda.memory_stats().get("num_alloc_retries", 0))
        return {
            "peak_allocated_bytes": self._peak,
            "low_peak_bytes": self._peak if self._lowest is None else self._lowest,
            "peak_reserved_bytes": self._reserved,
            "device_bytes": device,
            "overhead_bytes": overhead,
            "allocation_retries": retries,
            "by_phase": {},
            "by_category": {},
        }


def hardware() -> dict[str, Any]:
    """Describes the device that the process computes on, and its memory."""
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
    """Describes an allocation on the device that has failed."""
    cuda = cuda_here()
    if cuda is None:
        allocated = reserved = limit = resident_bytes()
    else:  # tensors die while the error rises, and the peak stays
        allocated, reserved = cuda.max_memory_allocated(), cuda.max_memory_reserved()
        limit = cuda.get_device_properties(cuda.current_device()).total_memory
    return {
        "requested_bytes": 1,  # told by the error in words alone: at least a byte more was wanted
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


FORMAT = 1
PACKAGES = ("torch", "transformers", "accelerate")


@dataclass(slots=True, kw_only=True)
class Record:
    """One rank's findings; :meth:`write` makes the file."""

    rank: int
    outcome: str = "crashed"
    phase: str = "step"
    error: dict[str, str] | None = None
    oom: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    step_times_s: dict[str, list[float]] = field(default_factory=dict)
    collectives: list[dict[str, Any]] = field(default_factory=list)
    tracked_accumulation: int = 0
    reducing_micro_batches: int = 0
    recomputed_layers: int | None = None
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    optimizer_steps: int = 0
    expected_optimizer_steps: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    emulation: dict[str, Any] | None = None
    sequences: int | None = None

    def fail(self, error: BaseException) -> None:
        """Set the outcome from the kind of ``error``."""
        self.error = {
            "type": type(error).__name__,
            "message": str(error)[:2000],
            "traceback": "".join(traceback.format_exception(error))[-8000:],
        }
        self.outcome = _outcome_of(error)
        if self.outcome == "oom":
            self.oom = {"phase": self.phase, **shortage()}

    def write(self, folder: Path) -> None:
        """Write ``rank-NNNNN.json`` at once or not at all."""
        self.versions, self.hardware = _versions(), hardware()
        values = {"format": FORMAT, **asdict(self), "ended_at": time.time()}
        write_json(folder / f"rank-{self.rank:05d}.json", values)


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write JSON at once or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(values, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _outcome_of(error: BaseException) -> str:
    torch = torch_here()
    if torch is not None and any(isinstance(e, torch.OutOfMemoryError) for e in _chain(error)):
        return "oom"
    # torch's own words: it raises a plain ``RuntimeError`` where the host gives no memory
    if any(isinstance(e, MemoryError) or "DefaultCPUAllocator: " in str(e) for e in _chain(error)):
        return "host_oom"
    distributed = sys.modules.get("torch.distributed")
    # out of torch.distributed's own code: gloo raises ``RuntimeError``
    frames = traceback.extract_tb(error.__traceback__)
    inner = Path(frames[-1].filename).parts if frames else ()
    from_collective = isinstance(error, RuntimeError) and "distributed" in inner[-3:-1]
    if isinstance(error, getattr(distributed, "DistError", ())) or from_collective:
        return "communication_error"
    return "crashed"


def _chain(error: BaseException) -> list[BaseException]:
    """An error, and what it was raised from."""
    found: list[BaseException] = []
    known: BaseException | None = error
    while known is not None and known not in found:
        found.append(known)
        known = known.__cause__ or known.__context__
    return found


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
