"""What is to be timed, as JSON: the same file for every rank."""

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationSpec:
    """The cases of one calibration, in the order in which they are timed."""

    format: int
    """Version of this file's form."""
    device: str
    """cpu or cuda."""
    world_size: int
    """Ranks."""
    gpus_per_node: int
    """Ranks that share a node, real or not."""
    cases: list[dict[str, Any]]
    """Each with its ``kind`` and sizes, as :mod:`workers.probe.calibrate.cases` takes them."""
    case_s: float
    """Seconds for the repetitions of one case, about."""
    budget_s: float
    """Seconds after which no further case is begun."""

    def __post_init__(self) -> None:
        if self.format != FORMAT:
            raise ValueError(f"format: got {self.format}; this program reads {FORMAT}")


def read_calibration_spec(path: Path) -> CalibrationSpec:
    """Read a spec file.

    Raises:
        ValueError: not JSON, unknown or missing fields, or another format.
    """
    values = json.loads(path.read_text(encoding="utf-8"))
    if odd := set(values) ^ {f.name for f in fields(CalibrationSpec)}:
        raise ValueError(f"{path.name}: unknown or missing fields {sorted(odd)}")
    return CalibrationSpec(**values)
