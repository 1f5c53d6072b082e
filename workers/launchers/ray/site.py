"""The nodes of a Ray cluster as the site of a worker's probes."""

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager

from tuner.errors import ProbeError
from tuner.machine import Machine
from workers.launchers.facts import Facts
from workers.launchers.ray.client import RayDriver
from workers.launchers.ray.launcher import RayLauncher
from workers.launchers.site import devices_of
from workers.placement import Device

log = logging.getLogger(__name__)


class RaySite:
    """The nodes of a Ray cluster that are of one kind."""

    is_here = False
    left_s = math.inf

    def __init__(self, driver: RayDriver) -> None:
        """The cluster that ``driver`` speaks to."""
        self._driver = driver
        self._told: set[str] = set()
        self.launcher = RayLauncher(driver)
        """As of :class:`workers.launchers.site.Site`."""

    @property
    def name(self) -> str:
        """As of :class:`workers.launchers.site.Site`."""
        return f"the Ray cluster at {self._driver.address}"

    def machines(self) -> tuple[Machine, ...]:
        """As of :class:`workers.launchers.site.Site`: each node looked at itself.

        How many GPUs Ray says that there are is an upper limit; ``nvidia-smi`` says what they are.
        """
        return tuple(facts.machine for facts in self._facts())

    def devices(self) -> tuple[Device, ...]:
        """As of :class:`workers.launchers.site.Site`."""
        return devices_of(self._facts())

    def _facts(self) -> list[Facts]:
        found = self._driver.ask("nodes")
        left_out = [f"{address}: {why}" for address, why in found["left_out"].items()]
        if not found["nodes"]:
            raise ProbeError(
                f"no node of {self.name} can be used ({'; '.join(left_out) or 'none'})"
            )
        for line in sorted(set(left_out) - self._told):
            log.warning("a node of %s is not used, %s", self.name, line)
        self._told |= set(left_out)
        return [Facts.from_dict(node) for node in found["nodes"]]


@contextmanager
def ray_site(address: str = "") -> Iterator[RaySite]:
    """A Ray cluster, connected to for as long as the context lasts.

    Args:
        address: ``HOST:PORT`` or ``auto``; empty to start a cluster of this machine alone.

    Raises:
        UsageError: Ray is not installed, or the cluster cannot be used.
        ProbeError: it does not answer.
    """
    driver = RayDriver(address)
    try:
        driver.start()
        yield RaySite(driver)
    finally:
        driver.close()
