"""Ranks as processes of this machine, started directly and in one process group of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tuner.errors import ProbeError
from workers.launchers.base import (
    RENDEZVOUS,
    SILENCE_S,
    WATCH_FD,
    Job,
    RankEnd,
    SupervisedRun,
    exit_code,
    oom_kills,
    rank_environment,
    start_process,
)
from workers.probe.orders import SPEC

# Seconds that a killed rank may take to be gone; longer means that a driver holds it.
REAP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher:
    """Starts ranks on this machine."""

    inherited: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The environment of which ranks get what may pass; by default this process's."""

    def start(self, job: Job) -> "LocalRun":
        assert job.nodes == 1, job.nodes
        run = LocalRun(job, self.inherited)
        try:
            for rank in range(job.ranks):
                run.start_rank(rank)
        except BaseException:
            list(run.stop())
            raise
        return run


class LocalRun(SupervisedRun):
    """Ranks of one job on this machine.

    Ranks that ended stay unreaped until the job is over: their leader's number is the group's,
    and must not become another process's while the group may be signalled.
    """

    def __init__(self, job: Job, inherited: Mapping[str, str]) -> None:
        super().__init__(job)
        self._inherited = inherited
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._feeds: list[int] = []
        self._oom_kills_before = oom_kills()

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(rank.pid for rank in self._ranks)

    def feed(self) -> None:
        for feed in self._feeds:
            with suppress(BrokenPipeError, BlockingIOError):  # ended, or stopped for a day
                os.write(feed, b".")

    def look(self) -> Iterator[RankEnd]:
        for rank, process in enumerate(self._ranks):
            if rank not in self._ends and (code := exit_code(process.pid)) is not None:
                yield RankEnd(rank=rank, code=code, ended_at=time.time(), stopped=False)

    def stop(self) -> Iterator[RankEnd]:
        if len(self._ends) < len(self._ranks):
            self._signal(signal.SIGTERM)
            until = time.monotonic() + self._job.term_grace_s
            while None in map(exit_code, self.pids) and time.monotonic() < until:
                time.sleep(0.02)
        self._signal(signal.SIGKILL)  # also what ended ranks have left behind
        for feed in self._feeds:
            os.close(feed)
        self._feeds.clear()
        for rank, process in enumerate(self._ranks):
            try:
                code = process.wait(REAP_S)
            except subprocess.TimeoutExpired:
                pid = process.pid
                raise ProbeError(f"rank {rank} (process {pid}) cannot be killed") from None
            yield RankEnd(rank=rank, code=code, ended_at=time.time(), stopped=True)
        self._oom_kills = max(0, oom_kills() - self._oom_kills_before)

    def start_rank(self, rank: int) -> None:
        environment = rank_environment(self._job, rank, self._inherited)
        group = self._ranks[0].pid if self._ranks else 0
        process, feed = start_process(self._job, rank, environment, group)
        self._feeds.append(feed)
        self._ranks.append(process)

    def _signal(self, number: signal.Signals) -> None:
        if self._ranks:
            with suppress(ProcessLookupError):
                os.killpg(self._ranks[0].pid, number)


def probe_argv(directory: Path) -> tuple[str, ...]:
    """The command of every rank of the probe in ``directory``, on this machine."""
    files = ("--spec", str(directory / SPEC), "--init-method", f"file://{directory}/rendezvous")
    return _program_argv(directory, *files)


def series_argv(directory: Path) -> tuple[str, ...]:
    """The command of every rank of the probes that are ordered in ``directory``, one by one."""
    return _program_argv(directory, "--series", "--rendezvous", RENDEZVOUS)


def _program_argv(directory: Path, *what: str) -> tuple[str, ...]:
    program = (sys.executable, "-P", "-m", "workers.probe", *what, "--out", str(directory))
    return (*program, "--watch-fd", WATCH_FD, "--silence-s", f"{SILENCE_S:g}")
