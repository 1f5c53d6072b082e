"""One emulated probe, with the product's own parts: spec, launcher, records, prices."""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from probe_cases import spec_of

from gpu.cases import GpuCase
from tuner.cluster import Device
from tuner.dryrun import dry_run_versions
from tuner.dryrun.plan import EIGHT_BIT_PACKAGE
from tuner.errors import UsageError
from tuner.here import stands_in, why_not_emulated
from tuner.measurement import Fidelity, Measurement
from tuner.workload import Optimizer
from workers.emulation import with_communication
from workers.files import write_spec
from workers.knobs import check_knobs
from workers.launchers.base import Ended, Job, Run
from workers.launchers.local import LocalLauncher, probe_argv
from workers.merge import merge
from workers.records import RankEmulation, RankRecord, read_records

POLL_S = 0.05


@dataclass(frozen=True, kw_only=True)
class Probed:
    """What a probe found."""

    measurement: Measurement
    """As a worker records it."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Median seconds of each phase of a timed step, copies in the place of gathers with it."""
    copies_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds of those copies, by phase, where the step waits for them."""


def why_not_here(found: GpuCase) -> str:
    """Why this machine cannot run a case; empty if it can."""
    workload = found.case.workload
    if workload.optimizer is Optimizer.ADAMW_8BIT and EIGHT_BIT_PACKAGE not in dry_run_versions():
        return f"{EIGHT_BIT_PACKAGE} is not installed here"
    try:
        return why_not_emulated(found.case.cluster)
    except UsageError as error:
        return str(error)


def probe(found: GpuCase, deadline_s: float) -> Probed:
    """Run a case as rank 0 alone, in a process of its own.

    Args:
        found: the case.
        deadline_s: seconds after which it is ended, with the outcome timeout.
    """
    case = found.case
    spec = spec_of(
        case, Fidelity.EMULATED, found.steps, counts=found.counts, limit_bytes=found.limit_bytes
    )
    with tempfile.TemporaryDirectory(prefix="bench-gpu-") as name:
        folder = Path(name).resolve()
        write_spec(folder, spec)
        run = LocalLauncher().start(_job(found, folder, deadline_s))
        ended = _wait(run)
        records = read_records(folder, 1)
        measurement = merge(ended, records, run.logs(), deadline_s=deadline_s)
    alone = records[0].emulation if isinstance(records[0], RankRecord) else None
    priced = with_communication(
        measurement, alone, case.settings, case.cluster, stands_in=stands_in(case.cluster)
    )
    checked = check_knobs(case.question, case.settings, priced)
    return Probed(measurement=checked, **_typical(alone))


def _job(found: GpuCase, folder: Path, deadline_s: float) -> Job:
    cluster = found.case.cluster
    on_cpu = cluster.gpu.device is Device.CPU
    return Job(
        argv=probe_argv(folder),
        directory=folder,
        ranks=1,
        device=str(cluster.gpu.device),
        deadline_s=deadline_s,
        sharing=1 if on_cpu else cluster.gpus_per_node,
    )


def _wait(run: Run) -> Ended:
    try:
        while (ended := run.poll()) is None:
            time.sleep(POLL_S)
    except BaseException:
        run.cancel()
        raise
    return ended


def _typical(alone: RankEmulation | None) -> dict[str, Mapping[str, float]]:
    """Phases and copies at the largest count that was run."""
    if alone is None:
        return {}
    count = max(alone.phase_times_s)
    steps = alone.phase_times_s[count]
    phases = {name: median(step.get(name, 0.0) for step in steps) for name in steps[0]}
    return {"phases_s": phases, "copies_s": dict(alone.copies_s[count])}
