"""One calibration: ranks are started, time what the plan says, and their readings are fitted."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.core.cluster import Cluster, Device
from tuner.cost.calibration import Calibration, merged
from tuner.cost.calibration_fit import fitted
from tuner.errors import ProbeError
from workers.calibrate.plan import QUICK, plan
from workers.devices import (
    DeviceLocks,
    check_cluster,
    default_lock_path,
    devices_here,
    first_gpus,
)
from workers.launchers.base import Ended, Job, Launcher, Run, Why
from workers.launchers.local import LocalLauncher, probe_argv
from workers.measuring.files import (
    default_probes_folder,
    make_folder,
    record_path,
    remove_folder,
    write_spec,
)
from workers.stop import StopRequest

# From a rank's start to its last case's begin.
BUDGET_S = 80.0
# For all of it: under two minutes.
DEADLINE_S = 118.0
POLL_S = 0.1

log = logging.getLogger("workers.calibrate")


class StoppedError(Exception):
    """A stop was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a calibration is run."""

    folder: Path = field(default_factory=default_probes_folder)
    lock: Path = field(default_factory=default_lock_path)
    """Path of the locks of devices, which are held while ranks run: a probe would spoil both."""
    quick: bool = False  # time small cases only, which shows that it runs, and nothing else


def calibrate(
    cluster: Cluster,
    stop: StopRequest,
    *,
    launcher: Launcher | None = None,
    options: Options | None = None,
) -> Calibration:
    """Measures the cluster, which must be this machine.

    Raises:
        ProbeError: this machine is not the cluster, or a rank failed.
        StoppedError: a stop was requested.
    """
    options = options or Options()
    check_cluster(cluster)
    locks = DeviceLocks(options.lock, [device.name for device in devices_here()])
    folder = None
    try:
        is_waiting = False
        while not locks.acquire():
            if not is_waiting:
                log.info("waiting for a probe on this machine")
            is_waiting = True
            if why := stop.wait(POLL_S):
                raise StoppedError(why)
        folder = make_folder(options.folder, "calibration")
        spec = {**plan(cluster, QUICK if options.quick else None), "budget_s": BUDGET_S}
        return _measured(cluster, spec, folder, stop, launcher or LocalLauncher())
    finally:
        locks.release()
        if folder is not None:
            remove_folder(folder)


def _measured(
    cluster: Cluster, spec: dict[str, Any], folder: Path, stop: StopRequest, launcher: Launcher
) -> Calibration:
    is_cpu = cluster.gpu.device is Device.CPU
    job = Job(
        argv=(*probe_argv(folder), "--calibrate"),
        directory=folder,
        ranks=cluster.world_size,
        device=str(cluster.gpu.device),
        deadline_s=DEADLINE_S,
        sharing=cluster.world_size if is_cpu else cluster.gpus_per_node,
        visible=() if is_cpu else first_gpus(devices_here(), cluster.world_size),
    )
    try:
        write_spec(folder, spec)
        run = launcher.start(job)
    except OSError as error:
        raise ProbeError(f"the ranks could not be started: {error}") from error
    try:
        while (ended := run.poll()) is None:
            if why := stop.wait(POLL_S):
                raise StoppedError(why)
    finally:
        run.cancel()  # which does nothing to ranks that have ended
    records = _read_records(folder, ended, run)
    try:
        return fitted(
            merged(spec["cases"], [record["readings"] for record in records]),
            cluster,
            versions=records[0]["versions"],
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            wall_s=ended.wall_s,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProbeError(f"what the ranks timed cannot be used: {error}") from error


def _read_records(folder: Path, ended: Ended, run: Run) -> Sequence[dict[str, Any]]:
    """The records of all ranks."""
    if ended.why is Why.DEADLINE:
        raise ProbeError(f"the ranks took longer than {DEADLINE_S:.0f} s, and were ended")
    first = sorted(ended.ranks, key=lambda end: (end.stopped, end.ended_at))
    found: dict[int, dict[str, Any]] = {}
    for end in first:
        try:
            record = json.loads(record_path(folder, end.rank).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            record = None
        if not isinstance(record, dict):
            words = run.logs().get(end.rank, "").strip().splitlines()
            last = f": {words[-1][:300]}" if words else ""
            raise ProbeError(f"rank {end.rank} ended with exit code {end.code}{last}")
        if record.get("outcome") != "ok":
            error = record.get("error") or {}
            what = " ".join(f"{error.get('type')}: {error.get('message')}".split())[:300]
            raise ProbeError(f"rank {end.rank} failed in {record.get('phase')}: {what}")
        found[end.rank] = record
    return [found[rank] for rank in sorted(found)]
