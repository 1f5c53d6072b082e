"""Probes one after the other in one process."""

from contextlib import AbstractContextManager
from typing import Protocol

from gpu.cases import GpuCase
from gpu.probing import Probed


class NotAvailableError(Exception):
    """A part cannot be run; the text says why."""


class WarmRunner(Protocol):
    """A process that runs probes, kept from one to the next."""

    def probe(self, found: GpuCase, deadline_s: float) -> Probed:
        """As :func:`gpu.probing.probe`; seconds are those that this probe took."""


def runner() -> AbstractContextManager[WarmRunner] | None:
    """The way to keep a process warm; ``None`` where there is none."""
    return None
