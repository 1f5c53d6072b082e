"""What Slurm says of a job and its nodes, asked by its own commands."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner.errors import ProbeError

TIMEOUT_S = 20.0
"""For one answer: a controller that is busy takes seconds."""
OVER = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "COMPLETING",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PENDING",
        "PREEMPTED",
        "REQUEUED",
        "REQUEUE_HOLD",
        "REVOKED",
        "SPECIAL_EXIT",
        "SUSPENDED",
        "STOPPED",
        "TIMEOUT",
    }
)
"""States of a job that has nodes no more, or not for long: it ends, or waits, since it was queued
again (squeue(1))."""
JOB_FORMAT = "%A|%T|%e|%N|%r"
LOST = ("down", "fail", "error", "unk", "power")
"""How states of nodes begin on which nothing runs any more (sinfo(1)); ``drain`` is not one."""
FAILING = "failing"
"""A state of a node that still runs what it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """What the controller says of a job."""

    state: str
    """As squeue(1) spells it, such as ``RUNNING``."""
    reason: str
    """Why it waits, where it does; else ``None``."""
    ends_at: float
    """Unix seconds of the end of its time; infinite without a limit."""
    nodes: str
    """Its nodes, as Slurm writes several names in one."""

    @property
    def is_over(self) -> bool:
        """Whether nothing is to be run in it any more."""
        return self.state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """What the controller says of a node."""

    name: str
    """Its name in Slurm."""
    state: str
    """As sinfo(1) spells it, such as ``mixed``; with ``*`` if it does not answer."""
    address: str
    """By which others reach it."""

    @property
    def is_lost(self) -> bool:
        """Whether nothing runs there any more."""
        return self.state.startswith(LOST) and not self.state.startswith(FAILING)


class NoJobError(ProbeError):
    """Slurm knows the job no more."""


def job_state(job_id: str) -> JobState:
    """The state of a job.

    Raises:
        NoJobError: there is none of that number, any more.
        ProbeError: the controller does not answer.
    """
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
    """The state of nodes, by name, in Slurm's own order.

    Raises:
        ProbeError: the controller does not answer.
    """
    names = _ask("scontrol", "show", "hostnames", nodes)
    found: dict[str, NodeState] = {}
    which = ("--all", "--Node", f"--nodes={nodes}")  # all: also those of hidden partitions
    for line in _ask("sinfo", "--noheader", *which, "--format=%N|%T|%o"):
        name, state, address = line.split("|")
        found[name] = NodeState(name=name, state=state.lower(), address=address)
    return {name: found[name] for name in names if name in found}


def slurm_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment of Slurm's commands, without what changes whom they ask, or the answer."""
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(("SQUEUE_", "SINFO_", "SLURM_CLUSTERS", "SLURM_JSON"))
    }
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def _ask(*argv: str) -> Sequence[str]:
    """The lines of an answer.

    Raises:
        ProbeError: there is none.
    """
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env=slurm_environment(os.environ),
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
