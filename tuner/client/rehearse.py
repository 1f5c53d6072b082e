"""``tuner.rehearse``: the user's own script as one rank of many, on a machine without a GPU."""

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.catalog.gpus import gpu_kinds
from tuner.client.request import read_cluster
from tuner.client.values import ClusterLike
from tuner.client.worker_process import NoSignals, Signals, worked
from tuner.core.cluster import Cluster, Device
from tuner.core.quantity import Provenance
from tuner.cost.constants import default_costs
from tuner.cost.time.rehearsed import Launches, RehearsedTime, rehearsed_time
from tuner.errors import ProbeError, UsageError

# What its figures are: torch's own allocator counted them for the script itself, on no GPU.
REHEARSED = Provenance.REHEARSED
LAST = "last"
MOST_STEPS = 1000
LONGEST_S = 86_400.0
MOST_TOKENS = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What a script did as some ranks of a cluster, with memory that no GPU had."""

    command: tuple[str, ...]
    cluster: Cluster | None  # ``None`` where no GPU was named, and memory has no bound
    ranks: tuple[Mapping[str, Any], ...]
    """A record of each rank: ``outcome`` (``ok``, ``oom``, ``failed``, ``time``), ``steps`` and
    ``memory`` in bytes, ``moments`` with the lines that held it, ``collectives``, ``not_run``, and
    ``time``: a :class:`RehearsedTime`, which is predicted."""

    @property
    def fits(self) -> bool | None:
        """False if a rank ran out of memory; ``None`` where that is not known."""
        if self.cluster is None:
            return None
        if any(rank["outcome"] == "oom" for rank in self.ranks):
            return False
        return True if all(rank["steps"] for rank in self.ranks) else None

    def as_dict(self) -> dict[str, Any]:
        return {
            "provenance": str(REHEARSED),
            "command": list(self.command),
            "cluster": None if self.cluster is None else self.cluster.as_dict(),
            "fits": self.fits,
            "ranks": list(self.ranks),
        }


def rehearse(
    command: Sequence[str],
    *,
    cluster: ClusterLike | None = None,
    ranks: Sequence[int | str] = (0,),
    steps: int = 3,
    seconds: float = 600.0,
    tokens_per_step: int | None = None,
    network: bool = False,
    writes: bool = False,
    even_here: bool = False,
    snapshot: str | Path | None = None,
    signals: Signals | None = None,
) -> Rehearsal:
    """Runs a command's script as ranks of a cluster, one after another, without a GPU.

    >>> found = tuner.rehearse(["torchrun", "--nproc-per-node", "8", "train.py"],
    ...                        cluster="8x8xh100-80gb")  # doctest: +SKIP
    >>> found.fits, found.ranks[0]["memory"]["allocated_bytes"]  # doctest: +SKIP

    Args:
        command: as it would be typed: torchrun, accelerate launch, deepspeed or python.
        cluster: whose GPUs it is for; left out, nothing runs out of memory.
        ranks: numbers, or ``last``.
        steps: of the optimizer; after one more, of which the time is predicted, a rank ends.
        seconds: after which it ends all the same.
        tokens_per_step: of all ranks; left out, each is taken to have its own.
        network: lets it reach other machines.
        writes: lets it write where it wants, and save.
        even_here: also where this machine has a GPU, which is not used.
        snapshot: folder for torch's memory snapshots, one for each rank.

    Raises:
        UsageError: an argument is wrong.
        ProbeError: it is not possible here, or the script never began.
        StoppedError: a signal asked this process to end.
    """
    found = None if cluster is None else read_cluster(cluster)
    order = order_of(command, found, ranks, steps=steps, seconds=seconds)
    if tokens_per_step is not None and not 1 <= tokens_per_step <= MOST_TOKENS:
        allowed = f"must be from 1 to {MOST_TOKENS}"
        raise UsageError("tokens_per_step", tokens_per_step, allowed)
    order |= {"network": network, "writes": writes, "even_here": even_here}
    order["timed"] = found is not None
    order["snapshot"] = "" if snapshot is None else str(Path(snapshot).absolute())
    with tempfile.TemporaryDirectory(prefix="tuner-rehearsal-") as folder:
        asked, out = Path(folder) / "order.json", Path(folder) / "out.json"
        asked.write_text(json.dumps(order), encoding="utf-8")
        argv = [sys.executable, "-P", "-m", "workers.rehearsal"]
        argv += ["--order", str(asked), "--out", str(out)]
        kept = "nothing is left of the rehearsal"
        code, words = worked(argv, {}, signals or NoSignals(), kept)
        if code != 0 or not out.exists():
            raise ProbeError(f"the rehearsal failed: {words}")
        told = json.loads(out.read_text(encoding="utf-8"))
    if "error" in told:
        raise ProbeError(told["error"])
    for rank in told["ranks"]:
        launches = rank.pop("launches", {"unknown": rank["detail"]})
        if found is None:
            timed = RehearsedTime(unknown="no GPU was named")
        elif "unknown" in launches:
            timed = RehearsedTime(unknown=launches["unknown"])
        else:
            read, per_step = Launches.from_dict(launches), tokens_per_step or 0
            timed = rehearsed_time(read, found, default_costs(), tokens_per_step=per_step)
        rank["time"] = timed.as_dict()
    return Rehearsal(command=tuple(command), cluster=found, ranks=tuple(told["ranks"]))


def order_of(
    command: Sequence[str],
    cluster: Cluster | None,
    ranks: Sequence[int | str],
    *,
    steps: int,
    seconds: float,
) -> dict[str, Any]:
    """Makes the order to the worker, but for what may be done."""
    if isinstance(command, str) or not command or not all(isinstance(one, str) for one in command):
        raise UsageError("command", command, "must be words, such as torchrun train.py")
    if not 1 <= steps <= MOST_STEPS:
        raise UsageError("steps", steps, f"must be from 1 to {MOST_STEPS}")
    if not 1 <= seconds <= LONGEST_S:
        raise UsageError("seconds", seconds, f"must be from 1 to {LONGEST_S:g}")
    if cluster is not None and cluster.gpu.device is not Device.CUDA:
        raise UsageError("cluster", cluster.name, "must have GPUs: name a kind, as 8xh100-80gb")
    kind = gpu_kinds().get(cluster.gpu.name) if cluster else None
    if kind is not None and not kind.compute_capability:
        raise UsageError("cluster", kind.name, "must have NVIDIA's GPUs: CUDA is stood in for")
    memory = kind.cuda_bytes if kind else cluster.gpu.memory_bytes if cluster else 0
    capability = cluster.gpu.capability if cluster else (9, 0)
    return {
        "command": list(command),
        "where": str(Path.cwd()),
        "ranks": [_rank(one, cluster) for one in ranks],
        "nodes": cluster.nodes if cluster else 0,
        "gpus_per_node": cluster.gpus_per_node if cluster else 0,
        "gpu_name": kind.driver_names[0] if kind else "NVIDIA GPU",
        "capability": ".".join(map(str, capability)),
        "memory_mib": memory >> 20,
        "steps": steps,
        "seconds": seconds,
    }


def _rank(asked: int | str, cluster: Cluster | None) -> int:
    """A rank's number; -1 for the last of as many as the command has."""
    text = str(asked).strip()
    if text == LAST:
        return cluster.world_size - 1 if cluster else -1
    most = cluster.world_size if cluster else None
    if not text.isdecimal() or (most is not None and int(text) >= most):
        allowed = f"must be numbers{f' below {most}' if most else ''}, or {LAST}"
        raise UsageError("ranks", text, allowed)
    return int(text)
