"""Shared by all launchers: their interface, ranks' environment, and the watch over a job."""

import ipaddress
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from math import inf, isinf
from pathlib import Path
from typing import Any, Protocol

from tuner.core import lease
from tuner.environment import passed
from tuner.errors import ProbeError
from tuner.machine import end_first_for_memory, usable_cores
from tuner.serialization import Plain
from workers.measuring.records import log_path, log_tail, record_path

# In a job's argv: replaced by the number of the rank's end of the pipe to its supervisor.
WATCH_FD = "{watch_fd}"
# In a job's argv: replaced by how its ranks find each other: ``file`` or ``address``.
RENDEZVOUS = "{rendezvous}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Ranks to be started together."""

    argv: tuple[str, ...]
    """The command of every rank; elements :data:`WATCH_FD` and :data:`RENDEZVOUS` are replaced."""
    directory: Path
    """For the records and logs of the ranks (``workers/measuring/records.py`` names them)."""
    ranks: int
    device: str  # cpu or cuda
    deadline_s: float  # seconds after which all ranks are ended, whatever they do
    nodes: int = 1
    """Machines that they are spread over: equally many on each, in the order of ranks."""
    gpus_per_rank: int = 1
    """GPUs that each rank uses: one that starts others uses all that they do."""
    sharing: int | None = None
    """Ranks that share a node's cores, where they are not those that are started there."""
    visible: tuple[str, ...] = ()
    """GPUs that all ranks see, as CUDA_VISIBLE_DEVICES names them; where there are none, those that
    whatever starts them on a node sees."""
    peer_grace_s: float = 5.0
    """Seconds that the others get for their own records when one rank has failed: they may hang
    in a collective for good."""
    term_grace_s: float = 3.0  # seconds from SIGTERM to SIGKILL

    def __post_init__(self) -> None:
        assert self.ranks >= 1 <= self.nodes, (self.ranks, self.nodes)
        assert self.ranks % self.nodes == 0, (self.ranks, self.nodes)

    @property
    def ranks_per_node(self) -> int:
        return self.ranks // self.nodes

    @property
    def gpus_per_node(self) -> int:
        return self.ranks_per_node * self.gpus_per_rank

    def command(self, watch_fd: int) -> list[str]:
        """The command of a rank whose end of the pipe to its supervisor has this number."""
        how = "address" if self.nodes > 1 else "file"
        values = {WATCH_FD: str(watch_fd), RENDEZVOUS: how}
        return [values.get(part, part) for part in self.argv]

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values, in which no deadline is ``None``."""
        deadline_s = None if isinf(self.deadline_s) else self.deadline_s
        return {**asdict(self), "directory": str(self.directory), "deadline_s": deadline_s}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Job":
        lists = {name: tuple(values[name]) for name in ("argv", "visible")}
        deadline_s = inf if values["deadline_s"] is None else values["deadline_s"]
        directory = Path(values["directory"])
        return cls(**{**values, **lists, "directory": directory, "deadline_s": deadline_s})


class Why(StrEnum):
    ENDED = "ended"  # every rank ended by itself
    PEER_FAILED = "peer_failed"  # a rank failed, and others did not end in the grace after it
    DEADLINE = "deadline"  # the deadline passed
    CANCELLED = "cancelled"  # cancel() was called, or the scheduler takes the devices back
    NODE_LOST = "node_lost"  # a node that ranks ran on is gone
    TAKEN_AWAY = "taken_away"  # somebody else ended the ranks, on devices that are still there


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEnd(Plain):
    rank: int
    code: int  # exit code, or minus the signal's number, as subprocess has it
    ended_at: float  # unix seconds when its end was seen
    stopped: bool  # set if the launcher ended it
    host_oom_kills: int = 0
    """Processes that its node's kernel killed for want of memory while it ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a job ended. Nothing of it is left."""

    why: Why
    ranks: tuple[RankEnd, ...]
    wall_s: float  # seconds from the first rank's start to the last one's end
    detail: str = ""  # more on why, in words, where the ranks' own records cannot know it
    lost_nodes: tuple[int, ...] = ()
    """Nodes that are gone, counted from 0 in the order of ranks, where it is known."""
    node_devices: tuple[tuple[str, ...], ...] = ()
    """Names of all devices of each node, in the order of ranks; empty where they are not known."""

    @property
    def host_oom_kills(self) -> int:
        """Kills for want of host memory on one node: ranks of a node see the same ones."""
        return max(end.host_oom_kills for end in self.ranks)


