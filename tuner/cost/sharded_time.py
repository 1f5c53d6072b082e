"""Seconds of a step of torch, accelerate and trainer: DDP or FSDP2, and tensor parallelism.

What is hidden: FSDP gathers a layer's parameters while the one before computes, and reduces its
gradients while the next one's backward runs, so a layer costs the longer of the two; the first
gather and the last reduction stand alone. DDP reduces beside the last backward. Tensor-parallel
collectives are waited for. Constants: ``catalog/costs.toml``.
"""

from tuner.cluster import Cluster
from tuner.cost.compute import stage_compute_s
from tuner.cost.constants import Costs
from tuner.cost.links import Group, data_group, gather_s, reduce_s, tensor_group
from tuner.cost.memory import COMPUTE_BYTES, REDUCE_BYTES, WEIGHT_BYTES
from tuner.cost.stages import Stage, counts
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.workload import Workload

_FSDP = (Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD, Sharding.HYBRID_SHARD)
_LAYER = Stage(layers=1, embedding=False, head=False, blocks=1)
_ENDS = Stage(layers=0, embedding=True, head=True, blocks=2)


def sharded_step_s(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> float:
    """Seconds of an optimizer step; rates of GPU and links must be known."""
    steps = settings.gradient_accumulation_steps
    synced = _micro_batch_s(workload, settings, cluster, costs, reduces=True)
    update = _update_s(workload, settings, cluster, costs)
    if settings.sync_each_batch or steps == 1:
        return steps * synced + update
    waiting = _micro_batch_s(workload, settings, cluster, costs, reduces=False)
    return (steps - 1) * waiting + synced + update


def _micro_batch_s(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs, *, reduces: bool
) -> float:
    layers, tp = workload.model.layers, settings.tp_size
    layer_s = _layer_s(workload, settings, cluster, costs)
    ends_s = stage_compute_s(workload, settings, cluster, costs, _ENDS)
    forward, backward = layer_s / 3, 2 * layer_s / 3
    whole = workload.model.parameters / tp
    one = counts(workload.model).layer / tp
    group, replicas = _groups(settings, cluster)
    assert workload.reduce_dtype is not None
    reduction = REDUCE_BYTES[workload.reduce_dtype]
    if settings.sharding not in _FSDP:
        traffic = reduces * reduce_s(reduction * whole, group, cluster, costs)
        exposed = max(costs.time["data_exposed"] * traffic, traffic - layers * backward)
        return layers * layer_s + ends_s + exposed
    gather = gather_s(COMPUTE_BYTES[workload.precision] * one, group, cluster, costs)
    scatter = reduces * gather_s(reduction * one, group, cluster, costs)
    scatter += reduces * reduce_s(reduction * one / group.ranks, replicas, cluster, costs)
    again = 0.0 if settings.sharding is Sharding.SHARD_GRAD_OP else gather
    # Gathers and reductions share the links.
    hidden = layers * (max(forward, gather) + max(backward, again + scatter))
    return hidden + ends_s + gather + scatter


def _layer_s(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> float:
    """Forward and backward of one layer: the longer of the GPU's path and the host's."""
    gpu = stage_compute_s(workload, settings, cluster, costs, _LAYER)
    if settings.tp_size > 1:
        group = tensor_group(cluster, settings.tp_size)
        size = COMPUTE_BYTES[workload.precision] * workload.model.hidden_size
        size *= settings.micro_batch_size * workload.sequence_length
        number = costs.time["tp_collectives"] + 2 * settings.tp_recompute_allgather
        gpu += number * gather_s(size, group, cluster, costs)
    again = 4 / 3 if settings.activation_checkpointing is Checkpointing.FULL else 1.0
    return max(gpu, again * costs.time["torch_host_s"])


def _groups(settings: Settings, cluster: Cluster) -> tuple[Group, Group]:
    """Ranks that shard among themselves, and ranks that hold equal shards."""
    dp = settings.data_parallel_size(cluster.world_size)
    if settings.sharding is not Sharding.HYBRID_SHARD:
        return data_group(cluster, settings.tp_size, dp), Group(ranks=1, ranks_per_node=1)
    within = max(1, dp // cluster.nodes)
    own = Group(ranks=within, ranks_per_node=within)
    return own, Group(ranks=cluster.nodes, ranks_per_node=1)


def _update_s(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> float:
    """The optimizer: 30 bytes per fp32 parameter with Adam, in proportion for others."""
    parameters = workload.model.parameters / settings.tp_size
    if settings.sharding in _FSDP:
        parameters /= _groups(settings, cluster)[0].ranks
    weight = WEIGHT_BYTES[workload.precision]
    assert cluster.gpu.memory_bytes_per_s is not None
    if settings.cpu_offload:  # gradients out and weights in, over the slower of links
        assert cluster.inter_node.bytes_per_s is not None
        return 2 * weight * parameters / cluster.inter_node.bytes_per_s
    return parameters * 7 * weight / cluster.gpu.memory_bytes_per_s
