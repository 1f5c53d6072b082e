"""The nodes of a Ray cluster as the site of a worker's probes: the worker's side.

Ray is spoken to by a process of its own (``driver.py``), which ends when its cluster does, takes
signals as it likes and prints what it wants. The worker asks it by lines of JSON.
"""

import itertools
import json
import logging
import math
import os
import secrets
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from signal import SIGKILL
from typing import Any

from tuner.environment import passed
from tuner.errors import ProbeError, UsageError
from tuner.machine import Machine
from workers.devices import Device
from workers.launchers.base import Job, RankEnd, SupervisedRun, Why
from workers.launchers.site import Facts, devices_of
from workers.measuring.records import default_probes_folder, make_folder, remove_folder

# Seconds to connect, or to start a cluster on a slow machine.
CONNECT_S = 120.0
# Seconds for an answer, most of which come in milliseconds.
ANSWER_S = 60.0
# Seconds that the process gets to take leave of the cluster.
LEAVE_S = 15.0
# Seconds that Ray gets to place a job: others may have what it has for a while.
PLACE_S = 60.0
# Seconds beyond the grace of a job that its ranks get to be ended; Ray kills their actors then.
END_S = 5.0
# Between two looks at ranks that are being ended.
POLL_S = 0.02
ABOUT_TOKENS = "https://docs.ray.io/en/latest/ray-security/token-auth.html"

log = logging.getLogger(__name__)


