"""The files of one probe, in a directory of its own, and how they are written."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.measurement import Measurement
from workers.probe.orders import SPEC

RESULT = "result.json"


def record_path(directory: Path, rank: int) -> Path:
    """Where a rank writes its record."""
    return directory / f"rank-{rank:05d}.json"


def log_path(directory: Path, rank: int) -> Path:
    """Where a rank's output goes."""
    return directory / f"rank-{rank:05d}.log"


def end_path(directory: Path, rank: int) -> Path:
    """Where whatever started a rank on its node tells how it ended."""
    return directory / f"rank-{rank:05d}.end.json"


def write_spec(directory: Path, spec: Mapping[str, Any]) -> Path:
    """Write the spec that every rank reads."""
    return write_json(directory / SPEC, spec)


def write_result(directory: Path, measurement: Measurement) -> Path:
    """Write the probe's result."""
    return write_json(directory / RESULT, measurement.as_dict())


def write_json(path: Path, values: Mapping[str, Any]) -> Path:
    """Write JSON at once or not at all."""
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8") as file:
        json.dump(values, file, allow_nan=False)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return path
