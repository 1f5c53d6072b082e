"""Where a worker's probes run: this machine, or the nodes that somebody has given to it."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from tuner.machine import Machine, this_machine
from workers.launchers.base import Launcher
from workers.launchers.facts import Facts
from workers.launchers.local import LocalLauncher
from workers.placement import Device, devices_here


class Site(Protocol):
    """Machines on which probes run, and what starts ranks on them."""

    @property
    def name(self) -> str:
        """What people see, such as ``this machine`` or ``Slurm job 12``."""

    @property
    def is_here(self) -> bool:
        """Whether it is this machine alone, whose devices others may want: turns are taken then.

        Devices of other sites are their owner's; the database keeps them apart by name.
        """

    @property
    def launcher(self) -> Launcher:
        """Starts ranks there. A job of ``nodes`` takes the first of the machines."""

    @property
    def left_s(self) -> float:
        """Seconds until it is taken away; infinite where that is not known."""

    def machines(self) -> tuple[Machine, ...]:
        """What is there now, found on each machine itself; the first is rank 0's.

        Raises:
            ProbeError: it cannot be found out.
        """

    def devices(self) -> tuple[Device, ...]:
        """All devices of all machines, each name once.

        Raises:
            ProbeError: it cannot be found out.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSite:
    """This machine."""

    launcher: Launcher = field(default_factory=LocalLauncher)
    """As of :class:`Site`."""
    find_devices: Callable[[], tuple[Device, ...]] = devices_here
    """Finds the devices of this machine."""
    name: str = "this machine"
    is_here: bool = True
    left_s: float = math.inf

    def machines(self) -> tuple[Machine, ...]:
        """As of :class:`Site`."""
        return (this_machine(),)

    def devices(self) -> tuple[Device, ...]:
        """As of :class:`Site`."""
        return self.find_devices()


def devices_of(nodes: Iterable[Facts]) -> tuple[Device, ...]:
    """The devices of a site's nodes, each name once: nodes of one machine share its cores."""
    names = dict.fromkeys(name for node in nodes for name in node.devices)
    return tuple(Device(name=name) for name in names)
