"""What the ranks of a probe wrote, read back as typed values that may be trusted."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tuner.measurement import RAN, Collective, Outcome
from workers.measuring.files import record_path

FORMAT = 1
LARGEST_BYTES = 64 * 2**20
"""Of a record; a whole one has some kilobytes."""
CLOCKS = ("sm_mhz", "power_w", "temperature_c")
"""Figures of ``clocks`` in a record's ``hardware``, each where ``nvidia-smi`` tells it."""
REPORTED = frozenset(
    {
        *RAN,
        Outcome.OOM,
        Outcome.HOST_OOM,
        Outcome.DEVICE_LOST,
        Outcome.COMMUNICATION_ERROR,
        Outcome.NON_FINITE,
        Outcome.INVALID,
        Outcome.CRASHED,
    }
)
"""Outcomes that a rank can know of itself; the others are seen from outside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One rank's memory, as in :class:`tuner.measurement.Memory`."""

    peak_allocated_bytes: int
    low_peak_bytes: int
    peak_reserved_bytes: int
    device_bytes: int
    overhead_bytes: int
    by_phase: Mapping[str, int]
    by_category: Mapping[str, int]
    allocation_retries: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShortage:
    """Where one rank ran out of memory, as in :class:`tuner.measurement.OutOfMemory`."""

    phase: str
    requested_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEmulation:
    """What a rank without peers noted, by accumulation count that was run."""

    phase_times_s: Mapping[int, tuple[Mapping[str, float], ...]]
    """Seconds of each phase in each timed step."""
    copies_s: Mapping[int, Mapping[str, float]]
    """Seconds of them, by phase, that went into copies in the place of what would be received."""
    collectives: Mapping[int, tuple[Collective, ...]]
    """Of one step."""
    copies_left_out: str = ""
    """Why some of these copies could not be timed, and are in none of these seconds; or empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank's record."""

    rank: int
    """Which."""
    outcome: Outcome
    """How it went on this rank."""
    phase: str
    """What the rank was doing last."""
    error: str
    """``Type: message``, empty where there was none."""
    ended_at: float
    """Unix seconds when the record was written."""
    oom: RankShortage | None = None
    """Set when the outcome is oom."""
    memory: RankMemory | None = None
    """Set when its steps ran."""
    step_times_s: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Seconds of each timed step by accumulation count."""
    collectives: tuple[Collective, ...] = ()
    """Of one optimizer step."""
    tracked_accumulation: int = 0
    """Micro-batches in that step."""
    reducing_micro_batches: int = 0
    """Micro-batches of that step that reduced gradients."""
    recomputed_layers: int | None = None
    """Decoder layers that backward of that step computed again; ``None`` where not counted."""
    attention: Mapping[str, int] = field(default_factory=dict)
    """Layers of one forward pass by the kernel that torch computed their attention with."""
    losses: tuple[float, ...] = ()
    """One per optimizer step."""
    gradient_norms: tuple[float, ...] = ()
    """One per tracked step."""
    optimizer_steps: int = 0
    """Times that the optimizer stepped."""
    expected_optimizer_steps: int = 0
    """Times that it had to."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of the packages in the rank."""
    hardware: Mapping[str, Any] = field(default_factory=dict)
    """What the rank ran on."""
    emulation: RankEmulation | None = None
    """Of a rank without peers."""
    sequences: int | None = None
    """That a user's script trained in one optimizer step, where it told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that is missing or cannot be used."""

    why: str
    """What is wrong with it, to follow "the record"."""
    missing: bool = False
    """Whether there is none at all."""


def read_records(directory: Path, ranks: int) -> tuple[RankRecord | BadRecord, ...]:
    """The record of every rank, by rank."""
    return tuple(_read(record_path(directory, rank), rank) for rank in range(ranks))


