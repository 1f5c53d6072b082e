"""Functions that a user's training script imports, so that ``tuner suggest --script`` can probe it.

    from tuner.integrations import report_step

    for batch in batches:
        ...
        optimizer.step()
        report_step(loss=loss)

Outside of a probe nothing is done: the script runs as without it. In a probe (``TUNER_PROBE`` names
its folder then) steps are timed, memory is read, and the process ends after enough steps, with exit
code 0; nothing that follows is run, so no checkpoint is written. Imports the standard library only:
the script has imported torch, if it needs it.
"""

import atexit
import json
import math
import os
import platform
import resource
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from functools import wraps
from importlib import metadata
from pathlib import Path
from statistics import mode
from types import TracebackType
from typing import Any

__all__ = ["in_probe", "report_step"]


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
            "allocated_bytes": self._peak,
            "allocated_low_bytes": self._peak if self._lowest is None else self._lowest,
            "reserved_bytes": self._reserved,
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


FORMAT = 2
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


class Counts:
    """Backward passes and optimizer steps since :meth:`start`.

    A pass within another, as activation checkpointing makes them, is a part of that. Each optimizer
    is counted on its own, since a script may have several.
    """

    def __init__(self) -> None:
        self._depth = 0
        self.started = False  # whether anything is counted
        self.backwards = 0
        """Backward passes since the last call of :meth:`take_step`."""
        self._optimizers: Counter[int] = Counter()

    def start(self) -> None:
        """Count from here on, once torch is imported."""
        torch = torch_here()
        if torch is None or self.started:
            return
        self.started = True
        torch.autograd.backward = self._counted(torch.autograd.backward)
        optimizer = sys.modules["torch.optim.optimizer"]  # the package hides it
        optimizer.register_optimizer_step_post_hook(self._after_optimizer)

    @property
    def optimizer_steps(self) -> int:
        """Steps of the optimizer that stepped most often; 0 where none was seen."""
        return max(self._optimizers.values(), default=0)

    def take_step(self) -> int:
        """Backward passes of the step that has ended."""
        passes, self.backwards = self.backwards, 0
        return passes

    def _counted(self, backward: Any) -> Any:
        @wraps(backward)
        def run(*values: Any, **named: Any) -> Any:
            self.backwards += self._depth == 0
            self._depth += 1
            try:
                return backward(*values, **named)
            finally:
                self._depth -= 1

        return run

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._optimizers[id(optimizer)] += 1


# Environment variable with a probe's folder.
PROBE = "TUNER_PROBE"
# Environment variable with the number of the process that is the rank: what a rank starts, such as
# processes that load data, is none.
PROCESS = "TUNER_PROBE_PROCESS"
# What a probe's ranks are told, in the probe's folder.
PLAN = "probe.json"
# What the worker leaves there when it has the records of all ranks: a node may have only its own.
DONE = "done"
# What rank 0 tells the others, once it knows how long a step takes.
STEPS = "steps.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Instructions to a probe's ranks."""

    folder: Path
    accumulation: int
    """Micro-batches of an optimizer step that were asked for."""
    warmup_steps: int
    measured_steps: int
    """Steps that are timed, at most."""
    minimum_steps: int
    """Steps that are timed, at least."""
    time_budget_s: float

    def affordable(self, step_s: float) -> int:
        """Steps in all, when one takes so many seconds."""
        affordable = int(self.time_budget_s / max(step_s, 1e-9))
        timed = max(self.minimum_steps, min(self.measured_steps, affordable))
        return self.warmup_steps + timed


def seen_path(folder: Path, rank: int) -> Path:
    """The file that says that a rank's script has imported :mod:`tuner.integrations`."""
    return folder / f"seen-{rank:05d}"


# Seconds to wait for what other ranks write: who ends first closes their connections.
PEERS_S = 10.0
# Between two looks for it.
LOOK_S = 0.02
# Seconds between two looks whether the launcher is there.
PARENT_S = 1.0
# Exit code of a rank that lost its launcher, as of those of the probe program.
LAUNCHER_GONE = 111


def in_probe() -> bool:
    """Tells whether the script is being probed, so that it may leave out what no step needs."""
    return _probe is not None


def report_step(loss: Any = None, *, sequences: int | None = None) -> None:
    """Say that an optimizer step has ended; to be called once after each, on every rank.

    Args:
        loss: of the step, as a number or a tensor of one; it is compared between settings.
        sequences: that this rank has trained in the step, over all its micro-batches; if given, it
            is checked against what the settings say.
    """
    if _probe is not None:
        _probe.report(loss, sequences)


