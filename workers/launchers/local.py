"""Ranks as processes of this machine, started directly and in one process group of their own."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tuner.errors import ProbeError
from tuner.machine import usable_cores
from workers.files import log_path, record_path
from workers.launchers.base import WATCH_FD, Ended, Job, RankEnd, Why
from workers.launchers.hostmemory import oom_kills
from workers.launchers.logs import log_tail
from workers.probe.orders import SPEC

FEED_S = 1.0
"""Seconds between two bytes to a rank."""
SILENCE_S = 20.0
"""Seconds without a byte after which ranks take us for gone: a busy machine holds us up for some
seconds, and others get our devices no sooner than a lease's end."""
REAP_S = 30.0
"""Seconds that a killed rank may take to be gone; longer means that a driver holds it."""
DROPPED_PREFIXES = ("TUNER_", "ACCELERATE_", "FSDP_", "TORCHELASTIC_", "MASTER_")
"""Of environment variables that ranks do not inherit: ours (a database's password may be in
one), and those by which another launcher's settings would leak into the probe's."""
DROPPED = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GROUP_RANK", "ROLE_RANK"})
"""More of them: a probe needs no access to anything."""


class LocalLauncher:
    """Starts ranks on this machine."""

    def start(self, job: Job) -> "LocalRun":
        """Start all ranks of ``job``.

        Raises:
            OSError: a rank could not be started; none is left.
        """
        run = LocalRun(job)
        run.start()
        return run


