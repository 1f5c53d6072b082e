"""A script's rank's record: the file that the worker reads, in the probe program's form."""

import json
import os
import platform
import sys
import time
import traceback
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from tuner.integrations.memory import hardware, shortage
from tuner.integrations.torch_here import torch_here

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
    if any(isinstance(each, MemoryError) for each in _chain(error)):
        return "host_oom"
    distributed = sys.modules.get("torch.distributed")
    if isinstance(error, getattr(distributed, "DistError", ())) or _is_a_collectives(error):
        return "communication_error"
    return "crashed"


def _is_a_collectives(error: BaseException) -> bool:
    """Whether it came out of torch.distributed's own code: gloo raises ``RuntimeError``."""
    frames = traceback.extract_tb(error.__traceback__)
    inner = Path(frames[-1].filename).parts if frames else ()
    return isinstance(error, RuntimeError) and "distributed" in inner[-3:-1]


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
