"""Whether a rank's device still computes, as a program of its own: after a device was lost."""

from pathlib import Path

import torch

from workers.probe.record import Record
from workers.probe.recording import recording

SIDE = 256
"""Of the matrices that are multiplied: nothing to any device, and yet a kernel of a library."""


def check_device(device_type: str, out: Path) -> Record:
    """Allocate, multiply and read on this process's device, and write its record.

    Args:
        device_type: cpu or cuda.
        out: the folder for ``rank-NNNNN.json``.

    Returns:
        The record; its outcome is ok, or what is wrong.
    """
    with recording() as own:
        own.phase.name = "check"
        device = own.open_device(device_type)
        ones = torch.ones(SIDE, SIDE, device=device.torch_device)
        found = (ones @ ones).unique().tolist()  # waits for the device
        if found != [SIDE]:
            raise ArithmeticError(f"sums of {SIDE} ones are {found[:4]}")
        own.record.outcome = "ok"
    own.record.write(out)
    return own.record
