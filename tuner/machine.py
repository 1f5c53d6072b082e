"""Finds what this machine has: GPUs by ``nvidia-smi``, cores, memory as the kernel allows it."""

import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from tuner.errors import UsageError
from tuner.serialization import Plain

NVIDIA_SMI = (
    "nvidia-smi",
    "--query-gpu=uuid,name,memory.total,mig.mode.current",
    "--format=csv,noheader,nounits",
)
LISTING = ("nvidia-smi", "-L")
# Seconds to wait for ``nvidia-smi``; without persistence mode it first wakes every GPU.
TIMEOUT_S = 20.0
# Total memory is rounded down to this: it moves by some MiB between boots of one machine, and a
# question about it should stay the same question.
MEMORY_STEP_BYTES = 64 * 2**20
# Exit codes of ``nvidia-smi`` that are of a GPU which is there: no permission, no power cable, no
# interrupt, a corrupted infoROM, a GPU that is lost or wants a reset, one that the operating system
# keeps back, a driver of another version than the library (``nvmlReturn_t`` in nvml.h, and the
# return values in nvidia-smi(1)). The others it also gives on machines without a GPU.
OF_A_GPU = frozenset({4, 8, 10, 14, 15, 16, 17, 18})
# Of the memory in a slice's name: a 1g.10gb shows 9.5 GiB, larger ones a little more (``nvidia-smi
# mig -lgip`` in NVIDIA's MIG user guide).
LEAST_OF_SLICE = 0.95
# Words of ``nvidia-smi`` for GPUs that are there and cannot be used.
_FAULT = re.compile(
    r"GPU is lost|GPU requires reset|Unable to determine the device handle|mismatch"
    r"|Insufficient Permissions",
    re.IGNORECASE,
)
# A slice in ``nvidia-smi -L``, below its GPU.
_SLICE = re.compile(r"MIG (\S+) +Device +\d+: +\(UUID: (MIG-[^)]+)\)")


