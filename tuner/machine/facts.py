"""What this machine has: GPUs by ``nvidia-smi``, cores, and memory as the kernel allows it."""

import os
import platform
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tuner.errors import UsageError

NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=uuid,name,memory.total",
    "--format=csv,noheader,nounits",
)
TIMEOUT_S = 20.0
"""Seconds to wait for ``nvidia-smi``; without persistence mode it first wakes every GPU."""
MEMORY_STEP_BYTES = 64 * 2**20
"""Total memory is rounded down to this: it moves by some MiB between boots of one machine, and a
question about it should stay the same question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedGpu:
    """A GPU as its driver reports it."""

    name: str
    """The driver's name for it."""
    memory_mib: int
    """Its total memory in MiB."""
    uuid: str = field(default="", compare=False)
    """The driver's id of this very GPU, such as ``GPU-5c9d...``; not of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a machine has, told so that what it can do is known without being on it."""

    name: str
    """Its name in the network."""
    gpus: tuple[ReportedGpu, ...]
    """The NVIDIA GPUs that processes would see there."""
    cores: int
    """Cores that a process may run on."""
    memory_bytes: int
    """Memory that a process may use."""
    processor: str = ""
    """The processor's name as the kernel tells it; empty when it is not known."""
    trouble: str = ""
    """Why its GPUs are not known; empty when they are."""
    others: tuple["Machine", ...] = ()
    """Machines that one worker has beside this one, on which ranks can run at once."""

    @property
    def nodes(self) -> tuple["Machine", ...]:
        """This machine by itself, and the others."""
        return (replace(self, others=()), *self.others)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Machine":
        """The reverse of :meth:`as_dict`."""
        gpus = tuple(ReportedGpu(**gpu) for gpu in values["gpus"])
        others = tuple(map(cls.from_dict, values.get("others", ())))
        return cls(**{**values, "gpus": gpus, "others": others})


def together(machines: Sequence[Machine]) -> Machine:
    """The machines of one worker as one: the first, with the others."""
    first, *others = machines
    return replace(first, others=tuple(others))


def this_machine() -> Machine:
    """What this machine has; that a driver does not answer is told, and no error."""
    try:
        gpus, trouble = visible_gpus(), ""
    except UsageError as error:
        gpus, trouble = (), error.allowed
    return Machine(
        name=socket.gethostname(),
        gpus=gpus,
        cores=usable_cores(),
        memory_bytes=memory_bytes(),
        processor=processor(),
        trouble=trouble,
    )


def visible_gpus(environment: Mapping[str, str] | None = None) -> tuple[ReportedGpu, ...]:
    """The NVIDIA GPUs that processes started here would see; none without ``nvidia-smi``.

    ``CUDA_VISIBLE_DEVICES`` of ``environment`` (by default this process's) is honoured.

    Raises:
        UsageError: the driver does not answer, reports no memory, or shows slices of GPUs.
    """
    values = os.environ if environment is None else environment
    gpus = tuple(_reported(line) for line in _nvidia_smi().splitlines() if line.strip())
    visible = values.get("CUDA_VISIBLE_DEVICES")
    return gpus if visible is None else tuple(_chosen(gpus, visible))


def usable_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def boot_id(root: Path = Path("/")) -> str:
    """The kernel's id of this boot, the same in all containers of a machine; empty without one.

    Args:
        root: where ``proc`` is found.
    """
    return _text(root / "proc" / "sys" / "kernel" / "random" / "boot_id").strip()


def processor(root: Path = Path("/")) -> str:
    """The processor's name as the kernel tells it, or else the kind of machine.

    Args:
        root: where ``proc`` is found.
    """
    for line in _text(root / "proc" / "cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory that this process may use: all of the machine's, or less under a control group.

    Rounded down to whole 64 MiB.

    Args:
        root: where ``proc`` and ``sys`` are found.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = min([total, *_cgroup_limits(root)])
    return max(limit - limit % MEMORY_STEP_BYTES, MEMORY_STEP_BYTES)


def _nvidia_smi() -> str:
    try:
        done = subprocess.run(
            NVIDIA_SMI, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except OSError:
        return ""  # not installed: no NVIDIA GPU
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            "cluster", "local", f"nvidia-smi did not answer within {TIMEOUT_S:.0f} s"
        ) from error
    # It also fails where its library is installed without a GPU, as in many container images.
    return done.stdout if done.returncode == 0 else ""


def _reported(line: str) -> ReportedGpu:
    uuid, _, kind = line.partition(",")
    name, _, memory = (part.strip() for part in kind.rpartition(","))
    if not memory.isdecimal() or not name:
        raise UsageError(
            "cluster",
            "local",
            f"nvidia-smi reports {line.strip()!r}, without a memory size; describe the GPU in a"
            " cluster file",
        )
    return ReportedGpu(name=name, memory_mib=int(memory), uuid=uuid.strip())


def _chosen(gpus: tuple[ReportedGpu, ...], visible: str) -> Iterator[ReportedGpu]:
    """As CUDA reads the variable: up to the first entry that names no GPU, or one of several.

    An entry may be the beginning of a UUID.
    """
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG-"):
            raise UsageError(
                "cluster",
                "local",
                "slices of a GPU (MIG) have no published figures; describe them in a cluster file",
            )
        if entry.startswith("GPU-"):
            named = [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
        else:
            named = list(gpus[int(entry) :][:1]) if entry.isdecimal() else []
        if len(named) != 1:
            return
        yield named[0]


def _cgroup_limits(root: Path) -> Iterator[int]:
    """Limits of this process's control groups (version 2 and 1) and of all their parents."""
    mounts = root / "sys" / "fs" / "cgroup"
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        controllers, group = [*line.split(":", 2), "", ""][1:3]
        if controllers == "":
            yield from _limits_above(mounts, group, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_above(mounts / "memory", group, "memory.limit_in_bytes")


def _limits_above(mount: Path, group: str, file: str) -> Iterator[int]:
    # Inside a container the group's path may not exist below the mount; the mount is the group.
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for depth in range(len(parts) + 1):
        value = _text(mount.joinpath(*parts[:depth], file)).strip()
        if value.isdecimal() and int(value) > 0:
            yield int(value)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
