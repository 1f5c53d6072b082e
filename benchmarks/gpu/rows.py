"""A row: what a case showed, beside what is predicted of it."""

from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Any

from dry import Dried

from gpu.cases import GpuCase
from gpu.goals import NOT_RUN
from gpu.probing import Probed
from tuner.core.evaluation import Evaluation
from tuner.core.measurement import Outcome
from tuner.cost.calibration import Calibration, calibrated
from tuner.cost.constants import default_costs
from tuner.cost.prediction import predict
from tuner.cost.time.step import missing_rate, sharded_step_s

TRIED_ANEW = frozenset({NOT_RUN, str(Outcome.DEVICE_LOST)})
"""Of cases that are run again when there is another chance: their rows say nothing of them."""
LEFT_OUT = ("versions", "losses", "gradient_norms", "log_tails", "dry_run")
"""Of measurements: what the file's head says, and what means nothing of a rank alone."""
LAST_WORDS = 400
"""Characters of the log of a probe that failed."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A case with all that came of it."""

    found: GpuCase  # the case
    probed: Probed | None  # what its probe found; `None` where there was none
    why_not: str = ""  # why there was none
    dried: Dried | None = None  # the dry runs of its class; `None` where none were asked for
    rates: Calibration | None = None  # measured rates of the card; `None` where there are none
    wall_s: float = 0.0  # seconds that the whole case took, with its dry runs


def row_of(tried: Tried, commit: str) -> dict[str, Any]:
    found, case = tried.found, tried.found.case
    workload = case.workload.as_dict()
    del workload["model"]
    return {
        "key": found.key,
        "part": str(found.part),
        "way": str(found.way),
        "model": case.workload.model.name,
        "cluster": case.cluster.name,
        "settings": case.settings.as_dict(),
        "workload": workload,
        "repetition": found.repetition,
        "limit_bytes": found.limit_bytes,
        "published": dict(found.published),
        **_shown(tried),
        "predicted": _predicted(tried),
        "computing": _computing(tried),
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit,
        "case_s": round(tried.wall_s, 2),
    }


def _shown(tried: Tried) -> dict[str, Any]:
    if tried.probed is None:
        return {"outcome": NOT_RUN, "detail": tried.why_not, "measurement": None,
                "phases_s": {}, "copies_s": {}}  # fmt: skip
    measurement = tried.probed.measurement
    kept = {k: v for k, v in measurement.as_dict().items() if k not in LEFT_OUT}
    tails = "\n".join(measurement.log_tails.values())
    return {
        "outcome": str(measurement.outcome),
        "detail": measurement.detail,
        **({} if measurement.outcome is Outcome.OK else {"log": tails[-LAST_WORDS:]}),
        "measurement": kept,
        "phases_s": dict(tried.probed.phases_s),
        "copies_s": dict(tried.probed.copies_s),
    }


def _predicted(tried: Tried) -> dict[str, Any]:
    """By dry run, where there was one, and by arithmetic."""
    told: dict[str, Any] = {"arithmetic": _told(tried, _predict(tried, None))}
    if tried.dried is None:
        return {"dry_run": None, "why_not_dry_run": "not asked for", **told}
    dry_run = tried.dried.of(tried.found.case)
    profile = dry_run.profile if dry_run else None
    return {
        "dry_run": _told(tried, _predict(tried, profile)) if profile else None,
        "why_not_dry_run": tried.dried.why_not(tried.found.case),
        **told,
    }


def _predict(tried: Tried, profile: Any) -> Evaluation:
    """Without headroom: the allocator leaves none either."""
    found, case = tried.found, tried.found.case
    return predict(
        case.workload, case.cluster, case.framework, case.settings,
        headroom=0.0, limit_bytes=found.limit_bytes, profile=profile,
    )  # fmt: skip


def _told(tried: Tried, prediction: Evaluation) -> dict[str, Any]:
    told: dict[str, Any] = {
        "allocated_bytes": prediction.allocated_bytes.as_dict(),
        "reserved_bytes": prediction.reserved_bytes.as_dict(),
        "device_bytes": prediction.device_bytes.as_dict(),
        "by_phase": dict(prediction.by_phase),
        "step_time_s": prediction.step_time_s.as_dict(),
        "fits": prediction.fits,
    }
    memory = tried.probed.measurement.memory if tried.probed else None
    if memory is not None:
        value = prediction.allocated_bytes.value or 0.0
        told["error"] = value / memory.allocated_bytes - 1
    return told


def _computing(tried: Tried) -> dict[str, float | None]:
    """Seconds that a step computes: measured, and predicted by the rates that there are."""
    case, calibrated_s = tried.found.case, None
    if tried.rates is not None:
        where, costs = calibrated(
            tried.rates, case.workload.precision, case.cluster, default_costs()
        )
        calibrated_s = sharded_step_s(case.workload, case.settings, where, costs, alone=True)[0]
    return {
        "measured_s": _measured_s(tried),
        "catalogue_s": _catalogue_s(tried.found),
        "calibrated_s": calibrated_s,
    }


def _measured_s(tried: Tried) -> float | None:
    """At the settings' own accumulation, where that was run."""
    emulation = tried.probed.measurement.emulation if tried.probed else None
    count = tried.found.case.settings.gradient_accumulation_steps
    if emulation is None or count not in emulation.compute_s:
        return None
    return median(emulation.compute_s[count])


def _catalogue_s(found: GpuCase) -> float | None:
    case = found.case
    if missing_rate(case.workload, case.settings, case.cluster, piped=False):
        return None
    asked = case.workload, case.settings, case.cluster
    return sharded_step_s(*asked, default_costs(), alone=True)[0]
