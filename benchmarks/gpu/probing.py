"""One emulated probe, with the product's own parts: spec, launcher, records, prices."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from probe_cases import Case, spec_of

from gpu.cases import GpuCase, Way
from tuner.catalog.versions import meets
from tuner.client.capabilities import has_one, why_not_emulated
from tuner.core.measurement import Fidelity, Measurement
from tuner.core.workload import Optimizer, Precision
from tuner.cost.constants import default_costs
from tuner.cost.memory.shards import axis_sizes
from tuner.cost.time.emulated import Rates
from tuner.dryrun import dry_run_versions
from tuner.dryrun.plan import EIGHT_BIT_PACKAGE
from tuner.errors import UsageError
from workers.measuring.measure import check_knobs, kind_of, with_communication
from workers.measuring.ranks import WarmRanks
from workers.measuring.records import RankEmulation, RankRecord

NO_BF16_DTENSORS = "<0.19"
"""Releases of torchao whose compiled 8-bit step fails on parameters that are DTensors in bf16."""
NOT_IMPLEMENTED = "aten.view.dtype of OptimState8bit"
"""What it lacks."""


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a probe found."""

    measurement: Measurement  # as a worker records it
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Median seconds of each phase of a timed step, copies in the place of gathers with it."""
    copies_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of those copies, by phase, where the step waits for them."""


def why_not_here(found: GpuCase) -> str:
    """Why this machine cannot run a case; empty if it can."""
    if why := why_no_8bit(found.case):
        return why
    try:
        return why_not_emulated(found.case.cluster)
    except UsageError as error:
        return str(error)


def why_no_8bit(case: Case) -> str:
    """Why 8-bit AdamW does not run; empty where it is not asked for, or does."""
    workload, settings = case.workload, case.settings
    if workload.optimizer is not Optimizer.ADAMW_8BIT:
        return ""
    version = dry_run_versions().get(EIGHT_BIT_PACKAGE)
    if version is None:
        return f"{EIGHT_BIT_PACKAGE} is not installed here"
    splits = axis_sizes(settings, case.cluster).is_fsdp or settings.tp_size > 1
    if workload.precision is Precision.BF16 and splits and meets(version, NO_BF16_DTENSORS):
        return f"{EIGHT_BIT_PACKAGE} {version} cannot step on bf16 DTensors ({NOT_IMPLEMENTED})"
    return ""


@contextmanager
def prober(way: Way) -> Iterator[Callable[[GpuCase, float], Probed]]:
    """Runs cases as rank 0 alone, in a process of its own each, or in one that stays.

    What it yields takes a case, and seconds after which it is ended with the outcome timeout.
    """
    with (
        tempfile.TemporaryDirectory(prefix="bench-gpu-") as name,
        WarmRanks(folder=Path(name).resolve(), keep=way is Way.WARM) as ranks,
    ):
        yield lambda found, deadline_s: _probe(found, ranks, deadline_s)


def _probe(found: GpuCase, ranks: WarmRanks, deadline_s: float) -> Probed:
    return probe(
        found.case,
        ranks,
        steps=found.steps,
        counts=found.counts,
        limit_bytes=found.limit_bytes,
        deadline_s=deadline_s,
    )


def probe(
    case: Case,
    ranks: WarmRanks,
    *,
    fidelity: Fidelity = Fidelity.EMULATED,
    steps: Mapping[str, Any],
    counts: tuple[int, ...] = (),
    limit_bytes: int | None = None,
    deadline_s: float,
) -> Probed:
    """Run a case.

    Args:
        case: what to run.
        ranks: on which.
        fidelity: on all ranks of its cluster, or as rank 0 alone.
        steps: fields of the spec that say how many steps are run.
        counts: accumulation counts that are run; by default the settings' own.
        limit_bytes: what one rank may allocate; by default what the cluster's card leaves.
        deadline_s: seconds after which it is ended with the outcome timeout.
    """
    spec = spec_of(case, fidelity, steps, counts=counts, limit_bytes=limit_bytes)
    probed = ranks.measure(
        kind_of(case.cluster, fidelity), spec, deadline_s=deadline_s, pause=pause
    )
    found = probed.measurement
    first = probed.records[0] if probed.records else None
    alone = first.emulation if isinstance(first, RankRecord) else None
    if fidelity is Fidelity.EMULATED:
        rates = Rates(cluster=case.cluster, costs=default_costs())
        stands = not has_one(case.cluster)
        found = with_communication(found, alone, case.settings, rates, stands_in=stands)
    checked = check_knobs(case.question, case.settings, found)
    return Probed(measurement=checked, **_typical(alone))


def pause(seconds: float) -> str:
    """Nothing but the deadline ends a probe."""
    time.sleep(seconds)
    return ""


def _typical(alone: RankEmulation | None) -> dict[str, Mapping[str, float]]:
    """Phases and copies at the largest count that was run."""
    if alone is None:
        return {}
    count = max(alone.phase_times_s)
    steps = alone.phase_times_s[count]
    phases = {name: median(step.get(name, 0.0) for step in steps) for name in steps[0]}
    return {"phases_s": phases, "copies_s": dict(alone.copies_s[count])}
