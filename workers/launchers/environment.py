"""The surroundings of ranks on a node: their environment, and kills for want of host memory."""

import ipaddress
from collections.abc import Mapping
from pathlib import Path

from tuner.machine import usable_cores
from workers.launchers.base import Job

# Of environment variables that ranks do not inherit: ours (a database's password may be in one),
# those by which another launcher's settings would leak into the probe's, and Ray's token.
DROPPED_PREFIXES = ("TUNER_", "ACCELERATE_", "FSDP_", "TORCHELASTIC_", "MASTER_", "RAY_")
# More of them: a probe needs no access to anything.
DROPPED = frozenset({"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GROUP_RANK", "ROLE_RANK"})


def kept_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """The part that may pass to ranks, and to whatever starts them: no secrets, no settings."""
    return {
        name: value
        for name, value in inherited.items()
        if not name.startswith(DROPPED_PREFIXES) and name not in DROPPED
    }


def rank_environment(
    job: Job, rank: int, inherited: Mapping[str, str], *, address: str = ""
) -> dict[str, str]:
    """The environment of one rank: ours without what must not leak, and its place."""
    on_node = job.ranks_per_node
    own = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % on_node),
        "WORLD_SIZE": str(job.ranks),
        "LOCAL_WORLD_SIZE": str(on_node),
        "OMP_NUM_THREADS": str(max(1, usable_cores() // (job.sharing or on_node))),
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "USE_HUB_KERNELS": "NO",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",  # a fatal signal leaves its traceback in the log
    }
    if address:
        own["MASTER_ADDR"] = address
    # GPUs are chosen before python starts, since libraries may look for them where they are
    # imported: a mesh of ranks that are not there must not be compared with the GPUs that are, and
    # ranks on the CPU must not take memory of a GPU, as libraries do that only ask what it can
    if job.device == "cpu":
        own["CUDA_VISIBLE_DEVICES"] = ""
        try:
            is_loopback = ipaddress.ip_address(address).is_loopback
        except ValueError:
            is_loopback = address == "localhost"
        if job.nodes == 1 or is_loopback:
            own["GLOO_SOCKET_IFNAME"] = "lo"  # the host's name may not resolve
    elif job.visible:
        own["CUDA_VISIBLE_DEVICES"] = ",".join(job.visible)
    return kept_environment(inherited) | own


def oom_kills(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Kills so far: of this process's cgroup (v2) where it is counted, else of the machine.

    Two calls are compared; 0 where nothing counts them. Sources: ``memory.events`` in the
    kernel's admin-guide/cgroup-v2, and ``oom_kill`` of /proc/vmstat.
    """
    places = [proc / "vmstat"]
    for line in _lines(proc / "self" / "cgroup"):
        if line.startswith("0::/"):
            places.insert(0, cgroups / line.removeprefix("0::/") / "memory.events")
    for place in places:
        for line in _lines(place):
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
