"""The folders and files of probes, and what ranks wrote there, read back as values to be trusted.

Each run of ranks has a folder of its own, and in it one for each probe that is ordered; it is
removed when its result is in the store. Fields of records are those of :mod:`workers.probe.record`,
whose writer may run in another version.
"""

import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError

from tuner.core.measurement import RAN, Collective, Count, Findings, Memory, Outcome, OutOfMemory
from tuner.errors import ProbeError

RESULT = "result.json"
# About 40 lines: a traceback and what came before it.
TAIL_BYTES = 4000

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


def default_probes_folder() -> Path:
    """The place of this user's probes' folders while they run.

    Each machine has its own: a home may be shared, and process numbers are a machine's.
    """
    from platformdirs import user_cache_path  # not needed when a folder is named

    return user_cache_path("tuner") / "probes" / socket.gethostname()


def probes_folder(parent: Path | None) -> Path:
    """The place of a worker's probes' folders: in ``parent``, each machine with its own."""
    return default_probes_folder() if parent is None else parent.absolute() / socket.gethostname()


def make_folder(parent: Path, name: str) -> Path:
    """A new folder that only this user can read; its name starts with this process's number. Raises
    ProbeError: it cannot be made."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-{name}-", dir=parent)).resolve()
    except OSError as error:
        raise ProbeError(f"cannot make a folder for a probe in {parent}: {error}") from error


def remove_folder(folder: Path) -> None:
    """Removes a probe's folder, as far as it can be."""
    shutil.rmtree(folder, ignore_errors=True)


def remove_leftovers(parent: Path) -> None:
    for folder in parent.glob("*-*-*"):
        owner = folder.name.split("-")[0]
        if owner.isdecimal() and not psutil.pid_exists(int(owner)):
            remove_folder(folder)


def record_path(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank:05d}.json"


def log_path(directory: Path, rank: int) -> Path:
    return directory / f"rank-{rank:05d}.log"


def end_path(directory: Path, rank: int) -> Path:
    """The end of a rank, told by whatever started it on its node."""
    return directory / f"rank-{rank:05d}.end.json"


def write_json(path: Path, values: Mapping[str, Any]) -> Path:
    """Writes JSON at once or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(values, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path


def log_tail(path: Path, most: int = TAIL_BYTES) -> str:
    """The last ``most`` bytes of a log as text; empty when there is none.

    Bytes that are not UTF-8 are replaced; escape sequences and control characters are removed.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - most))
            raw = file.read(most)
    except FileNotFoundError:
        return ""
    text = raw.decode("utf-8", errors="replace")
    lines = text.replace("\r\n", "\n").replace("\r", "\n")  # a progress bar's states, too
    return _CONTROL.sub("", _ANSI.sub("", lines))


FORMAT = 2
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
class RankRecord(Findings):
    rank: Count
    outcome: Outcome
    phase: str  # the last thing that the rank was doing
    error: Annotated[str, BeforeValidator(_error_line)]
    """``Type: message``, empty where there was none."""
    ended_at: float  # unix seconds when the record was written
    oom: OutOfMemory | None = None  # set when the outcome is oom
    memory: Memory | None = None  # its own, set when its steps ran
    step_times_s: Mapping[Accumulation, Annotated[tuple[StepTime, ...], Field(min_length=1)]] = (
        field(default_factory=dict)
    )
    """Seconds of each timed step by accumulation count."""
    moved_frozen: Count | None = None
    """Frozen parameters that the steps have changed; ``None`` where there are none."""
    loss_kernel: Literal["", "chunked", "liger"] = ""  # what computed a fused loss
    hardware: Annotated[Mapping[str, Any], AfterValidator(_with_clocks)] = field(
        default_factory=dict
    )
    """The rank's device and machine."""
    emulation: RankEmulation | None = None
    sequences: Count | None = None
    """Sequences that a user's script trained in one optimizer step, where it told."""


OLDER_RECORDS_LACK = {
    "recomputed_layers", "recomputed_products", "host_bytes", "whole_logits", "loss_kernel",
    "attention", "sequences", "moved_frozen",
}  # fmt: skip
_NEEDED = {"format", *(one.name for one in fields(RankRecord))} - OLDER_RECORDS_LACK
_RECORD = TypeAdapter(RankRecord)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRecord:
    why: str  # its defect, to follow "the record"
    missing: bool = False  # set where there is none at all


Record = RankRecord | BadRecord


def read_records(directory: Path, ranks: int) -> tuple[Record, ...]:
    return tuple(_read(record_path(directory, rank), rank) for rank in range(ranks))


def parse_record(text: str, rank: int) -> Record:
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
