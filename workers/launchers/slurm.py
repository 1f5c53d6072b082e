"""The Slurm allocation that a worker is in as the place of its probes: ranks as tasks of steps.

One srun for the ranks of a job. Each of its tasks is :mod:`workers.launchers.task`, which hears of
the supervisor through srun's standard input, and tells of its rank's end by a file. The job's
folder must be on a file system that all nodes see. The state of the allocation and its nodes is
looked at every few seconds, for all who ask (:class:`Watch`).
"""

import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tuner.environment import passed
from tuner.errors import ProbeError, UsageError
from tuner.machine import Machine
from workers.devices import Device
from workers.launchers.base import Job, RankEnd, SupervisedRun, Why
from workers.launchers.site import Facts, devices_of
from workers.launchers.task import ALIVE, STOP, read_end
from workers.measuring.records import (
    end_path,
    log_path,
    log_tail,
    make_folder,
    remove_folder,
    write_json,
)
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
        return self.state in OVER


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeState:
    """A node, in the words of the controller."""

    name: str
    state: str  # `mixed` or another word of sinfo(1); with `*` if it does not answer
    address: str  # by which others reach it

    @property
    def is_lost(self) -> bool:
        return self.state.startswith(LOST) and not self.state.startswith(FAILING)


class NoJobError(ProbeError):
    """Slurm knows the job no more."""


def job_state(job_id: str) -> JobState:
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


# As here: nodes share what is installed.
PYTHON = sys.executable
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
# For one look at all nodes: a driver that sleeps takes half a minute to wake, and imports from a
# file system that thousands of nodes share take as long.
FACTS_S = 120.0
KILLED = -9
# What srun says where there is none to turn off.
NO_MATTER = "lacks support for cpu binding"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmLauncher:
    job_id: str
    watch: Watch
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of each node's devices, where they are known."""

    def start(self, job: Job) -> "SlurmRun":
        nodes = self.watch.nodes
        if len(nodes) < job.nodes:
            up = f"{len(nodes)} of {self.watch.name} {'is' if len(nodes) == 1 else 'are'} up"
            raise ProbeError(f"{job.nodes} nodes are needed, and {up}")
        return SlurmRun(job, self, nodes[: job.nodes])


