"""The nodes of the Ray cluster that this process is connected to, and what a job takes of each."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workers.launchers.base import Job
from workers.launchers.ray.node import facts

# Of :class:`workers.launchers.site.Facts`.
FactsDict = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node that is there, as Ray has it."""

    id: str  # ray's, new at each start of the node
    address: str
    cpus: float  # CPUs that Ray gives away
    gpus: int  # GPUs that Ray gives away


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
    """The share of each node that a job takes: a GPU for each rank, and as many CPUs as a GPU has.

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


# Seconds for what nodes say of themselves: a process is started on each, and a driver may wake its
# GPUs.
FACTS_S = 20.0


def alive() -> dict[str, Node]:
    """The nodes that are there and run anything at all, by their ids."""
    nodes = (node for node in ray.nodes() if node["Alive"])
    return {node.id: node for node in map(_node, nodes) if node.cpus >= 1}


def look_at(nodes: Mapping[str, Node]) -> tuple[dict[str, FactsDict], dict[str, str]]:
    """Asks nodes for what they have; the facts, and why others cannot be used, both by node."""
    asked = {_ask(node): node for node in nodes.values()}
    done, late = ray.wait(list(asked), num_returns=len(asked), timeout=FACTS_S)
    ours = metadata.version("tuner")
    found: dict[str, FactsDict] = {}
    useless = {asked[ref].id: f"it did not answer within {FACTS_S:.0f} s" for ref in late}
    for ref in done:
        node = asked[ref]
        try:
            said = ray.get(ref)
        except ray.exceptions.RayError as error:
            useless[node.id] = why(error)
            continue
        if said["version"] == ours:
            found[node.id] = said["facts"]
        else:
            useless[node.id] = f"it has tuner {said['version']}, and {ours} is here"
    return found, useless


def why(error: Exception) -> str:
    """The last line of an error of Ray's, which holds what went wrong on the other side."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__


def _node(values: Mapping[str, Any]) -> Node:
    has = values["Resources"]
    return Node(
        id=values["NodeID"],
        address=values["NodeManagerAddress"],
        cpus=has.get("CPU", 0.0),
        gpus=int(has.get("GPU", 0)),
    )


def _ask(node: Node) -> Any:
    there = NodeAffinitySchedulingStrategy(node.id, soft=False)
    task = ray.remote(facts).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
    return task.remote(node.gpus)
