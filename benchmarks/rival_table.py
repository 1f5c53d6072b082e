"""Our predictions and other tools' on the same rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from judging import balanced
from public_rows import PublicRow
from rivals import RIVALS, estimates
from sweep_table import Pair, printed_gib

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.workload import Workload

GIB = 2**30
WAYS = {"dry_run": "ours, dry run", "arithmetic": "ours, arithmetic"}
"""How we come to a figure, and its name in the table."""


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One measured row, and what we say of it."""

    workload: Workload
    cluster: Cluster
    settings: Settings
    measured_bytes: float | None  # `None` where it ran out of memory, or is not known
    ran: bool | None = None  # whether it ran, where that was at stake
    limit_bytes: float = 0.0  # what it had
    ours: Mapping[str, tuple[float, bool]]
    """Bytes and whether they fit, by how we came to them; without a name that has no answer."""


def of_public(rows: Sequence[PublicRow], told: Sequence[Mapping[str, Any]]) -> list[Compared]:
    """Published rows, with what :func:`public_rows.judge` told of them."""
    found = []
    for row, said in zip(rows, told, strict=True):
        found.append(
            Compared(
                workload=row.workload,
                cluster=row.cluster,
                settings=row.settings,
                measured_bytes=row.measured_gib * GIB if row.measured_gib else None,
                ran=row.measured_gib is not None,
                limit_bytes=row.cluster.gpu.memory_bytes * (1 - row.headroom),
                ours={
                    name: (said[way]["gib"] * GIB, said[way]["fits"])
                    for way, name in WAYS.items()
                    if said[way]
                },
            )
        )
    return found


def of_probes(cases: Sequence[Any], rows: Sequence[Mapping[str, Any]]) -> list[Compared]:
    """CPU probes, with what :func:`probe_table.compare` told of them."""
    return [
        Compared(
            workload=one.workload,
            cluster=one.cluster,
            settings=one.settings,
            measured_bytes=row["measured_mb"] * 1e6,
            ours={name: (row[way]["mb"] * 1e6, True) for way, name in WAYS.items() if row[way]},
        )
        for one, row in zip(cases, rows, strict=True)
    ]


def of_sweep(pairs: Sequence[Pair]) -> list[Compared]:
    return [
        Compared(
            workload=run.workload,
            cluster=run.cluster,
            settings=run.settings,
            measured_bytes=run.memory_gib * GIB if run.memory_gib else None,
            ran=run.ok,
            limit_bytes=prediction.limit_bytes,
            ours={"ours, arithmetic": (printed_gib(run) * GIB, prediction.fits)},
        )
        for run, prediction in pairs
    ]


def table(on: str, rows: Sequence[Compared]) -> list[dict[str, Any]]:
    """One line for each of our ways and each rival."""
    of_rivals = [estimates(row.workload, row.cluster, row.settings) for row in rows]
    found = []
    for name in dict.fromkeys(way for row in rows for way in row.ours):
        said = [row.ours.get(name) for row in rows]
        found.append(_line(on, name, rows, said))
    for rival in RIVALS:
        values = [of[rival] for of in of_rivals]
        found.append(_line(on, rival, rows, [
            (value, value <= row.limit_bytes) for value, row in zip(values, rows, strict=True)
        ]))  # fmt: skip
    return found


def _line(
    on: str, name: str, rows: Sequence[Compared], said: Sequence[tuple[float, bool] | None]
) -> dict[str, Any]:
    pairs = list(zip(rows, said, strict=True))
    errors = [abs(s[0] / r.measured_bytes - 1) for r, s in pairs if s and r.measured_bytes]
    verdicts = [(s[1], r.ran) for r, s in pairs if s and r.ran is not None]
    both = {so for _, so in verdicts} == {True, False}
    return {
        "on": on,
        "by": name,
        "n": len(errors),
        "median_error": median(errors) if errors else None,
        "largest_error": max(errors, default=None),
        "verdicts_right": f"{sum(a is b for a, b in verdicts)} of {len(verdicts)}" if both else "",
        "balanced_accuracy": balanced(verdicts) if both else None,
    }