class ScriptProbe:
    """One rank of a script that is probed."""

    def __init__(self, plan: Plan, rank: int, world_size: int) -> None:
        self._plan, self._rank, self._world_size = plan, rank, world_size
        self._process = os.getpid()
        self._record = Record(rank=rank)
        self._memory, self._counts = ScriptMemory(), Counts()
        self._steps = self._counted = 0
        self._passes: list[int] = []
        self._sequences: list[int] = []
        self._until: int | None = None
        self._at = 0.0
        self._times: list[float] = []
        self._done = False

    def begin(self) -> None:
        """Say that the script knows of the probe, and leave a record however it ends."""
        seen_path(self._plan.folder, self._rank).touch()
        before = sys.excepthook

        def failed(
            kind: type[BaseException], error: BaseException, trace: TracebackType | None
        ) -> None:
            before(kind, error, trace)
            self._fail(error)

        sys.excepthook = failed
        atexit.register(self._end_before)
        threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()

    def report(self, loss: Any, sequences: int | None) -> None:
        """Implements :func:`report_step`."""
        now = self._now()
        self._steps += 1
        self._note(loss, sequences)
        self._memory.end_step(steady=self._steps > self._plan.warmup_steps)
        if self._steps > self._plan.warmup_steps:
            self._times.append(now - self._at)
        self._decide(now - self._at)
        if self._until is not None and self._steps >= self._until:
            self._end()
        self._at = self._now()

    def _note(self, loss: Any, sequences: int | None) -> None:
        if self._counts.started:
            self._passes.append(self._counts.take_step())
            self._counted += 1
        else:
            self._counts.start()  # what was before is not counted
        if loss is not None:
            # a tensor on a device is waited for, between two steps
            self._record.losses.append(float(loss.detach() if hasattr(loss, "detach") else loss))
        if sequences is not None:
            self._sequences.append(int(sequences))

    def _decide(self, step_s: float) -> None:
        """After how many steps all ranks end: rank 0 says it after the warm-up."""
        if self._until is not None or self._steps < self._plan.warmup_steps:
            return
        told = self._plan.folder / STEPS
        if self._rank == 0:
            self._until = self._plan.affordable(step_s)
            write_json(told, {"steps": self._until})
            return
        until = time.monotonic() + PEERS_S  # the first look waits, lest a rank run ahead
        while not told.exists():
            if self._steps > self._plan.warmup_steps or time.monotonic() > until:
                return
            time.sleep(LOOK_S)
        self._until = int(json.loads(told.read_text(encoding="utf-8"))["steps"])

    def _now(self) -> float:
        if (cuda := cuda_here()) is not None:
            cuda.synchronize()
        return time.perf_counter()

    def _end(self) -> None:
        """Leave the record, and end this process when all ranks have."""
        self._record.outcome = "ok"
        if not all(map(math.isfinite, self._record.losses)):
            self._record.outcome = "non_finite"
        self._write()
        until = time.monotonic() + PEERS_S
        while self._missing() and time.monotonic() < until:
            time.sleep(LOOK_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # what a script does at its end, such as a checkpoint, is not for a probe

    def _missing(self) -> bool:
        folder = self._plan.folder
        if (folder / DONE).exists():
            return False
        names = (f"rank-{rank:05d}.json" for rank in range(self._world_size))
        return not all((folder / name).exists() for name in names)

    def _write(self) -> None:
        self._done = True
        record = self._record
        record.memory = self._memory.values() if record.error is None else None
        record.step_times_s = {str(self._plan.accumulation): self._times} if self._times else {}
        # what most steps had: the last one of an epoch may be shorter
        record.tracked_accumulation = mode(self._passes) if self._passes else 0
        record.sequences = mode(self._sequences) if self._sequences else None
        if self._counts.optimizer_steps:
            record.optimizer_steps = self._counts.optimizer_steps
            record.expected_optimizer_steps = self._counted
        record.write(self._plan.folder)

    def _fail(self, error: BaseException) -> None:
        if self._done or os.getpid() != self._process:  # a fork of it has a copy of all this
            return
        if not isinstance(error, KeyboardInterrupt):
            self._record.fail(error)
            self._write()

    def _end_before(self) -> None:
        """The script has come to its own end, or has left by ``sys.exit``."""
        if self._done:
            return
        wanted = self._until or self._plan.warmup_steps + self._plan.minimum_steps
        self._fail(RuntimeError(f"the script ended after {self._steps} reported steps of {wanted}"))


def _end_with(parent: int) -> None:
    """End this process when the launcher is gone that started it, however that came."""
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    os._exit(LAUNCHER_GONE)


# What ``accelerate launch`` does not set for a single process.
_ALONE = {"RANK": "0", "WORLD_SIZE": "1"}


def _this_probe() -> ScriptProbe | None:
    """The probe that this process is a rank of, if it is one."""
    folder, mine = os.environ.get(PROBE), str(os.getpid())
    if folder is None or os.environ.setdefault(PROCESS, mine) != mine:
        return None
    rank, size = (int(os.environ.get(name, value)) for name, value in _ALONE.items())
    told = json.loads((Path(folder) / PLAN).read_text(encoding="utf-8"))
    probe = ScriptProbe(Plan(folder=Path(folder), **told), rank, size)
    probe.begin()
    return probe


_probe = _this_probe()