class LocalRun:
    """Ranks of one job on this machine.

    Ranks that ended stay unreaped until the job is over: their leader's number is the group's,
    and must not become another process's while the group may be signalled.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._feeds: list[int] = []
        self._ends: dict[int, RankEnd] = {}
        self._ended: Ended | None = None
        self._oom_kills = oom_kills()
        self._started = self._fed = time.monotonic()
        self._failed: float | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        """Process number of each rank; the first one's is the group's."""
        return tuple(rank.pid for rank in self._ranks)

    def start(self) -> None:
        """Start the ranks; see :meth:`LocalLauncher.start`."""
        try:
            for rank in range(self._job.ranks):
                self._start_rank(rank)
        except BaseException:
            self._stop(Why.CANCELLED)
            raise

    def poll(self) -> Ended | None:
        """Feed the ranks' watches, and end the job when it is over or must be."""
        if self._ended is not None:
            return self._ended
        self._feed()
        self._look()
        now = time.monotonic()
        if len(self._ends) == len(self._ranks):
            return self._stop(Why.ENDED)
        if now - self._started > self._job.deadline_s:
            return self._stop(Why.DEADLINE)
        if self._failed is not None and now - self._failed > self._job.peer_grace_s:
            return self._stop(Why.PEER_FAILED)
        return None

    def cancel(self) -> Ended:
        """End the job; returns when nothing of it is left."""
        if self._ended is not None:
            return self._ended
        self._look()
        return self._stop(Why.CANCELLED)

    def logs(self) -> Mapping[int, str]:
        """The end of each rank's output, by rank."""
        directory = self._job.directory
        return {rank: log_tail(log_path(directory, rank)) for rank in range(self._job.ranks)}

    def _start_rank(self, rank: int) -> None:
        read, write = os.pipe()  # neither end survives an exec, but for pass_fds
        self._feeds.append(write)
        os.set_blocking(write, False)
        try:
            with log_path(self._job.directory, rank).open("wb") as log:
                process = subprocess.Popen(
                    [str(read) if part == WATCH_FD else part for part in self._job.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=rank_environment(self._job, rank, os.environ),
                    pass_fds=(read,),
                    process_group=self._ranks[0].pid if self._ranks else 0,
                )
        finally:
            os.close(read)
        self._ranks.append(process)

    def _feed(self) -> None:
        now = time.monotonic()
        if now - self._fed < FEED_S:
            return
        self._fed = now
        for feed in self._feeds:
            with suppress(BrokenPipeError, BlockingIOError):  # ended, or stopped for a day
                os.write(feed, b".")

    def _look(self) -> None:
        """Note which ranks have ended, without reaping them."""
        for rank, process in enumerate(self._ranks):
            if rank not in self._ends and (code := _exit_code(process.pid)) is not None:
                self._note(rank, code, stopped=False)
                silent = not record_path(self._job.directory, rank).exists()
                if self._failed is None and (code != 0 or silent):
                    self._failed = time.monotonic()

    def _note(self, rank: int, code: int, *, stopped: bool) -> None:
        self._ends[rank] = RankEnd(rank=rank, code=code, ended_at=time.time(), stopped=stopped)

    def _stop(self, why: Why) -> Ended:
        """End what is left of the group, and reap it."""
        if len(self._ends) < len(self._ranks):
            self._signal(signal.SIGTERM)
            self._wait(self._job.term_grace_s)
        self._signal(signal.SIGKILL)  # also what ended ranks have left behind
        for feed in self._feeds:
            os.close(feed)
        self._feeds.clear()
        self._reap()
        self._ended = Ended(
            why=why,
            ranks=tuple(self._ends[rank] for rank in range(len(self._ranks))),
            wall_s=time.monotonic() - self._started,
            host_oom_kills=max(0, oom_kills() - self._oom_kills),
        )
        return self._ended

    def _signal(self, number: signal.Signals) -> None:
        if self._ranks:
            with suppress(ProcessLookupError):
                os.killpg(self._ranks[0].pid, number)

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if all(_exit_code(process.pid) is not None for process in self._ranks):
                return
            time.sleep(0.02)

    def _reap(self) -> None:
        for rank, process in enumerate(self._ranks):
            try:
                code = process.wait(REAP_S)
            except subprocess.TimeoutExpired:
                raise ProbeError(f"rank {rank} (process {process.pid}) cannot be killed") from None
            if rank not in self._ends:
                self._note(rank, code, stopped=True)


def probe_argv(directory: Path) -> tuple[str, ...]:
    """The command of every rank of the probe in ``directory``, on this machine."""
    files = ("--spec", str(directory / SPEC), "--init-method", f"file://{directory}/rendezvous")
    return _program_argv(directory, *files)


def series_argv(directory: Path) -> tuple[str, ...]:
    """The command of every rank of the probes that are ordered in ``directory``, one by one."""
    return _program_argv(directory, "--series")


def check_argv(directory: Path, device: str) -> tuple[str, ...]:
    """The command of every rank of a look at devices, which are cpu or cuda."""
    return _program_argv(directory, "--check", device)


def _program_argv(directory: Path, *what: str) -> tuple[str, ...]:
    program = (sys.executable, "-P", "-m", "workers.probe", *what, "--out", str(directory))
    return (*program, "--watch-fd", WATCH_FD, "--silence-s", f"{SILENCE_S:g}")


def rank_environment(job: Job, rank: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of one rank: ours without what must not leak, and its place."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(DROPPED_PREFIXES) and name not in DROPPED
    }
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(job.ranks),
        "OMP_NUM_THREADS": str(max(1, usable_cores() // (job.sharing or job.ranks))),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "USE_HUB_KERNELS": "NO",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a fatal signal leaves its traceback in the log
    }
    if job.device == "cpu":
        own["GLOO_SOCKET_IFNAME"] = "lo"  # the host's name may not resolve
    elif job.visible:
        # before python starts, since libraries may look for GPUs where they are imported: a mesh
        # of ranks that are not there must not be compared with the GPUs that are
        own["CUDA_VISIBLE_DEVICES"] = ",".join(job.visible)
    return kept | own


def _exit_code(pid: int) -> int | None:
    """The exit code of a child, or minus its signal, leaving it unreaped; ``None`` if it runs."""
    found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None or found.si_pid == 0:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
