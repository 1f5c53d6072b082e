"""The nodes of the Slurm allocation that a worker is in, as the place where its probes run."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tuner.errors import ProbeError, UsageError
from tuner.machine import Machine
from workers.devices import Device
from workers.launchers.site import Facts, devices_of
from workers.launchers.slurm import SlurmLauncher, step_argv, step_environment
from workers.launchers.slurm_watch import POLL_S, NoJobError, Watch
from workers.measuring.files import make_folder, remove_folder
from workers.stop import StopRequest

log = logging.getLogger(__name__)

# For one look at all nodes: a driver that sleeps takes half a minute to wake, and imports from a
# file system that thousands of nodes share take as long.
FACTS_S = 120.0


class SlurmSite:
    """Nodes of an allocation, of which those that go down are left out."""

    is_here = False

    def __init__(self, job_id: str, watch: Watch, facts: Mapping[str, Facts]) -> None:
        """A site."""
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


def is_inside(environment: Mapping[str, str]) -> bool:
    """True for a process inside a Slurm allocation."""
    return bool(environment.get("SLURM_JOB_ID"))


def has_several_nodes(environment: Mapping[str, str]) -> bool:
    """True for a process inside a Slurm allocation of several nodes."""
    nodes = environment.get("SLURM_JOB_NUM_NODES", "")
    return is_inside(environment) and nodes.isdecimal() and int(nodes) > 1


@contextmanager
def slurm_site(stop: StopRequest, folder: Path, *, poll_s: float = POLL_S) -> Iterator[SlurmSite]:
    """The allocation that this process is inside, as a site.

    Raises:
        UsageError: this process is inside no allocation.
        ProbeError: Slurm does not answer, or a node does not see the folder.
    """
    if not is_inside(os.environ):
        allowed = "is for workers inside an allocation: under sbatch or salloc, or with --slurm"
        raise UsageError("launcher", "slurm", allowed)
    job_id = os.environ["SLURM_JOB_ID"]
    with _watch(job_id, stop, poll_s) as watch:
        if restarts := os.environ.get("SLURM_RESTART_COUNT"):
            log.info("%s was started before, and queued again (%s)", watch.name, restarts)
        yield SlurmSite(job_id, watch, facts_of(job_id, watch, folder))


def _watch(job_id: str, stop: StopRequest, poll_s: float) -> Watch:
    try:
        return Watch(job_id, stop, poll_s=poll_s)
    except NoJobError as error:
        raise ProbeError(
            f"{error}: where SLURM_JOB_ID={job_id} is left over from an allocation that has"
            " ended, unset it"
        ) from error


def facts_of(job_id: str, watch: Watch, folder: Path) -> dict[str, Facts]:
    """Has each node that is up look at itself, by one step.

    Raises:
        ProbeError: none is up, or one does not tell, or does not see the folder.
    """
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
    told = _by_node(done.stdout)
    found = {name: told[name] for name in names if name in told}
    if len(found) < len(names):
        silent = ", ".join(name for name in names if name not in found)
        words = " ".join(done.stderr.split())[-300:]
        raise ProbeError(f"{silent} of {watch.name} does not tell what it has: {words}")
    blind = ", ".join(name for name, facts in found.items() if not facts.sees_folder)
    if blind:
        raise ProbeError(
            f"{blind} of {watch.name} does not see {folder}: name a folder on a file system that"
            " all nodes share (--probes)"
        )
    return found


def _by_node(text: str) -> dict[str, Facts]:
    found = {}
    for line in text.splitlines():
        try:
            values = json.loads(line)
            name = values.pop("node")
            found[name] = Facts.from_dict(values)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue  # a line of somebody's, such as a login script
    return found
