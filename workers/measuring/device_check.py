"""What ranks found when they looked at their devices, before probes or after one was lost."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.launchers.base import Ended, Why
from workers.launchers.logs import log_tail
from workers.measuring.files import log_path, record_path

CHECK_DEADLINE_S = 180.0
"""For importing torch, one small product and a collective, which has 60 s of its own; a device that
hangs is not one to go on with."""
HOLDS_S = 600.0
"""For so long devices that were found to be well are not looked at again: of one asking after the
other the first alone pays for it."""


@dataclass(slots=True, kw_only=True)
class CheckedDevices:
    """Remembers which devices were found to be well, and when."""

    _at: dict[object, float] = field(default_factory=dict)

    def are_well(self, devices: object) -> bool:
        """Tells whether they were so a short while ago."""
        at = self._at.get(devices)
        return at is not None and time.monotonic() - at < HOLDS_S

    def note(self, devices: object) -> None:
        """They are well now."""
        self._at[devices] = time.monotonic()


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What all ranks found together."""

    why_unusable: str = ""
    """The reason why no probe can be run; empty if there is none."""
    found: tuple[Mapping[str, Any], ...] = ()
    """By rank, what its record tells of its device; empty for a rank that left none."""


def look_of(order: Path, ranks: int, ended: Ended | None, folder: Path) -> Look:
    """What ranks found.

    Args:
        order: the folder of the check, with the records.
        ranks: how many there are.
        ended: how they ended; ``None`` if they stay.
        folder: of the ranks, with their logs.
    """
    records = [_record(record_path(order, rank)) for rank in range(ranks)]
    return Look(
        why_unusable=_why(records, ended, folder),
        found=tuple(record.get("hardware", {}) for record in records),
    )


def _why(records: Sequence[Mapping[str, Any]], ended: Ended | None, folder: Path) -> str:
    # a rank whose own device is not well keeps the others from meeting it
    bad = sorted(
        (one["phase"] == "all-reduce", one["ended_at"], rank)
        for rank, one in enumerate(records)
        if one and one["outcome"] != "ok"
    )
    several = len(records) > 1
    for _, _, rank in bad[:1]:
        error = records[rank]["error"]
        words = " ".join(error["message"].split())[:600]
        own = words if error["type"] == "UnusableError" else f"{error['type']}: {words}"
        return f"{own} (rank {rank})" if several and len(bad) < len(records) else own
    if ended is None:
        return ""
    for end in sorted(ended.ranks, key=lambda end: (end.stopped, end.rank)):
        if records[end.rank]:
            continue
        if end.stopped:
            if ended.why is Why.DEADLINE:
                return f"rank {end.rank} did not answer within {CHECK_DEADLINE_S:.0f} s"
            return ended.detail or f"rank {end.rank} was ended"
        lines = log_tail(log_path(folder, end.rank)).strip().splitlines()
        return f"rank {end.rank}: {lines[-1][:300] if lines else f'exit code {end.code}'}"
    return ""


def _record(path: Path) -> Mapping[str, Any]:
    """A rank's record; empty where it cannot be read."""
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return record if {"outcome", "phase", "ended_at", "hardware"} <= record.keys() else {}
    except (OSError, ValueError, AttributeError):
        return {}
