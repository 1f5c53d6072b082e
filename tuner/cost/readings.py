"""What the ranks of a calibration timed: cases with their seconds, over all ranks."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tuner.model import read_model_config
from tuner.settings import Settings
from tuner.workload import Precision, Workload

PRECISIONS: Mapping[str, Precision] = {"bf16": Precision.BF16, "fp32": Precision.FP32}
"""Number formats that cases are timed in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One case, and what a call of it took where it took longest."""

    case: Mapping[str, Any]
    """``kind``, ``dtype`` and sizes, as they were asked for."""
    seconds: float
    """Of the slowest rank, for the others would wait for it: what a quarter of its batches took at
    most. The median would be of the machine's other work, where there is any."""
    median_s: float
    """The median of that rank."""
    low_s: float
    """The shortest batch of any rank."""
    high_s: float
    """The longest."""

    @property
    def kind(self) -> str:
        """matrix, copy, layers, update, collective or both."""
        return str(self.case["kind"])

    def workload(self) -> tuple[Workload, Settings]:
        """Of a case of layers: what was trained, on one rank alone."""
        case = self.case
        workload = Workload(
            model=read_model_config(case["model"], name="calibration"),
            sequence_length=case["sequence_length"],
            global_batch_size=case["micro_batch_size"],
            precision=PRECISIONS[case["dtype"]],
        )
        return workload, Settings(micro_batch_size=case["micro_batch_size"])

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        names = ("seconds", "median_s", "low_s", "high_s")
        times = {name: getattr(self, name) for name in names}
        return {"case": dict(self.case), **times}


def merged(cases: Sequence[Mapping[str, Any]], ranks: Iterable[Any]) -> tuple[Reading, ...]:
    """The readings of all ranks, case by case.

    Args:
        cases: what was asked for, in order; ranks may have had no time for the last ones.
        ranks: of each rank, the JSON that it wrote: the case and ``seconds`` of its batches.

    Raises:
        ValueError: a rank timed something else, or not what the others did, or its seconds are
            none.
    """
    rows = [list(rank) for rank in ranks]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) > len(cases):
        raise ValueError(f"ranks timed {[len(row) for row in rows]} of {len(cases)} cases")
    return tuple(_merged(case, together) for case, *together in zip(cases, *rows, strict=False))


def _merged(case: Mapping[str, Any], rows: Sequence[Any]) -> Reading:
    each = []
    for row in rows:
        if {name: value for name, value in row.items() if name != "seconds"} != dict(case):
            raise ValueError(f"a rank timed {row}, not {dict(case)}")
        seconds = [float(value) for value in row["seconds"]]
        if not seconds or not all(0 < value < math.inf for value in seconds):
            raise ValueError(f"seconds {seconds} of {dict(case)}")
        each.append(seconds)
    return Reading(
        case=dict(case),
        seconds=max(map(_quarter, each)),
        median_s=max(map(median, each)),
        low_s=min(map(min, each)),
        high_s=max(map(max, each)),
    )


def _quarter(seconds: Sequence[float]) -> float:
    """What a quarter of them is at most."""
    return sorted(seconds)[(len(seconds) - 1) // 4]


def of_kind(readings: Iterable[Reading], kind: str, **sizes: object) -> tuple[Reading, ...]:
    """Those of a kind, and with these values in their case."""
    return tuple(
        reading
        for reading in readings
        if reading.kind == kind and all(reading.case.get(k) == v for k, v in sizes.items())
    )
