"""All processes of a script's probe, also those that its launcher has put into other groups."""

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tuner.errors import ProbeError
from tuner.integrations.plan import PROBE

GONE_S = 30.0
"""Seconds that a killed process may take to be gone; longer means that a driver holds it."""
LOOK_S = 0.05
"""Between two looks for such processes."""


def end_all(folder: Path) -> None:
    """Kill whatever was started for the probe in a folder; returns when nothing of it is left.

    torchrun gives each rank a session of its own, so that they are found by what they inherit: the
    probe's folder in their environment.

    Raises:
        ProbeError: one cannot be killed.
    """
    until = time.monotonic() + GONE_S
    while left := list(_processes(folder)):
        if time.monotonic() > until:
            raise ProbeError(f"process {left[0].pid} of a script's probe cannot be killed")
        for process in left:
            with suppress(psutil.Error):
                process.kill()
        time.sleep(LOOK_S)


def _processes(folder: Path) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):  # gone by now, or somebody else's
            if process.pid != os.getpid() and process.environ().get(PROBE) == str(folder):
                yield process
