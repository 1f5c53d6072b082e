"""What one rank found, written as one JSON file, whatever happens to it."""

import json
import os
import platform
import time
import traceback
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch.distributed as dist

from workers.probe.cuda_errors import is_device_lost
from workers.probe.device import Device
from workers.probe.optimizers import OptimizerUnavailableError

FORMAT = 1
PACKAGES = ("torch", "transformers", "accelerate", "torchao")


class NonFiniteLossError(ArithmeticError):
    """The loss is not a finite number."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One rank's findings so far; :meth:`write` makes the file."""

    rank: int
    outcome: str = "crashed"
    phase: str = "start"
    error: dict[str, str] | None = None
    oom: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    step_times_s: dict[str, list[float]] = field(default_factory=dict)
    collectives: list[dict[str, Any]] = field(default_factory=list)
    tracked_accumulation: int = 0
    reducing_micro_batches: int = 0
    recomputed_layers: int | None = None
    attention: dict[str, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    optimizer_steps: int = 0
    expected_optimizer_steps: int = 0
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    emulation: dict[str, Any] | None = None
    readings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        """Whether the rank did what it was asked to, and may be asked again."""
        return self.outcome in ("ok", "stopped_early")

    def fail(self, error: BaseException, phase: str, device: Device | None) -> None:
        """Set the outcome from the kind of ``error``, and the device's and libraries' own codes."""
        self.phase = phase
        self.error = {
            "type": type(error).__name__,
            "message": str(error)[:2000],
            "traceback": "".join(traceback.format_exception(error))[-8000:],
        }
        shortage = device.out_of_memory(error) if device is not None else None
        if shortage is not None:
            self.outcome = "oom"
            self.oom = {"phase": phase, **asdict(shortage)}
        else:
            self.outcome = _outcome_of(error, phase)

    def write(self, folder: Path) -> None:
        """Write ``rank-NNNNN.json`` at once or not at all."""
        values = {"format": FORMAT, **asdict(self), "ended_at": time.time()}
        path = folder / f"rank-{self.rank:05d}.json"
        partial = path.with_suffix(".partial")
        with partial.open("w", encoding="utf-8") as file:
            json.dump(values, file)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def _outcome_of(error: BaseException, phase: str) -> str:
    if isinstance(error, MemoryError):
        return "host_oom"
    if isinstance(error, NonFiniteLossError):
        return "non_finite"
    if is_device_lost(error):
        return "device_lost"
    if isinstance(error, dist.DistError) or _raised_by_a_collective(error):
        return "communication_error"
    if isinstance(error, OptimizerUnavailableError):
        return "invalid"
    if phase == "build" and isinstance(error, ValueError | NotImplementedError):
        return "invalid"
    return "crashed"


def _raised_by_a_collective(error: BaseException) -> bool:
    """Whether the innermost Python frame is torch.distributed's: gloo raises RuntimeError."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = Path(frames[-1].filename).parts if frames else ()
    return isinstance(error, RuntimeError) and inner[-2:] in (
        ("distributed", "distributed_c10d.py"),
        ("distributed", "_functional_collectives.py"),
    )


def versions() -> dict[str, str]:
    """Versions of what a probe's result depends on."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
