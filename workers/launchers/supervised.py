"""Watches over a job from the worker's process, and ends it in time, for all launchers."""

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from tuner.core import lease
from workers.launchers.base import Ended, Job, RankEnd, Why
from workers.measuring.files import log_path, log_tail, record_path

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
        self._oom_kills = 0
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
        """Ends what is left: how those ended whose end was not told before. Nothing is left then.

        Raises:
            ProbeError: a rank cannot be killed.
        """

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
        """The end of each rank's output, by rank."""
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
        """Ends what is left of the job, and tell how it ended."""
        for end in self.stop():
            self._ends.setdefault(end.rank, end)
        self._ended = Ended(
            why=why,
            ranks=tuple(self._ends[rank] for rank in range(self._job.ranks)),
            wall_s=time.monotonic() - self._started,
            host_oom_kills=self._oom_kills,
            detail=detail,
            lost_nodes=self._lost_nodes,
            node_devices=self._node_devices,
        )
        return self._ended


def exit_code(pid: int) -> int | None:
    """The exit code of a child, or minus its signal, leaving it unreaped; ``None`` if it runs."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None or found.si_pid == 0:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
