"""Collectives as latency and bandwidth of a ring on the cluster's links.

The ring's steps and bytes are those of NCCL (https://github.com/NVIDIA/nccl-tests, PERFORMANCE.md);
efficiencies are in ``catalog/costs.toml``.
"""

from dataclasses import dataclass

from tuner.cluster import Cluster
from tuner.cost.constants import Costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate."""

    ranks: int
    """Number of ranks."""
    ranks_per_node: int
    """How many of them share a node."""

    @property
    def nodes(self) -> int:
        """Nodes that they lie on."""
        return -(-self.ranks // self.ranks_per_node)


def tensor_group(cluster: Cluster, tp_size: int) -> Group:
    """Tensor-parallel ranks are neighbors."""
    return Group(ranks=tp_size, ranks_per_node=min(tp_size, cluster.gpus_per_node))


def data_group(cluster: Cluster, tp_size: int, dp_size: int) -> Group:
    """Data-parallel ranks lie ``tp_size`` apart."""
    per_node = max(1, cluster.gpus_per_node // tp_size)
    return Group(ranks=dp_size, ranks_per_node=min(per_node, dp_size))


def gather_s(size_bytes: float, group: Group, cluster: Cluster, costs: Costs) -> float:
    """Seconds of an all-gather or reduce-scatter of ``size_bytes`` unsharded bytes.

    A group that spans nodes has the network ports of all its ranks on a node.
    """
    if group.ranks == 1:
        return 0.0
    t, steps = costs.time, group.ranks - 1
    sent = size_bytes * steps / group.ranks
    rate = t["intra_efficiency"] * (cluster.intra_node.bytes_per_s or 1.0)
    latency = cluster.intra_node.latency_s or 0.0
    if group.nodes > 1:
        ports = t["inter_efficiency"] * (cluster.inter_node.bytes_per_s or 1.0)
        rate = min(rate, ports * group.ranks_per_node / (group.nodes / 2) ** t["scale_exponent"])
        latency = t["inter_step_s"]
    return steps * latency + sent / rate


def reduce_s(size_bytes: float, group: Group, cluster: Cluster, costs: Costs) -> float:
    """Seconds of an all-reduce: a reduce-scatter and an all-gather."""
    return 2 * gather_s(size_bytes, group, cluster, costs)
