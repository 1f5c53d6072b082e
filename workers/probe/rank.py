"""Start and end of one rank: its device, its process group, its record."""

from pathlib import Path

import torch

from workers.probe.device import Device
from workers.probe.group import (
    Meeting,
    heed_peer_access,
    join,
    join_fake_group,
    keep_own_parts,
    meet,
)
from workers.probe.record import Record
from workers.probe.recording import recording
from workers.probe.run import Rank
from workers.probe.spec import read_spec


def run_rank(spec_path: Path, out: Path, init_method: str) -> Record:
    """Run this process's rank of the probe and write its record.

    Args:
        spec_path: the probe's ``spec.json``.
        out: the folder for ``rank-NNNNN.json``.
        init_method: of ``torch.distributed.init_process_group``.

    Returns:
        The record.
    """
    record, _ = run_probe(spec_path, init_method)
    record.write(out)
    return record


def run_probe(spec_path: Path, meeting: Meeting) -> tuple[Record, Device | None]:
    """Run this process's rank of the probe; the process group it has joined is left as it is.

    Args:
        spec_path: the probe's ``spec.json``.
        meeting: where its ranks meet.

    Returns:
        The record, and the device; ``None`` if it could not be opened.
    """
    with recording() as own:
        spec = read_spec(spec_path)
        device = own.open_device(
            spec.device, limit_bytes=spec.memory_limit_bytes, alone=spec.is_emulated
        )
        torch.manual_seed(spec.seed)  # dropout's; by itself torch draws other ones in each process
        if spec.is_emulated:
            join_fake_group(spec.world_size)
            keep_own_parts()
        else:
            own.record.hardware |= heed_peer_access(device.torch_device)
            join(spec.world_size, own.rank, device.backend, meeting, device.torch_device)
        Rank(spec=spec, rank=own.rank, device=device, phase=own.phase, record=own.record).run()
        meet(device.torch_device)  # no rank leaves while another still talks to it
    return own.record, own.device
