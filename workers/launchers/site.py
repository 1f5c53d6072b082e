"""The machines on which a worker's probes run: this one, or nodes that somebody has given to it.

    python -P -m workers.launchers.site FOLDER

tells what the node has that it runs on, as one line of JSON on standard output: without torch, in a
tenth of a second where there is no GPU.
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tuner.catalog.gpus import cuda_bytes, gpu_kinds
from tuner.core.cluster import Cluster
from tuner.core.launcher import LauncherName
from tuner.environment import PASSED_BY_NAME, without_secrets
from tuner.machine import Machine, this_machine
from tuner.serialization import Plain
from workers.devices import Device, cores_name, devices_here
from workers.launchers.base import Launcher
from workers.launchers.local import LocalLauncher
from workers.standin import run as standin
from workers.stop import StopRequest


class Site(Protocol):
    """Machines on which probes run, and the launcher of ranks on them."""

    @property
    def name(self) -> str:
        """Shown to people, such as ``this machine`` or ``Slurm job 12``."""

    @property
    def is_here(self) -> bool:
        """True for this machine alone, whose devices others may want: they are locked then.

        Devices of other sites are their owner's; the database keeps them apart by name.
        """

    @property
    def launcher(self) -> Launcher:
        """Starts ranks there. A job of ``nodes`` takes the first of the machines."""

    @property
    def left_s(self) -> float:
        """Seconds until it is taken away; infinite where that is not known."""

    def machines(self) -> tuple[Machine, ...]:
        """The machines that are there now, each found on itself; the first is rank 0's."""

    def devices(self) -> tuple[Device, ...]:
        """All devices of all machines, each name once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSite:
    launcher: Launcher = field(default_factory=LocalLauncher)
    find_devices: Callable[[], tuple[Device, ...]] = devices_here
    name: str = "this machine"
    is_here: bool = True
    left_s: float = math.inf

    def machines(self) -> tuple[Machine, ...]:
        return (this_machine(),)

    def devices(self) -> tuple[Device, ...]:
        return self.find_devices()


def rehearsal_site(cluster: Cluster, *, of_script: bool = False) -> LocalSite:
    """This machine's cores as one of a cluster's GPUs, whose libraries are stood in for: what ranks
    there do is real but for kernels, and torch's CUDA allocator has that GPU's memory to give.

    Ranks ``of_script`` are started by :mod:`workers.rehearsal`, which finds the stand-in for them
    and is given the user's environment without secrets. Raises ProbeError: the stand-in cannot be
    built.
    """
    if of_script:
        named = os.environ.get(PASSED_BY_NAME)
        everything = {
            name: value
            for name, value in without_secrets(os.environ).items()
            if not name.startswith("TUNER_")  # ours is the database's address
        }
        inherited = {**everything, PASSED_BY_NAME: f"{named},*" if named else "*"}
    else:
        gpu, kind = cluster.gpu, gpu_kinds().get(cluster.gpu.name)
        options = {
            "NAME": kind.driver_names[0] if kind else "NVIDIA GPU",
            "CAPABILITY": ".".join(map(str, gpu.capability)),
            "MIB": cuda_bytes(gpu.name, gpu.memory_bytes) >> 20,
        }
        own = {"CUDA_VISIBLE_DEVICES", *(n for n in os.environ if n.startswith("STANDIN_"))}
        base = {name: value for name, value in os.environ.items() if name not in own}
        inherited = base | standin.environment(options, base)
    return LocalSite(
        launcher=LocalLauncher(inherited=inherited),
        find_devices=lambda: (Device(name=cores_name(this_machine().name)),),
    )


def open_site(
    launcher: LauncherName, stop: StopRequest, folder: Path, *, ray: str = ""
) -> AbstractContextManager[Site]:
    """The site of a launcher, as a context.

    Args:
        stop: is requested when the site is gone for good.
        ray: address of a Ray cluster; else that of RAY_ADDRESS, or one is started.

    Raises:
        UsageError: it cannot be had here.
        ProbeError: it does not answer, when the context is entered.
    """
    if launcher is LauncherName.SLURM:
        from workers.launchers.slurm import slurm_site

        return slurm_site(stop, folder)
    if launcher is LauncherName.RAY:
        from workers.launchers.ray.launcher import ray_site

        return ray_site(ray or os.environ.get("RAY_ADDRESS", ""))
    return nullcontext(LocalSite())


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts(Plain):
    """A node's devices, and its view of the probes' folder."""

    machine: Machine
    cores: str  # the name of its cores, as a device
    sees_folder: bool  # set if the probes' folder is there too

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of all of its devices (:class:`workers.devices.Device`)."""
        return (*(gpu.uuid for gpu in self.machine.gpus), self.cores)


def facts_here(folder: Path | None = None) -> Facts:
    machine = this_machine()
    return Facts(
        machine=machine,
        cores=cores_name(machine.name),
        sees_folder=folder is not None and folder.is_dir(),
    )


def devices_of(nodes: Iterable[Facts]) -> tuple[Device, ...]:
    """The devices of a site's nodes, each name once: nodes of one machine share its cores."""
    names = dict.fromkeys(name for node in nodes for name in node.devices)
    return tuple(Device(name=name) for name in names)


def main() -> int:
    """Tells them, with Slurm's name of this node."""
    found = facts_here(Path(sys.argv[1]))
    print(json.dumps({"node": os.environ["SLURMD_NODENAME"], **found.as_dict()}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
