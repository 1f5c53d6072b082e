"""The findings of one rank, written as one JSON file however the rank ends."""

import json
import os
import platform
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from workers.probe.device import Device, open_device
from workers.probe.errors import outcome_of
from workers.probe.tracker import Phase

FORMAT = 2
PACKAGES = ("torch", "transformers", "accelerate", "torchao", "peft", "bitsandbytes")


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
    whole_logits: bool | None = None
    loss_kernel: str = ""  # what computed a fused loss: chunked or liger
    recomputed_products: int | None = None
    host_bytes: int | None = None
    attention: dict[str, int] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    optimizer_steps: int = 0
    expected_optimizer_steps: int = 0
    moved_frozen: int | None = None  # frozen parameters that steps have changed
    versions: dict[str, str] = field(default_factory=dict)
    hardware: dict[str, Any] = field(default_factory=dict)
    emulation: dict[str, Any] | None = None
    readings: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
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
            self.outcome = outcome_of(error, phase)

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


@dataclass(slots=True, kw_only=True)
class Recording:
    rank: int  # its number among all ranks, from 0
    record: Record  # its findings
    phase: Phase = field(default_factory=Phase)  # its present phase, for the record of a failure
    device: Device | None = None  # its device; `None` until it is opened

    def open_device(
        self, device_type: str, *, limit_bytes: int | None = None, alone: bool = False
    ) -> Device:
        """Open this rank's device, and note what it is; arguments as of ``open_device``."""
        self.device = open_device(
            device_type,
            self.phase,
            local_rank=int(os.environ.get("LOCAL_RANK", self.rank)),
            limit_bytes=limit_bytes,
            alone=alone,
        )
        self.record.hardware = dict(self.device.hardware())
        return self.device


@contextmanager
def recording() -> Iterator[Recording]:
    """Under this, any error becomes the record's outcome; nothing is written yet."""
    rank = int(os.environ["RANK"])
    own = Recording(rank=rank, record=Record(rank=rank, versions=versions()))
    try:
        yield own
    except Exception as error:  # noqa: BLE001  (any error becomes the record's outcome)
        own.record.fail(error, own.phase.name, own.device)


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
