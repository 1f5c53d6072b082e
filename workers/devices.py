"""The devices of this machine: what probes hold of them, whose they are now, and what they can be.

A device is a GPU, or all of the machine's cores together. As a program it tells what processes find
on the GPUs, as one line of JSON on standard output:

    python -P -m workers.devices

``gpus`` is what each found (``workers/probe/check.py``), ``why_unusable`` the reason why no probe
can be run on them, and ``in_use`` whether a worker's probes run there, which are not disturbed.
"""

import fcntl
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tuner.client.capabilities import (
    has_one,
    why_not_emulated,
    why_not_measured,
    why_not_rehearsed,
)
from tuner.core.cluster import Cluster
from tuner.core.cluster import Device as DeviceKind
from tuner.core.framework import not_installed
from tuner.core.measurement import Fidelity
from tuner.core.study import ProbeRequest, Question, missing_beside
from tuner.cost.prediction import predict
from tuner.errors import ProbeError, TunerError, UsageError
from tuner.machine import Machine, boot_id, free_bytes, this_machine
from workers.measuring.ranks import Kind, WarmRanks
from workers.measuring.records import default_probes_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or the cores of a machine."""

    name: str
    """A GPU's UUID, or before ``/cpu`` the kernel's id of the machine's boot, which all containers
    of a machine share, unlike its name; the name where there is no such id."""
    visible: str = ""  # its name in CUDA_VISIBLE_DEVICES; empty for the cores


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShare:
    """Devices for one probe at a time."""

    own: tuple[str, ...]  # names of those that every probe here holds
    rest: tuple[str, ...] = ()
    """Names of all others of the machine, for a probe that must have no neighbours."""
    visible: tuple[str, ...] = ()  # GPUs that ranks see, as in :class:`workers.launchers.base.Job`


def devices_here(
    machine: Machine | None = None,
    environment: Mapping[str, str] | None = None,
    root: Path = Path("/"),
) -> tuple[Device, ...]:
    """The GPUs that processes would see here, in CUDA's order, and the cores."""
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


def shares(kind: Kind, devices: Sequence[Device]) -> tuple[DeviceShare, ...]:
    """Divides a machine among probes of a kind; the first share is for those without neighbours."""
    everything = tuple(device.name for device in devices)
    gpus = {device.name: device.visible for device in devices if device.visible}
    # A process that has a GPU for itself and talks to no other may have neighbours on other GPUs:
    # it gets its part of the cores, and nothing else is shared. Ranks that talk to each other share
    # links, and CPU ranks caches and memory, so they have the machine for themselves.
    if kind.device == "cpu" or kind.ranks > 1 or not gpus:
        visible = () if kind.device == "cpu" else first_gpus(devices, kind.ranks)
        return (DeviceShare(own=everything, visible=visible),)
    return tuple(
        DeviceShare(
            own=(name,),
            rest=tuple(other for other in everything if other != name),
            visible=(gpus[name],),
        )
        for name in sorted(gpus)
    )


# Locks


def default_lock_path() -> Path:
    """The path of this user's locks on this machine; a device's name is added for each."""
    return Path(tempfile.gettempdir()) / f"tuner-{os.getuid()}.lock"


class DeviceLocks:
    """The right to run ranks on some devices of this machine.

    Each device has a lock of the kernel's, which ends with the process that holds it. Devices that
    were acquired are kept while others are waited for. Whoever waits for a device holds a second
    lock of it, by which its holder knows.
    """

    def __init__(self, path: Path | None, devices: Collection[str]) -> None:
        """Locks that are not held yet. Each device's name is added to the ``path``; without one
        nobody else may want the devices, which then are free at any time."""
        # Everybody acquires in the same order, so that no two wait for each other. GPUs come first:
        # whoever holds one of them may go on to acquire the rest.
        ordered = sorted(devices, key=lambda name: (not name.startswith("GPU-"), name))
        self.devices = tuple(ordered)  # their names, in the order in which they are acquired
        self._locks = [_DeviceLock(path, name) for name in ordered if path is not None]

    @property
    def held(self) -> bool:
        return all(lock.held for lock in self._locks)

    @property
    def wanted(self) -> bool:
        return any(lock.wanted for lock in self._locks if lock.held)

    def acquire(self) -> bool:
        """Acquires what is free, and waits for the rest; true once all is held."""
        for index, lock in enumerate(self._locks):
            if not lock.acquire():
                for missing in self._locks[index:]:
                    missing.wait()
                return False
        return True

    @property
    def holder(self) -> str:
        """Who has the first device that is missing here, as far as can be seen: a process, and
        whether it is stopped; empty where none is missing."""
        return next((lock.holder for lock in self._locks if not lock.held), "")

    def acquire_at_once(self) -> bool:
        """Acquires all if all is free, or nothing; nobody is told that it is wanted."""
        before = [lock.held for lock in self._locks]
        if all(lock.acquire() for lock in self._locks):
            return True
        for lock, was_held in zip(self._locks, before, strict=True):
            if not was_held:
                lock.release()
        return False

    def release(self) -> None:
        """Leaves the devices to others, and waits for them no more."""
        for lock in self._locks:
            lock.release()


