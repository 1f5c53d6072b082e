"""Collectives as latency and bandwidth of a ring on the cluster's links.

The ring's steps and bytes are those of NCCL (https://github.com/NVIDIA/nccl-tests, PERFORMANCE.md);
efficiencies are in ``catalog/costs.toml``. There are two latencies: NCCL's own, for collectives
that are queued on a stream (:func:`ring_s`), and one fitted to nanotron, in which what ranks of
several nodes lose on each other is contained (:func:`gather_s`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from math import inf

from tuner.core.cluster import Cluster
from tuner.core.measurement import Phase
from tuner.cost.constants import Costs
from tuner.cost.memory.shards import Axis, Sizes
from tuner.cost.time.collectives import Op, Overlap, StepCollective


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Ranks that communicate."""

    ranks: int  # number of ranks
    ranks_per_node: int  # how many of them share a node

    @property
    def nodes(self) -> int:
        """Nodes that they lie on."""
        return -(-self.ranks // self.ranks_per_node)


def tensor_group(cluster: Cluster, tp: int) -> Group:
    """Tensor-parallel ranks are neighbors."""
    return Group(ranks=tp, ranks_per_node=min(tp, cluster.gpus_per_node))


def data_group(cluster: Cluster, tp: int, dp_size: int) -> Group:
    """Data-parallel ranks lie ``tp`` apart."""
    per_node = max(1, cluster.gpus_per_node // tp)
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
    return steps * latency + sent / min(_link_bytes_per_s(group, cluster, costs))


def ring_s(
    size_bytes: float, count: int, group: Group, cluster: Cluster, costs: Costs, *, twice: bool
) -> float:
    """Seconds of ``count`` collectives of ``size_bytes`` whole bytes together, one after another.

    Latencies are NCCL's planning figures: each of a ring's steps within a node takes the link's,
    each between nodes the network's (NCCL src/graph/tuning.cc); an unknown one counts as none.
    An all-reduce goes around the ring ``twice``, in one kernel.
    """
    if group.ranks == 1 or count == 0:
        return 0.0
    steps, between = group.ranks - 1, group.nodes - 1
    latency = (steps - between) * (cluster.intra_node.latency_s or 0.0)
    latency += between * (cluster.inter_node.latency_s or 0.0)
    sent = size_bytes * steps / group.ranks
    around = count * latency + sent / min(_link_bytes_per_s(group, cluster, costs))
    return count * costs.time.collective_s + (1 + twice) * around


def collective_s(
    op: str, size_bytes: float, group: Group, cluster: Cluster, costs: Costs, *, count: int = 1
) -> float:
    """The same of one operation, as much longer than its ring as was measured of it."""
    twice = op == Op.ALL_REDUCE
    seconds = ring_s(size_bytes, count, group, cluster, costs, twice=twice)
    if costs.ring_factors:
        # of the links whose pace the ring goes at
        within, between = _link_bytes_per_s(group, cluster, costs)
        link = "intra" if within <= between else "inter"
        seconds *= costs.ring_factors.get((link, op), 1.0)
    return seconds


def _link_bytes_per_s(group: Group, cluster: Cluster, costs: Costs) -> tuple[float, float]:
    """Rates at which one rank could send within a node and between nodes; infinite where the ring
    is not.

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
    """The ranks of a mesh axis: ``tp`` or ``cp`` innermost, replicas of hybrid sharding outermost
    (``mesh_order`` in accelerate's parallelism_config.py)."""
    if axis in (Axis.TP, Axis.CP):  # never both
        return tensor_group(cluster, sizes.tp if axis is Axis.TP else sizes.cp)
    if axis is Axis.DP_REPLICATE:
        return Group(ranks=sizes.replicate, ranks_per_node=1)
    return data_group(cluster, sizes.tp, sizes.dp if axis is Axis.DP else sizes.shard)


def used_groups(sizes: Sizes, cluster: Cluster) -> list[Group]:
    """Groups of more than one rank that a step communicates in."""
    axes = [Axis.TP, Axis.CP, Axis.DP_SHARD, Axis.DP_REPLICATE]
    if sizes.shard == 1 and sizes.replicate == 1:
        axes = [Axis.TP, Axis.DP]
    return [g for g in (axis_group(axis, sizes, cluster) for axis in axes) if g.ranks > 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSeconds:
    """Seconds of one optimizer step on the links, by what runs at the same time."""

    tensor_forward: float = 0.0  # tensor-parallel collectives of forward and loss, a ring's gathers
    tensor_backward: float = 0.0  # the same of backward
    exposed: float = 0.0  # first gathers, last reductions
    gathers_forward: float = 0.0  # gathers behind forward
    gathers_backward: float = 0.0  # gathers behind backward, and what a ring sends
    reductions: float = 0.0  # reductions behind those backward passes that synchronize
    replicas: float = 0.0  # the same between nodes under hybrid sharding: on other links


_BESIDE = tuple(f.name for f in fields(LinkSeconds))


@dataclass(frozen=True, slots=True, kw_only=True)
class Computing:
    """Seconds of one optimizer step on the device, over all its micro-batches."""

    forward: float  # forward, with the loss
    backward: float  # backward, with forward again where activations are checkpointed


def link_seconds(
    collectives: Iterable[StepCollective], sizes: Sizes, cluster: Cluster, costs: Costs
) -> LinkSeconds:
    """The collectives of one optimizer step of rank 0, each priced on its links, whose bandwidth
    must be known where they are used."""
    found = dict.fromkeys(_BESIDE, 0.0)
    groups = {axis: axis_group(axis, sizes, cluster) for axis in Axis}
    for item in collectives:
        group, size = groups[item.axis], item.bytes
        if item.op is Op.PERMUTE:  # one port between nodes, one of a ring's steps
            group = Group(ranks=2, ranks_per_node=2 if group.nodes == 1 else 1)
            size *= 2
        seconds = collective_s(item.op, size, group, cluster, costs, count=item.count)
        backward = item.phase is Phase.BACKWARD
        if item.op is Op.PERMUTE:
            beside = "gathers_backward"
        elif item.axis in (Axis.TP, Axis.CP):
            beside = "tensor_backward" if backward else "tensor_forward"
        elif item.overlap is Overlap.EXPOSED:
            beside = "exposed"
        elif item.axis is Axis.DP_REPLICATE:
            beside = "replicas"
        elif item.op is not Op.ALL_GATHER:
            beside = "reductions"
        else:
            beside = "gathers_backward" if backward else "gathers_forward"
        found[beside] += seconds
    return LinkSeconds(**found)


def passes_s(
    computing: Computing, links: LinkSeconds, *, passes: int, synced: int, joined: int, costs: Costs
) -> float:
    """Seconds of a step's forward and backward passes, with what computing waits for.

    Of the micro-batches, ``passes``, ``synced`` are those whose backward reduces gradients, and
    ``joined`` of these those that reduce over replicas too.
    """

    def beside(computing: float, communicating: float) -> float:
        """Both at once: the longer, and what the one loses to the other while both go on."""
        busy = costs.time.overlap_cost * min(computing, communicating)
        return max(computing, communicating) + busy

    forward = beside(computing.forward + links.tensor_forward, links.gathers_forward)
    each = (computing.backward + links.tensor_backward) / passes
    gather = links.gathers_backward / passes
    backward = (passes - synced) * beside(each, gather)
    sent = gather + links.reductions / synced
    backward += (synced - joined) * beside(each, sent)
    backward += joined * beside(each, max(sent, links.replicas / joined))
    return forward + backward + links.exposed