def parse_record(text: str, rank: int) -> RankRecord | BadRecord:
    """One rank's record from its JSON."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return BadRecord(why="is not JSON, or cut short")
    try:
        record = _record(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        return BadRecord(why=f"has not the expected form ({type(error).__name__}: {error})")
    if record.rank != rank:
        return BadRecord(why=f"is rank {record.rank}'s")
    return record


def _read(path: Path, rank: int) -> RankRecord | BadRecord:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return BadRecord(why=f"is larger than {LARGEST_BYTES >> 20} MiB")
        return parse_record(path.read_text(encoding="utf-8"), rank)
    except FileNotFoundError:
        return BadRecord(why="is missing", missing=True)
    except (OSError, UnicodeDecodeError) as error:
        return BadRecord(why=f"cannot be read ({error})")


def _record(values: Mapping[str, Any]) -> RankRecord:
    if values["format"] != FORMAT:
        raise ValueError(f"format {values['format']}")
    outcome = Outcome(values["outcome"])
    if outcome not in REPORTED:
        raise ValueError(f"outcome {outcome}")
    shortage, memory = values["oom"], values["memory"]
    if (outcome is Outcome.OOM and shortage is None) or (outcome in RAN and memory is None):
        raise ValueError(f"outcome {outcome} without its bytes")
    return RankRecord(
        rank=_whole(values["rank"]),
        outcome=outcome,
        phase=str(values["phase"]),
        error=_error(values["error"]),
        ended_at=float(values["ended_at"]),
        oom=shortage and _shortage(shortage),
        memory=memory and _memory(memory),
        step_times_s={_count(n): _seconds(s) for n, s in values["step_times_s"].items()},
        collectives=tuple(_collective(c) for c in values["collectives"]),
        tracked_accumulation=_whole(values["tracked_accumulation"]),
        reducing_micro_batches=_whole(values["reducing_micro_batches"]),
        recomputed_layers=None
        if (again := values.get("recomputed_layers")) is None
        else _whole(again),
        attention={str(name): _whole(n) for name, n in values.get("attention", {}).items()},
        losses=_numbers(values["losses"]),
        gradient_norms=_numbers(values["gradient_norms"]),
        optimizer_steps=_whole(values["optimizer_steps"]),
        expected_optimizer_steps=_whole(values["expected_optimizer_steps"]),
        versions={str(name): str(version) for name, version in values["versions"].items()},
        hardware=_hardware(values["hardware"]),
        emulation=None if (alone := values["emulation"]) is None else _emulation(alone),
        sequences=None if (trained := values.get("sequences")) is None else _whole(trained),
    )


def _hardware(values: Mapping[str, Any]) -> dict[str, Any]:
    clocks = values.get("clocks", {})
    figures = _numbers([clocks[name] for name in CLOCKS if name in clocks])
    reasons = clocks.get("throttle", [])
    if not all(map(math.isfinite, figures)) or not all(isinstance(one, str) for one in reasons):
        raise ValueError(f"clocks {clocks}")
    return dict(values)


def _emulation(values: Mapping[str, Any]) -> RankEmulation:
    found = RankEmulation(
        phase_times_s={
            _count(n): tuple(_by_phase(step) for step in steps)
            for n, steps in values["phase_times_s"].items()
        },
        copies_s={_count(n): _by_phase(copies) for n, copies in values["copies_s"].items()},
        collectives={
            _count(n): tuple(map(_collective, rows)) for n, rows in values["collectives"].items()
        },
        copies_left_out=str(values.get("copies_left_out", "")),
    )
    if not found.phase_times_s.keys() == found.copies_s.keys() == found.collectives.keys():
        raise ValueError("accumulation counts of an emulation differ")
    return found


def _by_phase(values: Mapping[str, Any]) -> dict[str, float]:
    found = dict(zip(values, _numbers(list(values.values())), strict=True))
    if not all(0 <= seconds < math.inf for seconds in found.values()):
        raise ValueError(f"seconds {found}")
    return found


def _error(values: Mapping[str, Any] | None) -> str:
    if values is None:
        return ""
    message = " ".join(str(values["message"]).split())
    return f"{values['type']}: {message}" if message else str(values["type"])


def _shortage(values: Mapping[str, Any]) -> RankShortage:
    sizes = ("requested_bytes", "allocated_bytes", "reserved_bytes", "limit_bytes")
    return RankShortage(phase=str(values["phase"]), **{k: _whole(values[k]) for k in sizes})


def _memory(values: Mapping[str, Any]) -> RankMemory:
    return RankMemory(
        peak_allocated_bytes=_whole(values["peak_allocated_bytes"]),
        low_peak_bytes=_whole(values["low_peak_bytes"]),
        peak_reserved_bytes=_whole(values["peak_reserved_bytes"]),
        device_bytes=_whole(values["device_bytes"]),
        overhead_bytes=_whole(values["overhead_bytes"]),
        by_phase={str(name): _whole(size) for name, size in values["by_phase"].items()},
        by_category={str(name): _whole(size) for name, size in values["by_category"].items()},
        allocation_retries=_whole(values["allocation_retries"]),
    )


def _collective(values: Mapping[str, Any]) -> Collective:
    return Collective(
        op=str(values["op"]),
        axis=str(values["axis"]),
        phase=str(values["phase"]),
        count=_whole(values["count"]),
        bytes=_whole(values["bytes"]),
        overlap=str(values.get("overlap", "")),
    )


def _numbers(values: list[Any]) -> tuple[float, ...]:
    if any(isinstance(value, str | bool) for value in values):
        raise TypeError("a number was expected")
    return tuple(float(value) for value in values)


def _seconds(values: list[Any]) -> tuple[float, ...]:
    times = _numbers(values)
    if not times or not all(0 < time < math.inf for time in times):
        raise ValueError(f"step times {times}")
    return times


def _count(value: str) -> int:
    if not value.isdecimal() or int(value) < 1:
        raise ValueError(f"accumulation count {value!r}")
    return int(value)


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"a whole number was expected, not {value!r}")
    return value
