"""Who a worker is, and whether its process still lives."""

import os
import platform
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

START_TOLERANCE_S = 2.0
"""Start times nearer than this are the same process: the system's boot time, from which they are
counted, is read separately and in whole seconds, and no pid comes round again so soon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerIdentity:
    """A process that runs probes, told apart from every other one, later ones included."""

    host: str
    """The machine's name."""
    boot_id: str
    """This boot of the machine, and the process namespace in which ``pid`` has its meaning."""
    pid: int
    """Process id."""
    started: float
    """When the process started, in seconds since the boot; setting the clock does not move it."""
    name: str = ""
    """What people see."""

    @classmethod
    def of_this_process(cls, name: str = "") -> "WorkerIdentity":
        """The running process; its name is ``host:pid`` unless given."""
        host, pid = socket.gethostname(), os.getpid()
        started = _process_start_s(pid)
        assert started is not None, "this process runs"
        name = name or f"{host}:{pid}"
        return cls(host=host, boot_id=_boot_id(), pid=pid, started=started, name=name)

    def is_alive(self) -> bool | None:
        """Whether the process lives; ``None`` when that cannot be told from this machine."""
        if (self.host, self.boot_id) != (socket.gethostname(), _boot_id()):
            return None
        started = _process_start_s(self.pid)
        if started is None:
            return None if _hidden(self.pid) else False
        return abs(started - self.started) < START_TOLERANCE_S

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "WorkerIdentity":
        """The reverse of :meth:`as_dict`."""
        return cls(**values)


def _process_start_s(pid: int) -> float | None:
    """Seconds from the boot to the process's start; ``None`` when it cannot be seen, or is a
    zombie, which has ended."""
    import psutil  # not needed to read a database

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time() - psutil.boot_time())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return None


def _hidden(pid: int) -> bool:
    """Whether another user's process has this id: systems may hide what such a process is."""
    if os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return False


def _boot_id() -> str:
    """An id that changes with every boot and differs between containers of one machine."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        import psutil

        return f"{platform.system()}-{int(psutil.boot_time())}"