class SlurmRun(SupervisedRun):
    def __init__(self, job: Job, launcher: SlurmLauncher, nodes: Sequence[NodeState]) -> None:
        super().__init__(job)
        self._watch = launcher.watch
        self._nodes = tuple(node.name for node in nodes)
        if launcher.devices.keys() >= {*self._nodes}:
            self._node_devices = tuple(launcher.devices[name] for name in self._nodes)
        self._log = job.directory / STEP_LOG
        addresses = {node.name: node.address for node in nodes}
        order = {"job": job.as_dict(), "addresses": addresses}
        file = write_json(job.directory / "job.json", order)
        with self._log.open("wb") as words:
            self._srun = subprocess.Popen(
                [
                    *step_argv(launcher.job_id, self._nodes, job.ranks),
                    *(PYTHON, "-P", "-m", "workers.launchers.task", str(file)),
                ],
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
            if rank in self._ends or end_path(folder, rank) not in there:
                continue
            try:
                found = read_end(folder, rank)
            except ValueError as error:
                raise ProbeError(f"a task's end cannot be read: {error}") from error
            if found is not None:
                yield found

    def why_lost(self) -> tuple[Why, str] | None:
        has_begun = log_path(self._job.directory, 0).exists()  # rank 0's, even if it cannot start
        if not has_begun and time.monotonic() - self._started > START_S:
            words = self._first_words() or "it says nothing"
            raise ProbeError(f"srun has not started the ranks within {START_S:.0f} s: {words}")
        ended = self._srun.poll() is not None
        stopped = any(end.stopped for end in self._ends.values())
        if not stopped and len(self._ends) == self._job.ranks:
            return None
        if outside := self._over_or_down():
            return outside
        if not stopped and (not ended or self._has_all_files()):
            return None
        self._watch.look()  # the step has ended, or is ending, without us
        if outside := self._over_or_down():
            return outside
        words = self._first_words()
        if not self._ends and not log_path(self._job.directory, 0).exists():
            raise ProbeError(f"srun could not start the ranks: {words or 'it says nothing'}")
        return Why.TAKEN_AWAY, f"the Slurm step was ended from outside{words and f': {words}'}"

    def stop(self) -> Iterator[RankEnd]:
        self._say(STOP)  # tasks end their ranks, and srun ends with them
        until = time.monotonic() + self._job.term_grace_s + END_S
        on_node = self._job.ranks_per_node
        while self._srun.poll() is None and time.monotonic() < until:
            self._note_ends()
            lost = self._watch.lost(self._nodes)
            left = {*range(self._job.ranks)} - self._ends.keys()
            if all(self._nodes[rank // on_node] in lost for rank in left):
                break  # no task is left that srun could wait for
            time.sleep(0.02)
        with suppress(subprocess.TimeoutExpired):
            self._srun.wait(LINGER_S)
        for force in (self._srun.terminate, self._srun.kill):
            if self._srun.poll() is None:
                force()
                with suppress(subprocess.TimeoutExpired):
                    self._srun.wait(END_S)
        if self._srun.poll() is None:
            raise ProbeError(f"srun (process {self._srun.pid}) cannot be killed")
        with suppress(BrokenPipeError):
            assert self._srun.stdin is not None
            self._srun.stdin.close()
        self._has_all_files()
        lost = self._watch.lost(self._nodes)
        self._lost_nodes = tuple(at for at, name in enumerate(self._nodes) if name in lost)
        for rank in range(self._job.ranks):
            yield RankEnd(rank=rank, code=KILLED, ended_at=time.time(), stopped=True)

    def _say(self, what: bytes) -> None:
        with suppress(BrokenPipeError, BlockingIOError):  # ended, or held up for a day
            os.write(self._feed, what)

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

    def _over_or_down(self) -> tuple[Why, str] | None:
        """Tells that the allocation is over, or which of the job's nodes went down.

        Where too few are left for such ranks, the worker has nothing more to do.
        """
        if why := self._watch.end_if_over():
            return Why.CANCELLED, why
        lost = self._watch.lost(self._nodes)
        if not lost:
            return None
        names = f"node{'s' if len(lost) > 1 else ''} {', '.join(lost)}"
        words, left = f"{names} of {self._watch.name} went down", len(self._watch.nodes)
        if left < self._job.nodes:
            needed = f"{left} of the {self._job.nodes} needed are left"
            self._watch.stop.request(f"{words}, and {needed}")
        return Why.NODE_LOST, words

    def _first_words(self) -> str:
        """The first words of srun, nearest to the cause, in a line of at most 300 characters."""
        lines = (line.strip() for line in log_tail(self._log).splitlines())
        return "; ".join(line for line in lines if line and not line.endswith(NO_MATTER))[:300]


def step_argv(job_id: str, nodes: Sequence[str], tasks: int) -> tuple[str, ...]:
    """The start of an srun command whose tasks are spread over nodes of an allocation."""
    # All that the nodes' share of the allocation has is theirs: the worker's own step, and another
    # one, may run beside them. The probe program binds ranks to cores and GPUs, as elsewhere.
    return (
        "srun",
        f"--jobid={job_id}",
        "--job-name=tuner-probe",
        f"--nodes={len(nodes)}",
        f"--nodelist={','.join(nodes)}",
        f"--ntasks={tasks}",
        f"--ntasks-per-node={tasks // len(nodes)}",
        *("--distribution=block", "--overlap", "--overcommit", "--mem=0"),
        *("--cpu-bind=none", "--gpu-bind=none", "--mpi=none", "--input=all"),
        *("--kill-on-bad-exit=0", "--wait=0", "--quiet"),
    )


def step_environment() -> dict[str, str]:
    """The environment of srun and its tasks: no secrets, and not the allocation's shape."""
    # Options of an allocation come as variables that srun takes for its own, such as
    # SLURM_CPUS_PER_TASK; the job's number, and where Slurm is configured, stay.
    kept = ("SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID")
    return {
        name: value
        for name, value in passed(os.environ).items()
        if name in kept or not name.startswith(("SLURM_", "SRUN_", "SBATCH_", "PMI", "OMPI_"))
    }


class SlurmSite:
    """Nodes of an allocation, of which those that go down are left out."""

    is_here = False

    def __init__(self, job_id: str, watch: Watch, facts: Mapping[str, Facts]) -> None:
        self.name = watch.name
        devices = {name: node.devices for name, node in facts.items()}
        self.launcher = SlurmLauncher(job_id=job_id, watch=watch, devices=devices)
        self._watch = watch
        self._facts = facts

    @property
    def left_s(self) -> float:
        return self._watch.left_s

    def machines(self) -> tuple[Machine, ...]:
        return tuple(facts.machine for facts in self._up())

    def devices(self) -> tuple[Device, ...]:
        return devices_of(self._up())

    def _up(self) -> Sequence[Facts]:
        up = [self._facts[node.name] for node in self._watch.nodes]
        if not up:
            raise ProbeError(f"no node of {self.name} is up")
        return up


@contextmanager
def slurm_site(stop: StopRequest, folder: Path, *, poll_s: float = POLL_S) -> Iterator[SlurmSite]:
    """The allocation that this process is inside, as a site.

    Raises:
        UsageError: this process is inside no allocation.
        ProbeError: Slurm does not answer, or a node does not see the folder.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if not job_id:
        allowed = "is for workers inside an allocation: under sbatch or salloc, or with --slurm"
        raise UsageError("launcher", "slurm", allowed)
    try:
        watched = Watch(job_id, stop, poll_s=poll_s)
    except NoJobError as error:
        raise ProbeError(
            f"{error}: where SLURM_JOB_ID={job_id} is left over from an allocation that has"
            " ended, unset it"
        ) from error
    with watched as watch:
        if restarts := os.environ.get("SLURM_RESTART_COUNT"):
            log.info("%s was started before, and queued again (%s)", watch.name, restarts)
        yield SlurmSite(job_id, watch, facts_of(job_id, watch, folder))


def facts_of(job_id: str, watch: Watch, folder: Path) -> dict[str, Facts]:
    """Has each node that is up look at itself, by one step. Raises ProbeError: none is up, or one
    does not tell, or does not see the folder."""
    names = [node.name for node in watch.nodes]
    if not names:
        raise ProbeError(f"no node of {watch.name} is up")
    shared = make_folder(folder, "nodes")
    program = (sys.executable, "-P", "-m", "workers.launchers.site", str(shared))
    try:
        done = subprocess.run(
            [*step_argv(job_id, names, len(names)), *program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=FACTS_S,
            env=step_environment(),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        why = f"srun took {FACTS_S:.0f} s" if late else str(error)
        raise ProbeError(f"the nodes of {watch.name} do not tell what they have: {why}") from error
    finally:
        remove_folder(shared)
    told = {}
    for line in done.stdout.splitlines():
        # others may print too, such as a login script
        with suppress(ValueError, KeyError, TypeError, AttributeError):
            values = json.loads(line)
            name = values.pop("node")
            told[name] = Facts.from_dict(values)
    if silent := [name for name in names if name not in told]:
        words = " ".join(done.stderr.split())[-300:]
        raise ProbeError(f"{', '.join(silent)} of {watch.name} does not tell what it has: {words}")
    if blind := [name for name in names if not told[name].sees_folder]:
        raise ProbeError(
            f"{', '.join(blind)} of {watch.name} does not see {folder}: name a folder on a file"
            " system that all nodes share (--probes)"
        )
    return {name: told[name] for name in names}