class _DeviceLock:
    # filelock has no shared locks on Unix, by which any number of waiters are seen by the holder,
    # and empties the file that it opens: flock itself is as short.

    def __init__(self, path: Path, device: str) -> None:
        self._path = path.with_name(f"{path.name}.{device.replace('/', '-')}")
        self._queue = self._path.with_name(f"{self._path.name}.queue")
        self._held: int | None = None
        self._waiting: int | None = None

    @property
    def held(self) -> bool:
        return self._held is not None

    @property
    def wanted(self) -> bool:
        alone = _locked(self._queue, fcntl.LOCK_EX)
        if alone is not None:
            os.close(alone)
        return alone is None

    def acquire(self) -> bool:
        if self._held is None:
            self._held = _locked(self._path, fcntl.LOCK_EX)
            if self._held is not None:
                mine = {"pid": os.getpid(), "namespace": _pid_namespace()}
                os.ftruncate(self._held, 0)
                os.pwrite(self._held, json.dumps(mine).encode(), 0)
        if self._held is not None:
            self._stop_waiting()
        return self._held is not None

    @property
    def holder(self) -> str:
        try:
            said = json.loads(self._path.read_text(encoding="utf-8"))
            pid, is_near = int(said["pid"]), said["namespace"] == _pid_namespace()
        except (OSError, ValueError, KeyError, TypeError):
            return "a worker"
        if not is_near:
            return f"the worker that is process {pid} of another container"
        try:
            is_stopped = psutil.Process(pid).status() == psutil.STATUS_STOPPED
        except psutil.Error:
            is_stopped = False
        how = f", which is stopped: kill -CONT {pid} or kill -9 {pid}" if is_stopped else ""
        return f"the worker that is process {pid}{how}"

    def wait(self) -> None:
        if self._held is None and self._waiting is None:
            self._waiting = _locked(self._queue, fcntl.LOCK_SH)

    def release(self) -> None:
        self._stop_waiting()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            os.close(self._waiting)
            self._waiting = None


def _pid_namespace() -> str:
    """The boot, and the container, in which a process's number has its meaning."""
    try:
        return f"{boot_id()}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return boot_id()


def _locked(path: Path, how: int) -> int | None:
    """A file whose lock is held; ``None`` if others have it."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise ProbeError(f"cannot lock {path}: {error.strerror}") from error
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


# The machine that a study asks about


def check_machine(
    question: Question, fidelity: Fidelity = Fidelity.MEASURED, there: Machine | None = None
) -> bool:
    """Refuses what cannot be measured, emulated or rehearsed here; true if the device here is of
    another kind than the cluster's, which it is large enough for.
    """
    for package, version, found in not_installed(question.framework):
        raise ProbeError(
            f"the question states {package} {version}; a probe here would measure"
            f" {found or 'no version'}"
        )
    if missing := missing_beside(question):
        raise ProbeError(f"the question needs {missing}, which is not installed here")
    cluster = question.cluster
    if fidelity is Fidelity.REHEARSED:
        if why := why_not_rehearsed(cluster):
            raise ProbeError(f"it cannot be rehearsed here: {why}")
        return False
    emulates = fidelity is Fidelity.EMULATED
    check_cluster(cluster, there, why_not_emulated if emulates else why_not_measured)
    return emulates and not has_one(cluster, there)  # else another kind stands in for it


def check_free_memory(question: Question, request: ProbeRequest) -> None:
    """Raises ProbeError where ranks on the CPU are predicted to need more than is free now; of a
    model that nobody named, as a script's, nothing is predicted."""
    if question.cluster.gpu.device is not DeviceKind.CPU or not question.workload.has_arithmetic:
        return
    ranks = 1 if request.fidelity is Fidelity.EMULATED else question.cluster.world_size
    settings = request.settings
    found = predict(*question.job, settings)
    needed, free = (found.allocated_bytes.value or 0.0) * ranks, free_bytes()
    if needed > free:
        raise ProbeError(
            f"{settings} needs some {needed / 2**30:.1f} GiB in its {ranks} ranks, and"
            f" {free / 2**30:.1f} GiB of this machine's memory are free"
        )


def check_cluster(
    cluster: Cluster,
    there: Machine | None = None,
    why_not: Callable[..., str] = why_not_measured,
) -> None:
    """Raises ProbeError for a cluster that the machine is not."""
    try:
        why = why_not(cluster, there=there)
    except UsageError as error:
        raise ProbeError(f"{cluster.name} is asked about; {error}") from error
    if why:
        raise ProbeError(f"{cluster.name} is asked about; {why}")


def main() -> int:
    devices = devices_here()
    gpus = first_gpus(devices, len(devices))
    # probes on the CPU go on beside: a look takes no time of theirs that is worth waiting for
    locks = DeviceLocks(default_lock_path(), [one.name for one in devices if one.visible])
    told: dict[str, object] = {"gpus": [], "why_unusable": "", "in_use": False}
    try:
        if gpus and not locks.acquire_at_once():
            told["in_use"] = True
        elif gpus:
            kind = Kind(ranks=len(gpus), world_size=len(gpus), device="cuda", visible=gpus)
            with WarmRanks(folder=default_probes_folder()) as ranks:
                found = ranks.ask(kind, {"check": "cuda"}, _pause)
            assert found is not None
            gpus_seen = [record.get("hardware", {}) for record in found.records]
            told |= {"gpus": gpus_seen, "why_unusable": found.why_unusable}
    except TunerError as error:
        told["why_unusable"] = str(error)
    finally:
        locks.release()
    print(json.dumps(told))  # noqa: T201
    return 0


def _pause(seconds: float) -> str:
    """Nothing but its own deadline ends a look."""
    time.sleep(seconds)
    return ""


if __name__ == "__main__":
    sys.exit(main())
