"""The state of a Slurm allocation and its nodes: one look every few seconds, for all who ask."""

import logging
import os
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from tuner.errors import ProbeError
from workers.stop import StopRequest

# For one answer: a controller that is busy takes seconds.
TIMEOUT_S = 20.0
# States of a job that has nodes no more, or not for long: it ends, or waits, since it was queued
# again (squeue(1)).
OVER = frozenset({
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL",
    "OUT_OF_MEMORY", "PENDING", "PREEMPTED", "REQUEUED", "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT",
    "SUSPENDED", "STOPPED", "TIMEOUT",
})  # fmt: skip
JOB_FORMAT = "%A|%T|%e|%N|%r"
# How states of nodes begin on which nothing runs any more (sinfo(1)); ``drain`` is not one.
LOST = ("down", "fail", "error", "unk", "power")
# A state of a node that still runs what it runs.
FAILING = "failing"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """A job, in the words of the controller."""

    state: str  # `RUNNING` or another word of squeue(1)
    reason: str  # why it waits, where it does; else `None`
    ends_at: float  # unix seconds of the end of its time; infinite without a limit
    nodes: str  # its nodes, as Slurm writes several names in one

    @property
    def is_over(self) -> bool:
        """True if nothing is to be run in it any more."""
        return self.state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node, in the words of the controller."""

    name: str
    state: str  # `mixed` or another word of sinfo(1); with `*` if it does not answer
    address: str  # by which others reach it

    @property
    def is_lost(self) -> bool:
        """True if nothing runs there any more."""
        return self.state.startswith(LOST) and not self.state.startswith(FAILING)


class NoJobError(ProbeError):
    """Slurm knows the job no more."""


def job_state(job_id: str) -> JobState:
    """The state of a job."""
    try:
        lines = _ask("squeue", "--noheader", "--all", f"--jobs={job_id}", f"--format={JOB_FORMAT}")
    except NoJobError:
        lines = ()
    # An array, or a job of several components, has the number of one of its jobs: all are told.
    told = next((line for line in lines if line.startswith(f"{job_id}|")), None)
    if told is None:
        raise NoJobError(f"Slurm knows no job {job_id} any more")
    _, state, end, nodes, reason = told.split("|", 4)
    ends_at = float(end) if end.isdecimal() else float("inf")
    return JobState(state=state, reason=reason, ends_at=ends_at, nodes=nodes)


def node_states(nodes: str) -> dict[str, NodeState]:
    """The state of nodes, by name, in Slurm's own order."""
    names = _ask("scontrol", "show", "hostnames", nodes)
    found: dict[str, NodeState] = {}
    which = ("--all", "--Node", f"--nodes={nodes}")  # all: also those of hidden partitions
    for line in _ask("sinfo", "--noheader", *which, "--format=%N|%T|%o"):
        name, state, address = line.split("|")
        found[name] = NodeState(name=name, state=state.lower(), address=address)
    return {name: found[name] for name in names if name in found}


def _ask(*argv: str) -> Sequence[str]:
    # without what changes whom the commands ask, or the answer
    others = ("SQUEUE_", "SINFO_", "SLURM_CLUSTERS", "SLURM_JSON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ProbeError(f"Slurm does not answer: {argv[0]} took {TIMEOUT_S:.0f} s") from error
    except OSError as error:
        raise ProbeError(f"Slurm does not answer: {error}") from error
    if done.returncode == 0:
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]
    words = " ".join(done.stderr.split())
    if "Invalid job id" in words:
        raise NoJobError(words)
    raise ProbeError(f"Slurm does not answer: {words or f'{argv[0]} ended with {done.returncode}'}")


# Between two looks: a controller serves thousands of jobs.
POLL_S = 5.0
# Before the end of an allocation's time at which a worker gives its probes back and leaves.
LEAVE_S = 30.0

log = logging.getLogger(__name__)


class Watch:
    """The state of the allocation that this process is in; asks for a stop when that is over.

    A context: the looks are a thread's.
    """

    def __init__(self, job_id: str, stop: StopRequest, *, poll_s: float = POLL_S) -> None:
        """Looks at the allocation once."""
        self.name = f"Slurm job {job_id}"
        self._job_id = job_id
        self.stop = stop
        self._poll_s = poll_s
        self._done = threading.Event()
        self._looking = threading.Lock()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="slurm")
        self._job: JobState = job_state(job_id)
        if self._job.is_over:
            raise ProbeError(f"{self.name} is {self._job.state}")
        found = node_states(self._job.nodes)
        self._nodes = {name: node for name, node in found.items() if not node.is_lost}
        self._told = self._gone = ""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    @property
    def nodes(self) -> tuple[NodeState, ...]:
        """Nodes of the allocation that are not lost, rank 0's first."""
        return tuple(self._nodes.values())

    @property
    def left_s(self) -> float:
        """Seconds until this worker has to leave; infinite without a time limit."""
        return self._job.ends_at - LEAVE_S - time.time()

    def lost(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Picks those on which nothing runs any more, as far as Slurm has found out."""
        return tuple(name for name in names if name not in self._nodes)

    def look(self) -> None:
        """Asks Slurm now; what it says is told to whoever must know. Trouble is logged, once."""
        with self._looking:
            try:
                self._job = job_state(self._job_id)
                found = node_states(self._job.nodes) if self._job.nodes else {}
            except NoJobError as error:
                self._gone = str(error)
            except ProbeError as error:
                if str(error) != self._told:
                    log.warning("%s", error)
                self._told = str(error)
            else:
                self._told = ""
                for name in self._nodes:
                    if name not in found:
                        log.warning("node %s is not of %s any more", name, self.name)
                    elif found[name].is_lost:
                        log.warning("node %s of %s is %s", name, self.name, found[name].state)
                # one that went down is not the job's any more, though it may come back
                self._nodes = {
                    name: node
                    for name, node in found.items()
                    if name in self._nodes and not node.is_lost
                }
        self.end_if_over()

    def end_if_over(self) -> str:
        """Asks the worker to end if nothing is to be run here any more: why; empty otherwise."""
        why = self._gone
        if not why and self._job.is_over:
            why = f"{self.name} is {self._job.state}"
        if not why and self.left_s <= 0:
            why = f"the time of {self.name} is nearly over"
        if why:
            self.stop.request(why)
        return why

    def _keep(self) -> None:
        while not self._done.wait(min(self._poll_s, max(0.1, self.left_s + 0.1))):
            self.look()
