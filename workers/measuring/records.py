"""The records that the ranks of a probe wrote, read back as typed values that may be trusted.

The fields are those of :mod:`workers.probe.record`, whose writer may run in another version.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from tuner.core.measurement import RAN, Collective, Outcome
from workers.measuring.files import record_path

FORMAT = 1
# Of a record; a whole one has some kilobytes.
LARGEST_BYTES = 64 * 2**20
# Outcomes that a rank can know of itself; the others are seen from outside.
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

Count = Annotated[int, Field(ge=0)]
# Micro-batches of an optimizer step that was run.
Accumulation = Annotated[int, Field(ge=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
StepTime = Annotated[float, Field(gt=0, allow_inf_nan=False)]


# Figures of ``clocks`` in a record's ``hardware``, each where ``nvidia-smi`` tells it.
CLOCKS = ("sm_mhz", "power_w", "temperature_c")
_FIGURES = TypeAdapter(dict[str, Finite])
_REASONS = TypeAdapter(list[str])


def _with_clocks(hardware: Mapping[str, Any]) -> Mapping[str, Any]:
    clocks = hardware.get("clocks", {})
    if not isinstance(clocks, Mapping):
        raise ValueError(f"clocks {clocks}")
    figures = {name: clocks[name] for name in CLOCKS if name in clocks}
    _FIGURES.validate_python(figures, strict=True)
    _REASONS.validate_python(clocks.get("throttle", []), strict=True)
    return hardware


def _error_line(error: Mapping[str, str] | None) -> str:
    if error is None:
        return ""
    if not isinstance(error, Mapping) or not {"type", "message"} <= error.keys():
        raise ValueError("an error has a type and a message")
    message = " ".join(str(error["message"]).split())
    return f"{error['type']}: {message}" if message else str(error["type"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """One rank's memory, as in :class:`tuner.core.measurement.Memory`."""

    peak_allocated_bytes: Count
    low_peak_bytes: Count
    peak_reserved_bytes: Count
    device_bytes: Count
    overhead_bytes: Count
    by_phase: Mapping[str, Count]
    by_category: Mapping[str, Count]
    allocation_retries: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShortage:
    """One rank's shortage of memory, as in :class:`tuner.core.measurement.OutOfMemory`."""

    phase: str
    requested_bytes: Count
    allocated_bytes: Count
    reserved_bytes: Count
    limit_bytes: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEmulation:
    """Notes of a rank without peers, by accumulation count that was run."""

    phase_times_s: Mapping[Accumulation, tuple[Mapping[str, Seconds], ...]]
    """Seconds of each phase in each timed step."""
    copies_s: Mapping[Accumulation, Mapping[str, Seconds]]
    """Seconds of them, by phase, that went into copies in the place of what would be received."""
    collectives: Mapping[Accumulation, tuple[Collective, ...]]
    copies_left_out: str = ""
    """The reason why some of these copies could not be timed, and are in none of these seconds."""

    def __post_init__(self) -> None:
        if not self.phase_times_s.keys() == self.copies_s.keys() == self.collectives.keys():
            raise ValueError("accumulation counts of an emulation differ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """One rank's record."""

    rank: Count
    outcome: Outcome
    phase: str  # the last thing that the rank was doing
    error: Annotated[str, BeforeValidator(_error_line)]
    """``Type: message``, empty where there was none."""
    ended_at: float  # unix seconds when the record was written
    oom: RankShortage | None = None  # set when the outcome is oom
    memory: RankMemory | None = None  # set when its steps ran
    step_times_s: Mapping[Accumulation, Annotated[tuple[StepTime, ...], Field(min_length=1)]] = (
        field(default_factory=dict)
    )
    """Seconds of each timed step by accumulation count."""
    collectives: tuple[Collective, ...] = ()
    tracked_accumulation: Count = 0  # micro-batches in that step
    reducing_micro_batches: Count = 0  # micro-batches of that step that reduced gradients
    recomputed_layers: Count | None = None
    """Decoder layers that backward of that step computed again; ``None`` where not counted."""
    attention: Mapping[str, Count] = field(default_factory=dict)
    """Layers of one forward pass by the kernel that torch computed their attention with."""
    losses: tuple[float, ...] = ()
    gradient_norms: tuple[float, ...] = ()  # one per tracked step
    optimizer_steps: Count = 0  # times that the optimizer stepped
    expected_optimizer_steps: Count = 0  # times that it had to
    versions: Mapping[str, str] = field(default_factory=dict)
    hardware: Annotated[Mapping[str, Any], AfterValidator(_with_clocks)] = field(
        default_factory=dict
    )
    """The rank's device and machine."""
    emulation: RankEmulation | None = None
    sequences: Count | None = None
    """Sequences that a user's script trained in one optimizer step, where it told."""


OLDER_RECORDS_LACK = {"recomputed_layers", "attention", "sequences"}
_NEEDED = {"format", *(one.name for one in fields(RankRecord))} - OLDER_RECORDS_LACK
_RECORD = TypeAdapter(RankRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    """A record that is missing or cannot be used."""

    why: str  # its defect, to follow "the record"
    missing: bool = False  # set where there is none at all


Record = RankRecord | BadRecord


def read_records(directory: Path, ranks: int) -> tuple[Record, ...]:
    """The record of every rank, by rank."""
    return tuple(_read(record_path(directory, rank), rank) for rank in range(ranks))


def parse_record(text: str, rank: int) -> Record:
    """One rank's record from its JSON."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return BadRecord(why="is not JSON, or cut short")
    why = ""
    if not isinstance(values, dict) or (lacking := sorted(_NEEDED - values.keys())):
        what = ", ".join(lacking) if isinstance(values, dict) else "an object"
        why = f"{what} was expected"
    elif values["format"] != FORMAT:
        why = f"format {values['format']}"
    else:
        try:
            record = _RECORD.validate_json(text, strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if why:
        return BadRecord(why=f"has not the expected form ({why})")
    lacks_bytes = (record.outcome is Outcome.OOM and record.oom is None) or (
        record.outcome in RAN and record.memory is None
    )
    if record.outcome not in REPORTED or lacks_bytes:
        return BadRecord(why=f"has not the expected form (outcome {record.outcome})")
    if record.rank != rank:
        return BadRecord(why=f"is rank {record.rank}'s")
    return record


def _read(path: Path, rank: int) -> Record:
    try:
        if path.stat().st_size > LARGEST_BYTES:
            return BadRecord(why=f"is larger than {LARGEST_BYTES >> 20} MiB")
        return parse_record(path.read_text(encoding="utf-8"), rank)
    except FileNotFoundError:
        return BadRecord(why="is missing", missing=True)
    except (OSError, UnicodeDecodeError) as error:
        return BadRecord(why=f"cannot be read ({error})")
