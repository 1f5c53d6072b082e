"""Where on this machine probes run: on which devices, and how many at once."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.machine import Machine, boot_id, this_machine
from workers.device_locks import DeviceLocks, in_order
from workers.measuring.warm import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What a probe holds while it runs."""

    name: str
    """A GPU's UUID, or before ``/cpu`` the kernel's id of the machine's boot, which all containers
    of a machine share, unlike its name; the name where there is no such id."""
    visible: str = ""
    """What CUDA_VISIBLE_DEVICES calls it; empty for the cores."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Devices for one probe at a time."""

    own: tuple[str, ...]
    """Names of those that every probe here holds."""
    rest: tuple[str, ...] = ()
    """Names of all others of the machine, for a probe that must have no neighbours."""
    visible: tuple[str, ...] = ()
    """As of :class:`workers.launchers.base.Job`."""


def devices_here(
    machine: Machine | None = None,
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> tuple[Device, ...]:
    """The GPUs that processes would see here, in CUDA's order, and the cores.

    Args:
        machine: described; this one, unless given.
        environment: of processes; this one's, unless given.
        root: where ``proc`` is found.
    """
    machine = machine or this_machine()
    chosen = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    entries = None if chosen is None else [entry.strip() for entry in chosen.split(",")]
    gpus = [
        Device(name=gpu.uuid, visible=gpu.uuid if entries is None else entries[index])
        for index, gpu in enumerate(machine.gpus)
    ]
    return (*gpus, Device(name=cores_name(machine.name, root)))


def cores_name(machine: str, root: Path = Path("/")) -> str:
    """The name of this machine's cores; ``machine`` is its name, where the kernel has no id."""
    return f"{boot_id(root) or machine}/cpu"


def first_gpus(devices: Sequence[Device], count: int) -> tuple[str, ...]:
    """The first GPUs, as CUDA_VISIBLE_DEVICES names them."""
    return tuple(device.visible for device in devices if device.visible)[:count]


def turn_on_all(lock: Path, devices: Sequence[Device]) -> DeviceLocks:
    """A turn on all devices of the machine: nothing else is timed while it is had."""
    return DeviceLocks(lock, [device.name for device in devices])


def whole(devices: Sequence[Device]) -> Place:
    """All of a site's devices as one place: each node's ranks see those of their node."""
    return Place(own=tuple(in_order([device.name for device in devices])))


def places(kind: Kind, devices: Sequence[Device]) -> tuple[Place, ...]:
    """Where probes of a kind can run at the same time, the first for those without neighbours.

    A process that has a GPU for itself and talks to no other may have neighbours on other GPUs: it
    gets its share of the cores, and nothing else is shared. Ranks that talk to each other share
    links, and CPU ranks caches and memory, so they have the machine for themselves.
    """
    gpus = {device.name: device.visible for device in devices if device.visible}
    everything = tuple(in_order([device.name for device in devices]))
    if kind.device == "cpu":
        return (Place(own=everything),)
    if kind.ranks > 1 or not gpus:
        return (Place(own=everything, visible=first_gpus(devices, kind.ranks)),)
    return tuple(
        Place(
            own=(name,),
            rest=tuple(other for other in everything if other != name),
            visible=(gpus[name],),
        )
        for name in in_order(gpus)
    )
