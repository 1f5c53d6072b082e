"""Start and end of one rank that is calibrated: its device, its groups, its record."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch.distributed as dist

from workers.probe.calibrate.cases import Place, no_gradient, work_of
from workers.probe.calibrate.spec import CalibrationSpec, read_calibration_spec
from workers.probe.calibrate.stopwatch import Stopwatch
from workers.probe.device import Device
from workers.probe.group import join, meet
from workers.probe.record import Record
from workers.probe.recording import recording
from workers.probe.tracker import Phase


def calibrate_rank(spec_path: Path, out: Path, init_method: str) -> Record:
    """Time all cases on this process's rank, and write its record.

    Args:
        spec_path: the calibration's ``spec.json``.
        out: the folder for ``rank-NNNNN.json``.
        init_method: of ``torch.distributed.init_process_group``.

    Returns:
        The record.
    """
    started = time.monotonic()
    with recording() as own:
        spec = read_calibration_spec(spec_path)
        device = own.open_device(spec.device)
        join(spec.world_size, own.rank, device.backend, init_method, device.torch_device)
        until = started + spec.budget_s
        own.record.readings = time_cases(spec, own.rank, device, own.phase, until=until)
        own.record.outcome = "ok"
        meet(device.torch_device)  # no rank leaves while another still talks to it
    own.record.write(out)
    return own.record


def time_cases(
    spec: CalibrationSpec, rank: int, device: Device, phase: Phase, *, until: float
) -> list[dict[str, Any]]:
    """The cases that there is time for, each with the seconds of its calls.

    Args:
        spec: what is timed.
        rank: which one this is.
        device: of this rank.
        phase: told each case as it begins.
        until: monotonic seconds after which none is begun, on the slowest rank.
    """
    place = Place(device=device.torch_device, groups=_groups(spec, rank))
    watch = Stopwatch(device, spec.case_s)
    readings: list[dict[str, Any]] = []
    for case in spec.cases:
        phase.name = _named(case)
        if watch.slowest(max(0.0, time.monotonic() - until)) > 1e-6:
            break
        with no_gradient(case):
            seconds = watch.seconds_of(work_of(case, place))
        readings.append({**case, "seconds": seconds})
    return readings


def _named(case: Mapping[str, Any]) -> str:
    sizes = (f"{k}={v}" for k, v in case.items() if k not in ("kind", "model"))
    return f"{case['kind']} {' '.join(sizes)}"


def _groups(spec: CalibrationSpec, rank: int) -> dict[str, dist.ProcessGroup]:
    """This rank's neighbors in its node, and its like in the other nodes; all at it at once."""
    per_node, world = spec.gpus_per_node, spec.world_size
    nodes = [list(range(first, first + per_node)) for first in range(0, world, per_node)]
    across = [list(range(local, world, per_node)) for local in range(per_node)]
    found = {}
    for name, parts in (("intra", nodes), ("inter", across)):
        if len(parts[0]) > 1:
            made = [(dist.new_group(ranks), ranks) for ranks in parts]  # by all, in one order
            found[name] = next(group for group, ranks in made if rank in ranks)
    return found
