"""Predicted against measured peaks of the settings that were probed on CPU ranks."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from common import Goal
from dry import Dried
from judging import holds, share
from probe_cases import Case, case

from tuner.core.evaluation import Evaluation
from tuner.cost.prediction import predict

DATA = Path(__file__).parent / "data"
ALLOWED = 0.01
"""Share of the measured peak that a prediction may be off by, or else one gathered block."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """One case and what was measured of it."""

    case: Case
    peaks: Sequence[int]  # bytes at the peak of the rank that needs most, of each run
    profiled: Sequence[int] = ()
    """The same on rank 0 as torch's profiler counts, of each run that it watched: without what
    gloo allocates for itself."""
    profiled_all: Sequence[int] = ()  # with it


def load() -> dict[str, Any]:
    """The committed measurements: ``cpu_probes.json``, and ``profiled_peaks.json`` in it."""
    found: dict[str, Any] = json.loads((DATA / "cpu_probes.json").read_text())
    profiled = json.loads((DATA / "profiled_peaks.json").read_text())
    runs = {row["case"]: row["runs"] for row in profiled["rows"]}
    return {**found, "profiled": runs}


def probed(data: Mapping[str, Any]) -> list[Probed]:
    """Cases that were measured."""
    found = []
    for row in data["rows"]:
        ok = [run for run in row["runs"] if run["outcome"] == "ok"]
        watched = data["profiled"].get(row["case"], ())
        if ok:
            found.append(
                Probed(
                    case=case(row["case"]),
                    peaks=[max(run["peak_bytes_by_rank"]) for run in ok],
                    profiled=[_highest(run, "peak_without_backend_bytes") for run in watched],
                    profiled_all=[_highest(run, "peak_bytes") for run in watched],
                )
            )
    return found


def _highest(run: Mapping[str, Any], what: str) -> int:
    return max(int(step[what]) for step in run["steps"])


def compare(one: Probed, dried: Dried) -> dict[str, Any]:
    """One row: dry run and arithmetic against the median of the runs."""
    measured = median(one.peaks)
    dry_run = dried.of(one.case)
    profile = dry_run.profile if dry_run else None
    block = profile.block_bytes if profile else 0
    row: dict[str, Any] = {
        "case": one.case.text,
        "measured_mb": measured / 1e6,
        "runs_mb": [peak / 1e6 for peak in one.peaks],
        "block_mb": block / 1e6,
        "dry_run": _told(_predict(one.case, profile), measured, block) if profile else None,
        "arithmetic": _told(_predict(one.case, None), measured, block),
        "why_not_dry_run": dried.why_not(one.case),
    }
    if one.profiled:
        seen = median(one.profiled)
        row["profiler_mb"] = seen / 1e6
        row["profiler_with_backend_mb"] = [peak / 1e6 for peak in one.profiled_all]
        row["tracker_over_profiler"] = measured / seen - 1
        if profile:
            row["dry_run_by_profiler"] = _told(_predict(one.case, profile), seen, block)
    return row


def goals(rows: Sequence[Mapping[str, Any]]) -> list[Goal]:
    profiled = [row for row in rows if "profiler_mb" in row]
    by_events = "CPU probes, by the profiler's events"
    return [
        Goal(name="CPU probes: settings measured", goal=">= 40", value=len(rows)),
        *closeness(rows, "CPU probes", "dry run", "dry_run"),
        *closeness(rows, "CPU probes", "arithmetic", "arithmetic"),
        Goal(name=f"{by_events}: settings", goal=">= 6", value=len(profiled)),
        *closeness(profiled, by_events, "dry run", "dry_run_by_profiler"),
        Goal(name="CPU probes: share answered unknown", goal="<= 0",
             value=share([row["dry_run"] is None for row in rows])),
        Goal(name="CPU probes: dry runs' intervals hold the measured", goal=">= 0.8",
             value=_share(rows, "dry_run", "inside")),
        Goal(name="CPU probes: arithmetic's intervals hold the measured", goal=">= 0.8",
             value=_share(rows, "arithmetic", "inside")),
    ]  # fmt: skip


def closeness(rows: Sequence[Mapping[str, Any]], of: str, way: str, basis: str) -> list[Goal]:
    """What is asked, and the stricter of it: no block is allowed."""
    return [
        Goal(name=f"{of}: share with {way} {what}", goal=">= 1", value=_share(rows, basis, key))
        for what, key in (("within 1% or one gathered block", "near"), ("within 1%", "within_1%"))
    ]


def _share(rows: Sequence[Mapping[str, Any]], basis: str, what: str) -> float:
    return share([bool(row.get(basis) and row[basis][what]) for row in rows])


def _predict(of: Case, profile: Any) -> Evaluation:
    framework = of.framework
    return predict(of.workload, of.cluster, framework, of.settings, profile=profile)


def _told(prediction: Evaluation, measured: float, block: int) -> dict[str, Any]:
    q = prediction.allocated_bytes
    assert q.value is not None
    return {
        "mb": q.value / 1e6,
        "error": q.value / measured - 1,
        "near": abs(q.value - measured) <= max(ALLOWED * measured, block),
        "within_1%": abs(q.value - measured) <= ALLOWED * measured,
        "inside": holds(q, measured),
        "by_phase_mb": {name: value / 1e6 for name, value in prediction.by_phase.items()},
    }
