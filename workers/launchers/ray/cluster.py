"""The nodes of the Ray cluster that this process is connected to: what Ray and they say of them."""

from collections.abc import Mapping
from importlib import metadata
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from workers.launchers.ray.node import facts
from workers.launchers.ray.nodes import FactsDict, Node

FACTS_S = 20.0
"""Seconds for what nodes say of themselves: a process is started on each, and a driver may wake
its GPUs."""


def alive() -> dict[str, Node]:
    """The nodes that are there and run anything at all, by their ids."""
    nodes = (node for node in ray.nodes() if node["Alive"])
    return {node.id: node for node in map(_node, nodes) if node.cpus >= 1}


def look_at(nodes: Mapping[str, Node]) -> tuple[dict[str, FactsDict], dict[str, str]]:
    """What nodes say of themselves, and why others cannot be used; both by node."""
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
