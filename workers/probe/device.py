"""The two kinds of device that a probe runs on, behind one interface."""

import contextlib
import os
import resource
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from workers.probe import nvidia_smi
from workers.probe.errors import chain, refused_bytes
from workers.probe.tracker import INSTRUMENT, MemoryLimitError, Phase, StorageTracker

# Cycles of the device's clock, about 10 ms: more than the launches queued behind it take.
PAUSE_CYCLES = 20_000_000
# Variables that configure torch's caching allocator; where both are set the first counts
# (c10/core/AllocatorConfig.h, from torch 2.9 on).
ALLOCATOR_CONF = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
# Bytes that others held on each device before this process had a context there: afterwards that
# cannot be told apart from the context.
_HELD_BEFORE: dict[int, int] = {}


@dataclass(slots=True, kw_only=True)
class OutOfMemory:
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int


@dataclass(slots=True)
class Peaks:
    allocated: int = 0  # highest allocated peak of a step
    lowest_step: int | None = None
    """Lowest allocated peak of a step in steady state (from the second on)."""
    reserved: int = 0  # highest that the caching allocator held
    by_phase: Counter[str] = field(default_factory=Counter)  # highest allocated of each phase

    def take_step(self, peak: int, by_phase: Mapping[str, int]) -> None:
        if self.allocated:  # the first makes the optimizer's state, others find it
            self.lowest_step = peak if self.lowest_step is None else min(self.lowest_step, peak)
        self.allocated = max(self.allocated, peak)
        for name, value in by_phase.items():
            if name != INSTRUMENT:  # no part of a step
                self.by_phase[name] = max(self.by_phase[name], value)


class TensorPlace(Protocol):
    """The place of a stack's tensors: a device, or one without memory."""

    torch_device: torch.device  # the device of parameters
    is_fake: bool  # true if tensors have shapes and no values: nothing is filled or sent
    foreach: bool | None
    """The optimizers' ``foreach``; ``None`` leaves it to torch, which looks at the device."""

    def memory(self) -> contextlib.AbstractContextManager[object]:
        """Under this, new tensors are of this place."""


class _RealDevice:
    """A place for tensors with values."""

    is_fake = False
    foreach: bool | None = None

    def __init__(self) -> None:
        self.peaks = Peaks()

    def memory(self) -> contextlib.AbstractContextManager[object]:
        return contextlib.nullcontext()


class CpuDevice(_RealDevice):
    """A CPU process: memory is what the tracker counts, and its limit is the tracker's."""

    type = "cpu"
    backend = "gloo"

    def __init__(
        self, phase: Phase, *, local_rank: int, limit_bytes: int | None, alone: bool = False
    ) -> None:
        super().__init__()
        self.torch_device = torch.device("cpu")
        self.tracker = StorageTracker(phase, limit_bytes=limit_bytes, over_gloo=alone)

    def synchronize(self) -> None:
        """Nothing runs behind the caller's back on a CPU."""

    def mark(self) -> Any:
        return time.perf_counter()

    def seconds_between(self, first: Any, second: Any) -> float:
        return float(second - first)

    def seconds_of(self, work: Callable[[], object]) -> float:
        started = time.perf_counter()
        work()
        return time.perf_counter() - started

    def allocation_retries(self) -> int:
        """Allocations that succeeded only after cached memory was given back: no such on CPU."""
        return 0

    def start_steps(self) -> None:
        self.tracker.reset_peak()

    def enter_phase(self) -> None:
        self.tracker.note_phase()

    def end_step(self) -> None:
        self.peaks.take_step(self.tracker.peak_bytes, self.tracker.peak_by_phase)
        self.peaks.reserved = self.peaks.allocated
        self.tracker.reset_peak()

    def process_bytes(self) -> int:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

    def overhead_bytes(self) -> int:
        return 0

    def out_of_memory(self, error: BaseException) -> OutOfMemory | None:
        if not isinstance(error, MemoryLimitError):
            return None
        return OutOfMemory(
            requested_bytes=error.requested_bytes,
            allocated_bytes=error.allocated_bytes,
            reserved_bytes=error.allocated_bytes,
            limit_bytes=error.limit_bytes,
        )

    def give_back(self) -> int:
        """After a probe: bytes that are still in use; the peak of the process starts anew."""
        with contextlib.suppress(OSError):  # on Linux only; "5" is in proc_pid_clear_refs(5)
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        return self.tracker.current_bytes

    def hardware(self) -> Mapping[str, object]:
        return {"device": "cpu", "threads": torch.get_num_threads()}


