"""The kernel's own count of processes that it killed for want of host memory."""

from pathlib import Path


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Kills so far: of this process's cgroup (v2) where it is counted, else of the machine.

    Two calls are compared; 0 where nothing counts them. Sources: ``memory.events`` in the
    kernel's admin-guide/cgroup-v2, and ``oom_kill`` of /proc/vmstat.
    """
    for line in _lines(proc / "self" / "cgroup"):
        if line.startswith("0::/"):
            events = cgroups / line.removeprefix("0::/") / "memory.events"
            if (count := _count(events)) is not None:
                return count
    return _count(proc / "vmstat") or 0


def _count(path: Path) -> int | None:
    for line in _lines(path):
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
