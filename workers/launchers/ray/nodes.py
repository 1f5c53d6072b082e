"""Nodes of a Ray cluster: which of them are used, and what a job takes of each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workers.launchers.base import Job

FactsDict = dict[str, Any]
"""Of :class:`workers.launchers.facts.Facts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is there, as Ray has it."""

    id: str
    """Ray's, new at each start of the node."""
    address: str
    """Its IP address."""
    cpus: float
    """That Ray gives away."""
    gpus: int
    """As well."""


class NotPlacedError(Exception):
    """The job cannot be placed, or a rank cannot be started; the text says why."""


def alike(facts_by_node: Mapping[str, FactsDict]) -> list[str]:
    """The largest group of nodes of one kind, counted in GPUs, or in nodes where there are none.

    A job's ranks are all of one kind, and what is judged before it is started must be what it
    is started on.
    """
    groups: dict[object, list[str]] = {}
    for node, said in sorted(facts_by_node.items()):
        machine = said["machine"]
        gpus = tuple((gpu["name"], gpu["memory_mib"]) for gpu in machine["gpus"])
        groups.setdefault((gpus, machine["processor"], machine["cores"]), []).append(node)
    return max(
        groups.values(), key=lambda group: (len(group) * _gpus(facts_by_node[group[0]]), len(group))
    )


def bundle(job: Job, nodes: Sequence[Node]) -> dict[str, float]:
    """What a job takes of each of its nodes: a GPU for each rank and as many CPUs as are a GPU's.

    CPU ranks have a node's cores for themselves.

    Raises:
        NotPlacedError: the nodes do not have it.
    """
    wanted = job.ranks_per_node if job.device == "cuda" else 0
    fit = [node for node in nodes if node.gpus >= wanted]
    if len(fit) < job.nodes:
        what = f"with {wanted} GPUs" if wanted else "of one kind"
        raise NotPlacedError(f"{job.nodes} Ray nodes {what} are needed, and {len(fit)} are there")
    cpus = min(node.cpus * (wanted / node.gpus if wanted else 1.0) for node in fit)
    share = max(math.floor(cpus / job.ranks_per_node * 1000) / 1000, 0.001)
    found = {"CPU": share * job.ranks_per_node}
    return {**found, "GPU": float(wanted)} if wanted else found


def _gpus(said: FactsDict) -> int:
    return len(said["machine"]["gpus"])