class CudaDevice(_RealDevice):
    """A CUDA device: memory is the allocator's, and so is its limit."""

    type = "cuda"
    backend = "nccl"

    def __init__(
        self, phase: Phase, *, local_rank: int, limit_bytes: int | None, alone: bool = False
    ) -> None:
        super().__init__()
        self.torch_device = torch.device("cuda", local_rank)
        if local_rank not in _HELD_BEFORE:
            has_context: Any = getattr(torch._C, "_cuda_hasPrimaryContext")  # noqa: B009  (CUDA builds)
            used_mib = ""
            if local_rank < torch.cuda.device_count() and not has_context(local_rank):
                uuid = _uuid(local_rank)
                told = nvidia_smi.ask([uuid], "memory.used")
                used_mib = told.get(uuid, {}).get("memory.used", "")
            _HELD_BEFORE[local_rank] = int(used_mib) * 2**20 if used_mib.isdecimal() else 0
        self._held_by_others = _HELD_BEFORE[local_rank]
        torch.cuda.set_device(self.torch_device)  # makes the context
        self.uuid = _uuid(local_rank)
        self.tracker = StorageTracker(phase, count_storages=False)
        self._phase = phase
        self._step_by_phase: Counter[str] = Counter()
        self._last_phase = phase.name
        self._shortage: OutOfMemory | None = None
        total = torch.cuda.get_device_properties(self.torch_device).total_memory
        self._limit_bytes = total if limit_bytes is None else min(limit_bytes, total)
        # always: a probe before this one in the same process may have had another
        share = self._limit_bytes / total
        torch.cuda.set_per_process_memory_fraction(share, self.torch_device)
        # the caching allocator keeps peaks and counts for the process: they are another probe's
        torch.cuda.reset_accumulated_memory_stats(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        held = torch.cuda.memory_reserved(self.torch_device)
        self._used_at_start = max(0, self.process_bytes() - held)
        # the one structured source of what was asked for, and of what was allocated then: while
        # an error rises out of backward, tensors die; not in CPU builds
        observe: Any = getattr(torch._C, "_cuda_attach_out_of_memory_observer")  # noqa: B009
        with contextlib.suppress(RuntimeError):  # cudaMallocAsync has none
            observe(_while_alive(self._note_shortage))

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def mark(self) -> Any:
        """A moment on the current stream, for :meth:`seconds_between`."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds_between(self, first: Any, second: Any) -> float:
        """Seconds from one marked moment to another, once the device has passed both."""
        second.synchronize()
        return float(first.elapsed_time(second)) / 1e3

    def seconds_of(self, work: Callable[[], object]) -> float:
        """Seconds that ``work`` takes the device, without its launches."""
        # queued behind a pause: when it ends, all launches are there already
        torch.cuda._sleep(PAUSE_CYCLES)
        first = self.mark()
        work()
        return self.seconds_between(first, self.mark())

    def allocation_retries(self) -> int:
        return int(torch.cuda.memory_stats(self.torch_device).get("num_alloc_retries", 0))

    def start_steps(self) -> None:
        self.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        self._step_by_phase.clear()
        self.peaks.reserved = 0
        self._last_phase = self._phase.name

    def enter_phase(self) -> None:
        """Close the phase before: take its peak from the allocator."""
        peak = torch.cuda.max_memory_allocated(self.torch_device)
        name = self._last_phase
        self._step_by_phase[name] = max(self._step_by_phase[name], peak)
        held = torch.cuda.max_memory_reserved(self.torch_device)
        self.peaks.reserved = max(self.peaks.reserved, held)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        self._last_phase = self._phase.name

    def end_step(self) -> None:
        self.enter_phase()
        self._step_by_phase.pop(INSTRUMENT, None)
        self.peaks.take_step(max(self._step_by_phase.values()), self._step_by_phase)
        self._step_by_phase.clear()
        self.tracker.reset_peak()

    def process_bytes(self) -> int:
        """Bytes that the driver counts as used on the device: of this process, if alone there."""
        # by whomever: the driver tells a process no more
        free, total = torch.cuda.mem_get_info(self.torch_device)
        return total - free

    def overhead_bytes(self) -> int:
        """Used on the device outside the allocator: the context and communicator buffers.

        Without what others held there before this process first touched it, as far as
        ``nvidia-smi`` told. What others have taken since is in it.
        """
        held = torch.cuda.memory_reserved(self.torch_device) + self._held_by_others
        return max(0, self.process_bytes() - held)

    def out_of_memory(self, error: BaseException) -> OutOfMemory | None:
        if any(isinstance(each, torch.OutOfMemoryError) for each in chain(error)):
            requested = 0
            if self._shortage is not None:
                return self._shortage
        elif (refused := refused_bytes(error)) is None:
            return None
        else:
            requested = refused
            try:  # a lost device refuses memory too, and answers nothing else either
                torch.cuda.mem_get_info(self.torch_device)
            except RuntimeError:  # AcceleratorError is one
                return None
        # The observer was not told of it. Tensors have died since, while the error rose, so the
        # phase's peak is the nearest that is known of what was held then.
        return OutOfMemory(
            requested_bytes=requested,
            allocated_bytes=torch.cuda.max_memory_allocated(self.torch_device),
            reserved_bytes=torch.cuda.max_memory_reserved(self.torch_device),
            limit_bytes=self._limit_bytes,
        )

    def give_back(self) -> int:
        """After a probe: bytes that are still in use; what is only cached goes to the driver."""
        for name in ("_cuda_clearCublasWorkspaces", "_host_emptyCache"):  # not in CPU builds
            getattr(torch._C, name)()
        torch.cuda.empty_cache()
        return int(torch.cuda.memory_allocated(self.torch_device))

    def hardware(self) -> Mapping[str, object]:
        properties = torch.cuda.get_device_properties(self.torch_device)
        configured = next((text for n in ALLOCATOR_CONF if (text := os.environ.get(n))), "")
        return {
            "device": properties.name,
            "total_memory_bytes": properties.total_memory,
            # by all processes, when this probe began: its own context is in it, and nothing that
            # its allocator held
            "used_at_start_bytes": self._used_at_start,
            "held_by_others_bytes": self._held_by_others,
            "allocator": torch.cuda.get_allocator_backend(),
            **({"allocator_conf": configured} if configured else {}),
        }

    def _note_shortage(self, device: int, size: int, total: int, free: int) -> None:
        self._shortage = OutOfMemory(
            requested_bytes=size,
            allocated_bytes=torch.cuda.memory_allocated(self.torch_device),
            reserved_bytes=torch.cuda.memory_reserved(self.torch_device),
            limit_bytes=self._limit_bytes,
        )


Device = CpuDevice | CudaDevice


def open_device(
    kind: str, phase: Phase, *, local_rank: int, limit_bytes: int | None, alone: bool = False
) -> Device:
    """The device of a rank. Raises RuntimeError: there is no such CUDA device."""
    kinds: Mapping[str, type[Device]] = {"cpu": CpuDevice, "cuda": CudaDevice}
    return kinds[kind](phase, local_rank=local_rank, limit_bytes=limit_bytes, alone=alone)


def node_clocks() -> dict[str, dict[str, object]]:
    """The clocks of the GPUs of this node's ranks by UUID, and what slows them; see nvidia_smi."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", torch.cuda.device_count()))
    return nvidia_smi.clocks([_uuid(i) for i in range(min(ranks, torch.cuda.device_count()))])


def _uuid(index: int) -> str:
    return str(getattr(torch.cuda.get_device_properties(index), "uuid", ""))  # makes no context


def _while_alive(method: Callable[..., None]) -> Callable[..., None]:
    """``method`` for an observer that cannot be taken off again: it does not keep its object."""
    known = weakref.WeakMethod(method)

    def call(*values: int) -> None:
        if (alive := known()) is not None:
            alive(*values)

    return call