class Run(Protocol):
    """A job that was started. It is supervised only while :meth:`poll` is called every second."""

    def poll(self) -> Ended | None:
        """Supervises; how the job ended, once it is over and nothing of it is left."""

    def cancel(self) -> Ended:
        """Ends the job; returns when nothing of it is left."""

    def logs(self) -> Mapping[int, str]:
        """The end of each rank's output, by rank, without terminal colors."""


class Launcher(Protocol):
    """A way to start ranks."""

    def start(self, job: Job) -> Run:
        """Starts all ranks of ``job``.

        Raises:
            OSError: a rank could not be started; none is left.
        """


def rank_environment(
    job: Job, rank: int, inherited: Mapping[str, str], *, address: str = ""
) -> dict[str, str]:
    """The environment of one rank: what may pass to it, and its place."""
    on_node = job.ranks_per_node
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % on_node),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(on_node),
        "OMP_NUM_THREADS": str(max(1, usable_cores() // (job.sharing or on_node))),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "USE_HUB_KERNELS": "NO",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a fatal signal leaves its traceback in the log
    }
    if address:
        own["MASTER_ADDR"] = address
    # GPUs are chosen before python starts, since libraries may look for them where they are
    # imported: a mesh of ranks that are not there must not be compared with the GPUs that are, and
    # ranks on the CPU must not take memory of a GPU, as libraries do that only ask what it can
    if job.device == "cpu":
        own["CUDA_VISIBLE_DEVICES"] = ""
        try:
            is_loopback = ipaddress.ip_address(address).is_loopback
        except ValueError:
            is_loopback = address == "localhost"
        if job.nodes == 1 or is_loopback:
            own["GLOO_SOCKET_IFNAME"] = "lo"  # the host's name may not resolve
    elif job.visible:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(job.visible)
    return passed(inherited) | own


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Kills so far: of this process's cgroup (v2) where it is counted, else of the machine.

    Two calls are compared; 0 where nothing counts them. Sources: ``memory.events`` in the
    kernel's admin-guide/cgroup-v2, and ``oom_kill`` of /proc/vmstat.
    """
    places = [proc / "vmstat"]
    for line in _lines(proc / "self" / "cgroup"):
        if line.startswith("0::/"):
            places.insert(0, cgroups / line.removeprefix("0::/") / "memory.events")
    for place in places:
        for line in _lines(place):
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []


# Code of a rank whose program could not be started, as shells have it.
NOT_STARTED = 127
# Seconds that a killed rank may take to be gone; longer means that a driver holds it.
REAP_S = 30.0


class RankProcess:
    """One rank of a job as a child of this process, in a process group of its own."""

    def __init__(self, job: Job, rank: int, environment: Mapping[str, str]) -> None:
        self.job, self._rank, self._environment = job, rank, environment
        self._oom_kills = oom_kills()
        self._process: subprocess.Popen[bytes] | None = None
        self._feed: int | None = None
        self._is_stopped = False
        self._end: RankEnd | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Starts the rank; its output is its log. Raises OSError: it cannot be started."""
        read, feed = os.pipe()  # neither end survives an exec, but for pass_fds
        os.set_blocking(feed, False)
        try:
            with log_path(self.job.directory, self._rank).open("wb") as log:
                self._process = subprocess.Popen(
                    self.job.command(read),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                    pass_fds=(read,),
                    process_group=0,
                )
            end_first_for_memory(self._process.pid)
        except BaseException:
            os.close(feed)
            raise
        finally:
            os.close(read)
        self._feed = feed

    def feed(self) -> None:
        """Has the rank hear that its supervisor is there."""
        if self._feed is not None:
            with suppress(BrokenPipeError, BlockingIOError):  # ended, or stopped for a day
                os.write(self._feed, b".")

    def poll(self) -> RankEnd | None:
        """How the rank ended; ``None`` while it runs. Nothing of it is left afterwards. Raises
        ProbeError: it ended, and what it left behind cannot be killed."""
        if self._end is None and self._process is not None:
            # unreaped: its number is the group's, and must not become another process's before the
            # group is signalled
            pid = self._process.pid
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None and found.si_pid:
                self.kill()
        return self._end

    def ask_to_end(self) -> None:
        """Asks the rank to end, if it runs."""
        if self.poll() is None:
            self._is_stopped = True
            self.send(signal.SIGTERM)

    def kill(self) -> RankEnd:
        """Ends the rank, and what it has left behind; how it ended."""
        if self._end is not None:
            return self._end
        code = NOT_STARTED
        if self._process is not None:
            self.send(signal.SIGKILL)
            try:
                code = self._process.wait(REAP_S)
            except subprocess.TimeoutExpired:
                text = f"rank {self._rank} (process {self._process.pid}) cannot be killed"
                raise ProbeError(text) from None
        if self._feed is not None:
            os.close(self._feed)
            self._feed = None
        self._end = RankEnd(
            rank=self._rank,
            code=code,
            ended_at=time.time(),
            stopped=self._is_stopped,
            host_oom_kills=max(0, oom_kills() - self._oom_kills),
        )
        return self._end

    def send(self, number: signal.Signals) -> None:
        """Sends a signal to the rank and to all that it started, unless it has ended."""
        if self._end is None and self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def end_ranks(ranks: Sequence[RankProcess]) -> list[RankEnd]:
    """Ends ranks that were started: how each ended, of those that had ended too."""
    for rank in ranks:
        rank.ask_to_end()
    until = time.monotonic() + max((rank.job.term_grace_s for rank in ranks), default=0.0)
    while any(rank.poll() is None for rank in ranks) and time.monotonic() < until:
        time.sleep(0.02)
    for rank in ranks:  # all of them, before one is waited for that may not die
        rank.send(signal.SIGKILL)
    return [rank.kill() for rank in ranks]


# Seconds between two bytes to a rank.
FEED_S = 1.0
# Seconds without a byte after which ranks take us for gone: a busy machine holds us up for some
# seconds, and others get our devices no sooner than a lease's end.
SILENCE_S = lease.LEASE_S / 3


class SupervisedRun(ABC):
    """A job that was started; how ranks are reached is a launcher's matter."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ends: dict[int, RankEnd] = {}
        self._ended: Ended | None = None
        self._started = self._fed = time.monotonic()
        self._failed: float | None = None
        # Of :class:`workers.launchers.base.Ended`, as known when nothing of the job is left.
        self._lost_nodes: tuple[int, ...] = ()
        self._node_devices: tuple[tuple[str, ...], ...] = ()

    @abstractmethod
    def feed(self) -> None:
        """Has every rank that lives hear of us; called once in :data:`FEED_S`."""

    @abstractmethod
    def look(self) -> Iterable[RankEnd]:
        """Ranks that have ended, those that were told before among them or not."""

    @abstractmethod
    def stop(self) -> Iterable[RankEnd]:
        """Ends what is left: how those ended whose end was not told before."""

    def why_lost(self) -> tuple[Why, str] | None:
        """Tells that others than we or the ranks end the job, with the detail; else ``None``."""
        return None

    def poll(self) -> Ended | None:
        """Feeds the ranks' watches, and end the job when it is over or must be."""
        if self._ended is not None:
            return self._ended
        now = time.monotonic()
        if now - self._fed >= FEED_S:
            self._fed = now
            self.feed()
        self._note_ends()
        if lost := self.why_lost():
            return self._finish(*lost)
        if len(self._ends) == self._job.ranks:
            return self._finish(Why.ENDED)
        if now - self._started > self._job.deadline_s:
            return self._finish(Why.DEADLINE)
        if self._failed is not None and now - self._failed > self._job.peer_grace_s:
            return self._finish(Why.PEER_FAILED)
        return None

    def cancel(self) -> Ended:
        """Ends the job; returns when nothing of it is left."""
        if self._ended is not None:
            return self._ended
        self._note_ends()
        return self._finish(Why.CANCELLED)

    def logs(self) -> Mapping[int, str]:
        directory = self._job.directory
        return {rank: log_tail(log_path(directory, rank)) for rank in range(self._job.ranks)}

    def _note_ends(self) -> None:
        for end in self.look():
            if end.rank in self._ends:
                continue
            self._ends[end.rank] = end
            silent = not record_path(self._job.directory, end.rank).exists()
            if self._failed is None and (end.code != 0 or silent):
                self._failed = time.monotonic()

    def _finish(self, why: Why, detail: str = "") -> Ended:
        for end in self.stop():
            self._ends.setdefault(end.rank, end)
        self._ended = Ended(
            why=why,
            ranks=tuple(self._ends[rank] for rank in range(self._job.ranks)),
            wall_s=time.monotonic() - self._started,
            detail=detail,
            lost_nodes=self._lost_nodes,
            node_devices=self._node_devices,
        )
        return self._ended