# What a rehearsal's stand-in for CUDA's libraries is built with, and the architectures on which
# torch has CUDA builds.
COMPILER, TOOLS = "gcc", ("gcc", "nm")
CUDA_MACHINES = ("x86_64", "aarch64")
# The folder of nvidia's packages with the headers that its sources are written against.
CUDA = "cu13"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedGpu:
    """A GPU as its driver reports it."""

    name: str  # the driver's name for it
    memory_mib: int  # its total memory in MiB
    uuid: str = field(default="", compare=False)
    """The driver's id of this very GPU, such as ``GPU-5c9d...``; not of its kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Plain):
    """Describes a machine, so that what it can do is known without being on it."""

    name: str  # its name in the network
    gpus: tuple[ReportedGpu, ...]  # the NVIDIA GPUs that processes would see there
    cores: int  # cores that a process may run on
    memory_bytes: int  # memory that a process may use
    processor: str = ""  # the processor's name as the kernel tells it; empty when it is not known
    trouble: str = ""  # why its GPUs are not known; empty when they are
    others: tuple["Machine", ...] = ()
    """Machines that one worker has beside this one, on which ranks can run at once."""

    @property
    def nodes(self) -> tuple["Machine", ...]:
        """This machine by itself, and the others."""
        return (replace(self, others=()), *self.others)


def together(machines: Sequence[Machine]) -> Machine:
    """The machines of one worker as one: the first, with the others."""
    first, *others = machines
    return replace(first, others=tuple(others))


def this_machine() -> Machine:
    """Describes this machine; a driver that does not answer is noted, and is no error."""
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


def visible_gpus(
    environment: Mapping[str, str] | None = None, root: Path = Path("/")
) -> tuple[ReportedGpu, ...]:
    """Reads the NVIDIA GPUs that processes started here would see from ``nvidia-smi``.

    ``CUDA_VISIBLE_DEVICES`` of ``environment`` (by default this process's) is honoured.

    Args:
        environment: of the processes.
        root: where ``dev`` and ``proc`` are found, which tell GPUs that ``nvidia-smi`` does not.
    """
    values = os.environ if environment is None else environment
    visible = values.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and not re.match(r"\s*(\d|GPU-|MIG-)", visible):
        return ()  # hidden, whatever state they are in
    rows = []
    for line in _nvidia_smi(root).splitlines():
        if line.strip():
            uuid, name, memory, mode, *_ = (*map(str.strip, line.split(",")), "", "", "", "")
            cut = mode == "Enabled"
            rows.append(_Row(line=line.strip(), uuid=uuid, name=name, memory=memory, is_sliced=cut))
    chosen = rows if visible is None else list(_chosen(rows, visible))
    if rows and not chosen:
        raise UsageError(
            "CUDA_VISIBLE_DEVICES", visible, f"must name one of the {len(rows)} GPUs that are here"
        )
    if any(row.is_sliced for row in chosen):
        raise _sliced(rows, chosen)
    return tuple(_reported(row) for row in chosen)


def usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_rationed(root: Path = Path("/")) -> bool:
    """True where a control group (v2) gives processes here less time than their cores have."""
    quota, _, period = _text(root / "sys" / "fs" / "cgroup" / "cpu.max").strip().partition(" ")
    return quota.isdecimal() and int(quota) < usable_cores() * int(period or 100_000)


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
    limits, mounts = [total], root / "sys" / "fs" / "cgroup"
    # of this process's control groups (version 2 and 1) and of all their parents
    for line in _text(root / "proc" / "self" / "cgroup").splitlines():
        controllers, group = [*line.split(":", 2), "", ""][1:3]
        mount, file = mounts, "memory.max"
        if "memory" in controllers.split(","):
            mount, file = mounts / "memory", "memory.limit_in_bytes"
        elif controllers:
            continue
        # inside a container the group's path may not exist below the mount; the mount is the group
        parts = [part for part in group.split("/") if part not in ("", "..")]
        for depth in range(len(parts) + 1):
            value = _text(mount.joinpath(*parts[:depth], file)).strip()
            if value.isdecimal() and int(value) > 0:
                limits.append(int(value))
    least = min(limits)
    return max(least - least % MEMORY_STEP_BYTES, MEMORY_STEP_BYTES)


def free_bytes(root: Path = Path("/")) -> int:
    """Memory that this machine could give a process now, without what others hold."""
    for line in _text(root / "proc" / "meminfo").splitlines():
        name, _, size = line.partition(":")
        if name == "MemAvailable":
            found = int(size.split()[0]) * 1024
            break
    else:
        found = memory_bytes(root)
    # of a control group's limit nothing counts as held but what it cannot give back
    group = root / "sys" / "fs" / "cgroup"
    limit, held = (_text(group / f"memory.{name}").strip() for name in ("max", "current"))
    if limit.isdecimal() and held.isdecimal():
        stat = dict(line.split() for line in _text(group / "memory.stat").splitlines())
        found = min(found, int(limit) - int(held) + int(stat.get("inactive_file", 0)))
    return max(0, found)


def shows_gpu(environment: Mapping[str, str] | None = None, root: Path = Path("/")) -> bool:
    """True where processes started here could use a GPU: a device of the driver's is there, and
    ``CUDA_VISIBLE_DEVICES`` does not hide it."""
    values = os.environ if environment is None else environment
    hidden = values.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1")
    return not hidden and any((root / "dev").glob("nvidia[0-9]*"))


def why_no_standin() -> str:
    """Tells why no stand-in for CUDA's libraries can be built for this Python, in a line; empty if
    one can."""
    system, machine = platform.system(), platform.machine()
    if system != "Linux" or machine not in CUDA_MACHINES:
        known = " or ".join(CUDA_MACHINES)
        return f"CUDA builds of torch are for Linux on {known}, not {system} on {machine}"
    if (torch := package_folder("torch")) is None:
        return "this Python has no torch"
    if not (torch / "lib" / "libtorch_cuda.so").exists():
        return "this Python has no CUDA build of torch, but one for CPUs or another vendor's GPUs"
    if cuda_headers() is None:
        return "this Python's torch is not of CUDA 13, or CUDA's headers are not beside it"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"there is no {' and no '.join(missing)}: a C compiler is needed" if missing else ""


def package_folder(name: str) -> Path | None:
    """A package's folder; it is not imported, which takes torch seconds."""
    spec = importlib.util.find_spec(name)
    folders = (spec.submodule_search_locations or ()) if spec else ()
    return next((Path(folder) for folder in folders), None)


def cuda_headers() -> Path | None:
    """The folder of CUDA's headers beside this Python's torch; ``None`` where there is none."""
    nvidia = package_folder("nvidia")
    found = nvidia / CUDA / "include" if nvidia else None
    return found if found and (found / "cuda.h").exists() else None


def end_first_for_memory(pid: int) -> None:
    """Has the kernel end a process, and what it starts, before others when memory is out: not a
    database or a service beside it."""
    with suppress(OSError):
        Path(f"/proc/{pid}/oom_score_adj").write_text("1000", encoding="utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One GPU in the words of ``nvidia-smi``."""

    line: str
    uuid: str
    name: str
    memory: str
    is_sliced: bool


def _nvidia_smi(root: Path = Path("/")) -> str:
    # where the kernel's driver shows a GPU; empty if it shows none
    places = [root / "dev" / "nvidia0", *(root / "proc/driver/nvidia/gpus").glob("*")]
    there = next((f"/{place.relative_to(root)}" for place in places if place.exists()), "")
    try:
        done = subprocess.run(
            NVIDIA_SMI, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except OSError as error:
        if there:
            raise _failing(
                f"there is {there}, and no nvidia-smi ({error.strerror or error}): install the"
                " driver's programs; in a container, NVIDIA_DRIVER_CAPABILITIES=compute,utility"
            ) from error
        return ""  # not installed: no NVIDIA GPU
    except subprocess.TimeoutExpired as error:
        raise _failing(f"nvidia-smi did not answer within {TIMEOUT_S:.0f} s") from error
    if done.returncode == 0:
        return done.stdout
    words = " ".join(f"{done.stdout} {done.stderr}".split())[:300]
    # It also fails where its library is installed without a GPU, as in many container images.
    if there or done.returncode in OF_A_GPU or _FAULT.search(words):
        raise _failing(f"nvidia-smi fails with exit code {done.returncode}: {words or 'no words'}")
    return ""


def _failing(why: str) -> UsageError:
    return UsageError("cluster", "local", why)


def _reported(row: _Row) -> ReportedGpu:
    if _FAULT.search(row.line):
        raise _failing(
            f"nvidia-smi reports {row.line!r}: restart the machine, or show other GPUs with"
            " CUDA_VISIBLE_DEVICES"
        )
    if not row.memory.isdecimal() or not row.name:
        raise _failing(
            f"nvidia-smi reports {row.line!r}, without a memory size; describe the GPU in a"
            " cluster file"
        )
    return ReportedGpu(name=row.name, memory_mib=int(row.memory), uuid=row.uuid)


def _chosen(rows: Sequence[_Row], visible: str) -> Iterator[_Row]:
    """Selects devices as CUDA reads the variable: up to the first entry that names no GPU, or one
    of several.

    An entry may be the beginning of a UUID.
    """
    for entry in (part.strip() for part in visible.split(",")):
        if entry.startswith("MIG-"):
            raise _of_slice(entry)
        if entry.startswith("GPU-"):
            named = [row for row in rows if row.uuid.startswith(entry)]
        else:
            named = list(rows[int(entry) :][:1]) if entry.isdecimal() else []
        if len(named) != 1:
            return
        yield named[0]


def _slices() -> tuple[tuple[str, str, str], ...]:
    """The GPU's name, the profile (``1g.10gb``) and the id of every slice; none without a list."""
    try:
        listed = subprocess.run(
            LISTING, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ()
    found, name = [], ""
    for line in listed.splitlines():
        if gpu := re.match(r"GPU \d+: (.*?) \(UUID", line):
            name = gpu[1]
        elif cut := _SLICE.search(line):
            found.append((name, cut[1], cut[2]))
    return tuple(found)


def _sliced(rows: Sequence[_Row], chosen: Sequence[_Row]) -> UsageError:
    """Describes GPUs in MIG mode: a process sees no such GPU, and at most one of its slices."""
    names = list(dict.fromkeys(row.name for row in chosen if row.is_sliced))
    profiles = [profile for name, profile, _ in _slices() if name in names]
    cut = f" into {', '.join(sorted(set(profiles)))}" if profiles else ", and has no slice"
    whole = ",".join(row.uuid for row in rows if not row.is_sliced)
    rest = f"; CUDA_VISIBLE_DEVICES={whole} shows the whole GPUs alone" if whole else ""
    return _failing(
        f"{', '.join(names)} is cut{cut} (MIG): slices are not probed, only predicted,"
        f" {_described(names[0], profiles[0] if profiles else '')}{rest}"
    )


def _of_slice(entry: str) -> UsageError:
    name, profile = next(
        ((name, profile) for name, profile, uuid in _slices() if uuid.startswith(entry)), ("", "")
    )
    what = f"{entry} ({profile} of {name})" if profile else entry
    return _failing(
        f"CUDA_VISIBLE_DEVICES names {what}, a slice of a GPU (MIG): slices are not probed, only"
        f" predicted, {_described(name, profile)}"
    )


def _described(gpu: str, profile: str) -> str:
    """How to ask about a slice."""
    size = re.search(r"(\d+)gb", profile)
    memory_bytes = int(LEAST_OF_SLICE * int(size[1]) * 2**30) if size else 0
    slug = re.sub(r"[^a-z0-9.]+", "-", f"{gpu} {profile}".lower()).strip("-")[:64] or "slice"
    fields = f'gpu = {{name = "{slug}", memory_bytes = {memory_bytes or "..."}}}'
    return (
        "with --fidelity predicted --cluster FILE.toml, whose lines are: nodes = 1;"
        f" gpus_per_node = 1; {fields}"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
