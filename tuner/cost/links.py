"""Collectives as latency and bandwidth of a ring on the cluster's links.

The ring's steps and bytes are those of NCCL (https://github.com/NVIDIA/nccl-tests, PERFORMANCE.md);
efficiencies are in ``catalog/costs.toml``. There are two latencies: NCCL's own, for collectives
that are queued on a stream (:func:`ring_s`), and one fitted to nanotron, in which what ranks of
several nodes lose on each other is contained (:func:`gather_s`).
"""

from dataclasses import dataclass
from math import inf

from tuner.cluster import Cluster
from tuner.cost.axes import Axis, Sizes
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
    steps = group.ranks - 1
    sent = size_bytes * steps / group.ranks
    latency = cluster.intra_node.latency_s or 0.0
    if group.nodes > 1:
        latency = costs.time.inter_step_s
    return steps * latency + sent / _ring_bytes_per_s(group, cluster, costs)


def reduce_s(size_bytes: float, group: Group, cluster: Cluster, costs: Costs) -> float:
    """Seconds of an all-reduce: a reduce-scatter and an all-gather."""
    return 2 * gather_s(size_bytes, group, cluster, costs)


def ring_s(
    size_bytes: float, count: int, group: Group, cluster: Cluster, costs: Costs, *, twice: bool
) -> float:
    """Seconds of ``count`` collectives of ``size_bytes`` whole bytes together, one after another.

    Latencies are NCCL's planning figures: each of a ring's steps within a node takes the link's,
    each between nodes the network's (NCCL src/graph/tuning.cc).

    Args:
        size_bytes: of the whole tensors.
        count: how many collectives they are.
        group: ranks that take part.
        cluster: where; a link without a known latency has none.
        costs: constants.
        twice: an all-reduce, which goes around the ring twice, in one kernel.
    """
    if group.ranks == 1 or count == 0:
        return 0.0
    steps, between = group.ranks - 1, group.nodes - 1
    latency = (steps - between) * (cluster.intra_node.latency_s or 0.0)
    latency += between * (cluster.inter_node.latency_s or 0.0)
    sent = size_bytes * steps / group.ranks
    around = count * latency + sent / _ring_bytes_per_s(group, cluster, costs)
    return count * costs.time.collective_s + (1 + twice) * around


def limiting_link(group: Group, cluster: Cluster, costs: Costs) -> str:
    """Which links a group's ring goes at the pace of: ``intra`` or ``inter`` node."""
    within, between = _link_bytes_per_s(group, cluster, costs)
    return "intra" if within <= between else "inter"


def _ring_bytes_per_s(group: Group, cluster: Cluster, costs: Costs) -> float:
    """What one rank sends, on the slowest of the ring's links."""
    return min(_link_bytes_per_s(group, cluster, costs))


def _link_bytes_per_s(group: Group, cluster: Cluster, costs: Costs) -> tuple[float, float]:
    """What one rank could send within a node, and between nodes; infinite where the ring is not.

    A group that spans nodes has the ports of all its ranks on a node. Rings over more nodes than
    two reach less of them, by a power of the number that is fitted.
    """
    t = costs.time
    within = t.intra_efficiency * (cluster.intra_node.bytes_per_s or 1.0)
    if group.nodes == 1:
        return within, inf
    ports = t.inter_efficiency * (cluster.inter_node.bytes_per_s or 1.0)
    between = float(ports * group.ranks_per_node / (group.nodes / 2) ** t.scale_exponent)
    return (within if group.ranks_per_node > 1 else inf), between


def axis_group(axis: Axis, sizes: Sizes, cluster: Cluster) -> Group:
    """The ranks of a mesh axis: ``tp`` innermost, replicas of hybrid sharding outermost."""
    if axis is Axis.TP:
        return tensor_group(cluster, sizes.tp)
    if axis is Axis.DP_REPLICATE:
        return Group(ranks=sizes.replicate, ranks_per_node=1)
    return data_group(cluster, sizes.tp, sizes.dp if axis is Axis.DP else sizes.shard)


def used_groups(sizes: Sizes, cluster: Cluster) -> list[Group]:
    """Groups of more than one rank that a step communicates in."""
    axes = [Axis.TP, Axis.DP_SHARD, Axis.DP_REPLICATE]
    if sizes.shard == 1 and sizes.replicate == 1:
        axes = [Axis.TP, Axis.DP]
    return [g for g in (axis_group(axis, sizes, cluster) for axis in axes) if g.ranks > 1]
