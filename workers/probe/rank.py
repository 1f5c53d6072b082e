"""Start and end of one rank: its device, its process group, its record."""

import datetime
import os
from pathlib import Path

import torch.distributed as dist

from workers.probe.device import open_device
from workers.probe.record import Record, versions
from workers.probe.run import Rank
from workers.probe.spec import read_spec
from workers.probe.tracker import Phase

COLLECTIVE_TIMEOUT = datetime.timedelta(hours=1)
"""Longer than any probe's deadline, which the supervisor keeps."""


def run_rank(spec_path: Path, out: Path, init_method: str) -> str:
    """Run this process's rank of the probe and write its record.

    Args:
        spec_path: the probe's ``spec.json``.
        out: the folder for ``rank-NNNNN.json``.
        init_method: of ``torch.distributed.init_process_group``.

    Returns:
        The record's outcome.
    """
    rank = int(os.environ["RANK"])
    record = Record(rank=rank, versions=versions())
    phase = Phase()
    device = None
    try:
        spec = read_spec(spec_path)
        local_rank = int(os.environ.get("LOCAL_RANK", rank))
        limit = spec.memory_limit_bytes
        device = open_device(spec.device, phase, local_rank=local_rank, limit_bytes=limit)
        record.hardware = dict(device.hardware())
        join(spec.world_size, rank, device.backend, init_method)
        Rank(spec=spec, rank=rank, device=device, phase=phase, record=record).run()
        dist.barrier()  # no rank leaves while another still talks to it
    except Exception as error:  # noqa: BLE001  (whatever it is becomes the record's outcome)
        record.fail(error, phase.name, device)
    record.write(out)
    return record.outcome


def join(world_size: int, rank: int, backend: str, init_method: str) -> None:
    """Join the process group of the probe's ranks."""
    # accelerate wants an address even where the process group is there already
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=rank,
        world_size=world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )
