"""Ranks as tasks of Slurm steps (``srun``) in the allocation that the worker is in.

One srun for the ranks of a job. Each of its tasks is :mod:`workers.launchers.task`, which hears of
the supervisor through srun's standard input, and tells of its rank's end by a file. The job's
folder must be on a file system that all nodes see.
"""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tuner.errors import ProbeError
from workers.launchers.base import Job, RankEnd, Why
from workers.launchers.environment import kept_environment
from workers.launchers.slurm_watch import NodeState, Watch
from workers.launchers.supervised import SupervisedRun
from workers.launchers.task import ALIVE, STOP, read_end
from workers.measuring.files import end_path, log_path, log_tail, write_json

# As here: nodes share what is installed.
PYTHON = sys.executable
JOB = "job.json"
STEP_LOG = "srun.log"
# Beside a job's grace, that srun gets to end after its tasks were told to; then it is made to.
END_S = 15.0
# For srun to start ranks, which takes a second. While it waits for something of Slurm's, a probe's
# deadline would pass, and say of the settings that they are slow.
START_S = 180.0
# For srun to end when all its tasks have.
LINGER_S = 1.0
# For files of other nodes to be seen here when their tasks have ended.
FILES_S = 5.0
KILLED = -9
# What srun says where there is none to turn off.
NO_MATTER = "lacks support for cpu binding"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLauncher:
    """Starts ranks on the first nodes of an allocation that are not lost."""

    job_id: str
    watch: Watch
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of each node's devices, where they are known."""

    def start(self, job: Job) -> "SlurmRun":
        """Starts all ranks of ``job``.

        Raises:
            OSError: srun could not be started.
            ProbeError: the allocation has not enough nodes.
        """
        nodes = self.watch.nodes
        if len(nodes) < job.nodes:
            up = f"{len(nodes)} of {self.watch.name} {'is' if len(nodes) == 1 else 'are'} up"
            raise ProbeError(f"{job.nodes} nodes are needed, and {up}")
        chosen = nodes[: job.nodes]
        addresses = {node.name: node.address for node in chosen}
        write_json(job.directory / JOB, {"job": job.as_dict(), "addresses": addresses})
        return SlurmRun(job, self.job_id, self.watch, chosen, self.devices)


class SlurmRun(SupervisedRun):
    """Ranks of one job, as the tasks of one step."""

    def __init__(
        self,
        job: Job,
        job_id: str,
        watch: Watch,
        nodes: Sequence[NodeState],
        devices: Mapping[str, tuple[str, ...]],
    ) -> None:
        super().__init__(job)
        self._watch = watch
        self._devices = devices
        self._nodes = tuple(node.name for node in nodes)
        self._oom_kills = 0
        self._has_begun = False
        argv = step_argv(job_id, self._nodes, job.ranks)
        program = (PYTHON, "-P", "-m", "workers.launchers.task")
        with (job.directory / STEP_LOG).open("wb") as words:
            self._srun = subprocess.Popen(
                [*argv, *program, str(job.directory / JOB)],
                stdin=subprocess.PIPE,
                stdout=words,
                stderr=subprocess.STDOUT,
                env=step_environment(),
                start_new_session=True,  # a terminal's Ctrl-C is for the worker
            )
        assert self._srun.stdin is not None
        self._feed = self._srun.stdin.fileno()
        os.set_blocking(self._feed, False)

    def feed(self) -> None:
        self._say(ALIVE)  # srun passes it on to all tasks

    def look(self) -> Iterator[RankEnd]:
        folder = self._job.directory
        there = set(folder.glob("*.end.json"))  # at once: ranks may be thousands, and far away
        for rank in range(self._job.ranks):
            is_new = rank not in self._ends and end_path(folder, rank) in there
            if is_new and (found := self._read_end(rank)) is not None:
                yield found

    def why_lost(self) -> tuple[Why, str] | None:
        """Tells that a node is gone, or that somebody else ends the step.

        Raises:
            ProbeError: srun does not start the ranks.
        """
        if not self._begins() and time.monotonic() - self._started > START_S:
            words = first_words(self._job.directory / STEP_LOG) or "it says nothing"
            raise ProbeError(f"srun has not started the ranks within {START_S:.0f} s: {words}")
        ended, stopped = self._srun.poll() is not None, self._any_stopped()
        if not stopped and len(self._ends) == self._job.ranks:
            return None
        if why := self._watch.end_if_over():
            return Why.CANCELLED, why
        if words := self._lost_nodes():
            return Why.NODE_LOST, words
        if not stopped and (not ended or self._has_all_files()):
            return None
        return self._why_taken()

    def lost_nodes(self) -> tuple[int, ...]:
        lost = self._watch.lost(self._nodes)
        return tuple(place for place, name in enumerate(self._nodes) if name in lost)

    def node_devices(self) -> tuple[tuple[str, ...], ...]:
        known = self._devices.keys() >= {*self._nodes}
        return tuple(self._devices[name] for name in self._nodes) if known else ()

    def stop(self, why: Why) -> Iterator[RankEnd]:
        self._say(STOP)  # tasks end their ranks, and srun ends with them
        self._end_step()
        with suppress(BrokenPipeError):
            assert self._srun.stdin is not None
            self._srun.stdin.close()
        self._has_all_files()
        for rank in range(self._job.ranks):
            end = self._read_end(rank)
            yield end or RankEnd(rank=rank, code=KILLED, ended_at=time.time(), stopped=True)

    def host_oom_kills(self) -> int:
        return self._oom_kills

    def _say(self, what: bytes) -> None:
        with suppress(BrokenPipeError, BlockingIOError):  # ended, or held up for a day
            os.write(self._feed, what)

    def _read_end(self, rank: int) -> RankEnd | None:
        try:
            found = read_end(self._job.directory, rank)
        except ValueError as error:
            raise ProbeError(f"a task's end cannot be read: {error}") from error
        if found is None:
            return None
        end, kills = found
        self._oom_kills = max(self._oom_kills, kills)
        return end

    def _begins(self) -> bool:
        """True once rank 0 was started, or tried to be."""
        self._has_begun = self._has_begun or log_path(self._job.directory, 0).exists()
        return self._has_begun

    def _any_stopped(self) -> bool:
        return any(end.stopped for end in self._ends.values())

    def _has_all_files(self) -> bool:
        """True once all tasks have told of their ends; the file system has a moment for it."""
        until = time.monotonic() + (FILES_S if self._srun.returncode == 0 else 0)
        while True:
            self._note_ends()
            if len(self._ends) == self._job.ranks:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(0.05)

    def _why_taken(self) -> tuple[Why, str]:
        """Why the step has ended, or is ending, without us."""
        self._watch.look()
        if why := self._watch.end_if_over():
            return Why.CANCELLED, why
        if words := self._lost_nodes():
            return Why.NODE_LOST, words
        self._srun.poll()
        words = first_words(self._job.directory / STEP_LOG)
        if not self._ends and not self._begins():
            raise ProbeError(f"srun could not start the ranks: {words or 'it says nothing'}")
        return Why.TAKEN_AWAY, f"the Slurm step was ended from outside{words and f': {words}'}"

    def _lost_nodes(self) -> str:
        """Names the nodes that have gone down; empty if none has.

        Where too few are left for such ranks, the worker has nothing more to do.
        """
        lost = self._watch.lost(self._nodes)
        if not lost:
            return ""
        words = f"{node_words(lost)} of {self._watch.name} went down"
        left = len(self._watch.nodes)
        if left < self._job.nodes:
            self._watch.give_up(f"{words}, and {left} of the {self._job.nodes} needed are left")
        return words

    def _end_step(self) -> None:
        """Waits until srun has ended, and make it."""
        self._wait_for_srun(self._job.term_grace_s + END_S)
        for force in (self._srun.terminate, self._srun.kill):
            if self._srun.poll() is None:
                force()
                with suppress(subprocess.TimeoutExpired):
                    self._srun.wait(END_S)
        if self._srun.poll() is None:
            raise ProbeError(f"srun (process {self._srun.pid}) cannot be killed")

    def _wait_for_srun(self, seconds: float) -> None:
        """Waits for its end, but not for long when no task is left that it could wait for."""
        until = time.monotonic() + seconds
        while self._srun.poll() is None and time.monotonic() < until:
            self._note_ends()
            if all(rank in self._ends or self._is_lost(rank) for rank in range(self._job.ranks)):
                break
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            self._srun.wait(LINGER_S)

    def _is_lost(self, rank: int) -> bool:
        return bool(self._watch.lost((self._nodes[rank // self._job.ranks_per_node],)))


def step_argv(job_id: str, nodes: Sequence[str], tasks: int) -> tuple[str, ...]:
    """The start of an srun command whose tasks are spread over nodes of an allocation.

    All that the nodes' share of the allocation has is theirs: the worker's own step, and another
    one, may run beside them. Who binds them to cores or GPUs is the probe program, as elsewhere.
    """
    return (
        "srun",
        f"--jobid={job_id}",
        "--job-name=tuner-probe",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={tasks}",
        f"--ntasks-per-node={tasks // len(nodes)}",
        "--distribution=block",
        "--overlap",
        "--overcommit",
        "--mem=0",
        "--cpu-bind=none",
        "--gpu-bind=none",
        "--mpi=none",
        "--input=all",
        "--kill-on-bad-exit=0",
        "--wait=0",
        "--quiet",
    )


def step_environment() -> dict[str, str]:
    """The environment of srun and its tasks: no secrets, and not the allocation's shape.

    Options of an allocation come as variables that srun takes for its own, such as
    SLURM_CPUS_PER_TASK; the job's number, and where Slurm is configured, stay.
    """
    kept = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID")
    return {
        name: value
        for name, value in kept_environment(os.environ).items()
        if name in kept or not name.startswith(("SLURM_", "SRUN_", "SBATCH_", "PMI", "OMPI_"))
    }


def node_words(names: Sequence[str]) -> str:
    """``node n1``, or ``nodes n1, n2``."""
    return f"node{'s' if len(names) > 1 else ''} {', '.join(names)}"


def first_words(path: Path) -> str:
    """The first words of srun, nearest to the cause, in a line of at most 300 characters."""
    lines = (line.strip() for line in log_tail(path).splitlines())
    return "; ".join(line for line in lines if line and not line.endswith(NO_MATTER))[:300]
