"""Ranks on the nodes of a Ray cluster, which are the site of a worker's probes."""

import itertools
import logging
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import SIGKILL
from typing import Any

from tuner.errors import ProbeError
from tuner.machine import Machine
from workers.devices import Device
from workers.launchers.base import Job, RankEnd, Why
from workers.launchers.ray.client import RayDriver
from workers.launchers.site import Facts, devices_of
from workers.launchers.supervised import SupervisedRun

# Seconds that Ray gets to place a job: others may have what it has for a while.
PLACE_S = 60.0
# Seconds beyond the grace of a job that its ranks get to be ended; Ray kills their actors then.
ANSWER_S = 5.0
# Between two looks at ranks that are being ended.
POLL_S = 0.02


class RayLauncher:
    """Starts ranks on the nodes of a Ray cluster."""

    def __init__(self, driver: RayDriver) -> None:
        """A launcher that speaks to Ray through ``driver``."""
        self._driver = driver
        self._numbers = itertools.count(1)

    def start(self, job: Job) -> "RayRun":
        """Asks Ray for a place for ``job``; its ranks are started when there is one.

        Raises:
            ProbeError: the cluster does not have it, or cannot be asked.
        """
        number = next(self._numbers)
        self._driver.ask("start", run=number, job=job.as_dict(), program=sys.executable)
        return RayRun(self._driver, number, job)


class RayRun(SupervisedRun):
    """Ranks of one job on a Ray cluster."""

    def __init__(self, driver: RayDriver, number: int, job: Job) -> None:
        super().__init__(job)
        self._driver = driver
        self._number = number
        self._is_to_feed = False
        self._is_placed = False
        self._lost = ""
        self._lost_nodes: tuple[int, ...] = ()
        self._devices: tuple[tuple[str, ...], ...] = ()
        self._trouble: ProbeError | None = None
        self._oom_kills: dict[int, int] = {}

    def feed(self) -> None:
        self._is_to_feed = True  # the next look says so

    def look(self) -> Iterator[RankEnd]:
        try:
            found = self._ask("look", feed=self._is_to_feed)
            if found["runs"] and not self._is_placed:
                self._devices = tuple(map(tuple, self._ask("devices")["devices"]))
        except ProbeError as error:
            self._trouble = error
            return
        self._is_to_feed = False
        self._is_placed |= found["runs"]
        self._lost, self._lost_nodes = found["lost"], tuple(found["lost_nodes"])
        for rank, end in found["ends"].items():
            self._oom_kills[int(rank)] = end["oom_kills"]
            yield RankEnd(
                rank=int(rank), code=end["code"], ended_at=end["at"], stopped=end["stopped"]
            )

    def why_lost(self) -> tuple[Why, str] | None:
        """Tells that a node of the job is gone.

        Raises:
            ProbeError: Ray has no place for the job, or cannot be asked any more.
        """
        if self._trouble is not None:
            raise self._trouble
        if not self._is_placed and time.monotonic() - self._started > PLACE_S:
            raise ProbeError(
                f"Ray has found no place for {self._job.ranks} ranks on {self._job.nodes} nodes"
                f" within {PLACE_S:.0f} s: others use what it has"
            )
        return (Why.NODE_LOST, self._lost) if self._lost else None

    def lost_nodes(self) -> tuple[int, ...]:
        return self._lost_nodes

    def node_devices(self) -> tuple[tuple[str, ...], ...]:
        return self._devices

    def stop(self, why: Why) -> Iterator[RankEnd]:
        """Ends the ranks, and gives the place back.

        Where Ray cannot be asked any more, it ends the ranks itself: their job's process is gone.
        """
        told = dict(self._ends)
        with suppress(ProbeError):
            if len(told) < self._job.ranks and self._is_placed:
                self._end_ranks(told)
            self._ask("close")
        for rank in range(self._job.ranks):
            unknown = RankEnd(rank=rank, code=-SIGKILL, ended_at=time.time(), stopped=True)
            yield told.get(rank, unknown)

    def _end_ranks(self, told: dict[int, RankEnd]) -> None:
        """Ends ranks until all ends are told, or for as long as they have to answer."""
        self._ask("stop")
        until = time.monotonic() + self._job.term_grace_s + ANSWER_S
        while len(told) < self._job.ranks and time.monotonic() < until:
            told.update((end.rank, end) for end in self.look())
            time.sleep(POLL_S)

    def host_oom_kills(self) -> int:
        """The kills of the node where there were most.

        Ranks of one node see the same ones, so they are not added up.
        """
        return max(self._oom_kills.values(), default=0)

    def _ask(self, do: str, **more: object) -> dict[str, Any]:
        return self._driver.ask(do, starts=False, run=self._number, **more)


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

    @property
    def name(self) -> str:
        return f"the Ray cluster at {self._driver.address}"

    def machines(self) -> tuple[Machine, ...]:
        """The nodes, each of which has looked at itself.

        How many GPUs Ray says that there are is an upper limit; ``nvidia-smi`` says what they are.
        """
        return tuple(facts.machine for facts in self._facts())

    def devices(self) -> tuple[Device, ...]:
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