def environment(address: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that speaks to Ray.

    A cluster of our own gets a token of our own, and is bound to the loopback interface. One that
    is there must ask for a token: else whoever reaches it runs what they like there.
    """
    rays = {name: value for name, value in inherited.items() if name.startswith("RAY_")}
    own = {"RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
    if address:
        # CVE-2023-48022; the places for a token are in Ray's own order (ABOUT_TOKENS)
        off = inherited.get("RAY_AUTH_MODE", "token").lower() != "token"
        path = inherited.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token"
        if off or not (inherited.get("RAY_AUTH_TOKEN") or Path(path).is_file()):
            raise UsageError(
                "ray",
                address,
                "must be a cluster with token authentication: set RAY_AUTH_MODE=token, and have"
                " RAY_AUTH_TOKEN or ~/.ray/auth_token, here and on all of its nodes"
                f" ({ABOUT_TOKENS})",
            )
    else:
        for name in ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"):
            rays.pop(name, None)
        own["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
        # On macOS Ray binds a cluster of one node to 127.0.0.1; this has it do so on Linux too.
        own["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return passed(inherited) | rays | own


class RayDriver:
    """A process that speaks to Ray. One that has ended is started again by the next question."""

    def __init__(self, address: str = "") -> None:
        if find_spec("ray") is None:
            raise UsageError("launcher", "ray", "needs Ray: pip install 'tuner[ray]'")
        if address.startswith("ray://"):
            raise UsageError(
                "ray", address, "must be HOST:PORT of the cluster, from one of its own nodes"
            )
        self.address = address
        """Of the cluster, as it was given; once it is connected to, as Ray tells it."""
        self._given = address
        self._process: subprocess.Popen[str] | None = None
        self._folder = Path()
        self._lock = threading.RLock()

    def start(self) -> None:
        with self._lock:
            own = environment(self._given, os.environ)
            # a folder of its own: Ray has its workers import what is in this process's
            self._folder = make_folder(default_probes_folder(), "driver")
            program = [sys.executable, "-P", "-m", "workers.launchers.ray.driver"]
            with (self._folder / "driver.log").open("wb") as output:
                self._process = subprocess.Popen(
                    [*program, *(["--address", self._given] if self._given else [])],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    env=own,
                    cwd=self._folder,
                    text=True,
                    process_group=0,  # Ctrl-C is for the worker, which then ends it
                )
            found = self._read(self._process, CONNECT_S)
            if "refused" in found:
                self.close()
                given = self._given or "a cluster of this machine"
                raise UsageError("ray", given, found["refused"])
            self.address = found["address"]
            log.info("connected to Ray %s at %s", found["ray"], self.address)

    def ask(self, do: str, *, starts: bool = True, **more: object) -> dict[str, Any]:
        """The answer of the process to a request (``driver.py`` names them).

        One that has ended is started again, unless ``starts`` is off. Raises ProbeError: there is
        no answer; the text says why.
        """
        with self._lock:
            if self._process is None and not starts:
                raise ProbeError("the connection to Ray is lost")
            if self._process is None:
                try:
                    self.start()
                except UsageError as error:  # a cluster that could be used may be away for a while
                    raise ProbeError(str(error)) from error
            process = self._process
            assert process is not None
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps({"do": do, **more}) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                raise self._gone("it has ended") from None
            answer = self._read(process, ANSWER_S)
        if "error" in answer:
            raise ProbeError(answer["error"])
        return answer

    def close(self) -> None:
        with self._lock:
            process, self._process = self._process, None
            if process is None:
                return
            assert process.stdin is not None
            assert process.stdout is not None
            with suppress(BrokenPipeError):
                process.stdin.close()
            try:
                process.wait(LEAVE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
            remove_folder(self._folder)

    def _read(self, process: "subprocess.Popen[str]", seconds: float) -> dict[str, Any]:
        # the next line holds all that there is to read
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            raise self._gone(f"it did not answer within {seconds:.0f} s")
        line = process.stdout.readline()
        if not line.endswith("\n"):
            raise self._gone("it has ended")
        values: dict[str, Any] = json.loads(line)
        return values

    def _gone(self, why: str) -> ProbeError:
        text = (self._folder / "driver.log").read_text("utf-8", errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        self.close()
        last = f" ({lines[-1][:300]})" if lines else ""
        return ProbeError(f"the connection to Ray is lost: {why}{last}")


class RayLauncher:
    def __init__(self, driver: RayDriver) -> None:
        self._driver = driver
        self._numbers = itertools.count(1)

    def start(self, job: Job) -> "RayRun":
        number = next(self._numbers)
        self._driver.ask("start", run=number, job=job.as_dict(), program=sys.executable)
        return RayRun(self._driver, number, job)


class RayRun(SupervisedRun):
    def __init__(self, driver: RayDriver, number: int, job: Job) -> None:
        super().__init__(job)
        self._driver = driver
        self._number = number
        self._is_to_feed = False
        self._is_placed = False
        self._lost = ""
        self._trouble: ProbeError | None = None

    def feed(self) -> None:
        self._is_to_feed = True  # the next look says so

    def look(self) -> Iterator[RankEnd]:
        try:
            found = self._ask("look", feed=self._is_to_feed)
        except ProbeError as error:
            self._trouble = error
            return
        self._is_to_feed = False
        if found["runs"] and not self._is_placed:  # nodes that are lost later had them too
            self._node_devices = tuple(map(tuple, found["devices"]))
        self._is_placed |= found["runs"]
        self._lost, self._lost_nodes = found["lost"], tuple(found["lost_nodes"])
        yield from map(RankEnd.from_dict, found["ends"])

    def why_lost(self) -> tuple[Why, str] | None:
        if self._trouble is not None:
            raise self._trouble
        if not self._is_placed and time.monotonic() - self._started > PLACE_S:
            raise ProbeError(
                f"Ray has found no place for {self._job.ranks} ranks on {self._job.nodes} nodes"
                f" within {PLACE_S:.0f} s: others use what it has"
            )
        return (Why.NODE_LOST, self._lost) if self._lost else None

    def stop(self) -> Iterator[RankEnd]:
        """Ends the ranks, and gives the place back.

        Where Ray cannot be asked any more, it ends the ranks itself: their job's process is gone.
        """
        with suppress(ProbeError):
            if len(self._ends) < self._job.ranks and self._is_placed:
                self._ask("stop")
                until = time.monotonic() + self._job.term_grace_s + END_S
                while len(self._ends) < self._job.ranks and time.monotonic() < until:
                    self._note_ends()
                    time.sleep(POLL_S)
            self._ask("close")
        for rank in range(self._job.ranks):
            yield RankEnd(rank=rank, code=-SIGKILL, ended_at=time.time(), stopped=True)

    def _ask(self, do: str, **more: object) -> dict[str, Any]:
        return self._driver.ask(do, starts=False, run=self._number, **more)


class RaySite:
    """The nodes of a Ray cluster that are of one kind."""

    is_here = False
    left_s = math.inf

    def __init__(self, driver: RayDriver) -> None:
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
        left_out = {f"{address}: {why}" for address, why in found["left_out"].items()}
        if not found["nodes"]:
            why = "; ".join(sorted(left_out)) or "none"
            raise ProbeError(f"no node of {self.name} can be used ({why})")
        for line in sorted(left_out - self._told):
            log.warning("a node of %s is not used, %s", self.name, line)
        self._told |= left_out
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
