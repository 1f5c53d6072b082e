"""Seconds of nanotron's step: 1F1B over stages, tensor and data parallelism within each.

A stage's micro-batch takes the longer of the GPU's path (compute, and the tensor-parallel traffic
that cannot be hidden) and the host's (launching kernels). The pipeline then costs m - 1 times the
slowest stage and once all of them (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473).
"""

from math import exp, log2

from tuner.cluster import Cluster
from tuner.cost.compute import stage_compute_s
from tuner.cost.constants import Costs
from tuner.cost.links import data_group, gather_s, reduce_s, tensor_group
from tuner.cost.pipeline_memory import stage_memory
from tuner.cost.stages import Stage, stage_parameters, stages
from tuner.settings import Settings, Sharding
from tuner.workload import Workload


def pipeline_step_s(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> float:
    """Seconds of an optimizer step; rates of GPU and links must be known."""
    held = stages(workload.model, settings.pp_size)
    each = [_micro_batch_s(workload, settings, cluster, costs, stage) for stage in held]
    steps = settings.gradient_accumulation_steps
    slots = steps + settings.pp_size - 1
    stall = _stall_s(workload, settings, cluster, costs)
    ends = max(
        _update_s(workload, settings, cluster, costs, s, e) for s, e in zip(held, each, strict=True)
    )
    return (steps - 1) * max(each) + sum(each) + slots * stall + ends


def spans_nodes(settings: Settings, cluster: Cluster) -> bool:
    """Whether stages exchange over the network."""
    return settings.pp_size > 1 and cluster.nodes > 1


def _micro_batch_s(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs, stage: Stage
) -> float:
    compute = stage_compute_s(workload, settings, cluster, costs, stage)
    t, tp = costs.time, settings.tp_size
    host, traffic = t["layer_host_s"], 0.0
    if tp > 1:
        group = tensor_group(cluster, tp)
        size = 2.0 * settings.micro_batch_size * workload.sequence_length
        once = gather_s(size * workload.model.hidden_size, group, cluster, costs)
        number = t["tp_collectives"] + 2 * settings.tp_recompute_allgather
        traffic = number * once * (t["tp_exposed"] if group.nodes == 1 else 1.0)
        if spans_nodes(settings, cluster):
            host += t["pipelined_host_s"] * tp * max(1.0, group.nodes / 2)
    gpu = compute + stage.layers * traffic
    return float((gpu**6 + (host * stage.layers) ** 6) ** (1 / 6))


def _stall_s(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> float:
    """Expected stall of one slot: exchanges of stages, and an allocator short of memory.

    The sweep's pipelines over nodes run either at full speed or half a second per neighbor and
    slot slower: always with ZeRO 0 and data parallelism, and mostly from some hundred ranks on.
    """
    t, pp = costs.time, settings.pp_size
    neighbors = min(pp - 1, 2)
    memory = stage_memory(workload, settings, cluster.world_size, costs)
    full = memory.reserved_bytes / cluster.gpu.memory_bytes
    short = _sigmoid((full - t["stall_memory"]) * 40)
    often = 0.0
    if spans_nodes(settings, cluster):
        often = _sigmoid((log2(cluster.world_size) - t["stall_ranks_log2"]) * 3)
        if (
            settings.sharding is Sharding.DDP
            and settings.data_parallel_size(cluster.world_size) > 1
        ):
            often = max(often, t["stall_replicated"])
    return t["stall_s"] * (neighbors * often + max(neighbors, 1) * short * (1 - often))


def _sigmoid(x: float) -> float:
    return 1 / (1 + exp(-max(-40.0, min(40.0, x))))


def _update_s(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    costs: Costs,
    stage: Stage,
    micro_batch_s: float,
) -> float:
    """Reducing fp32 gradients beside the last backward, and the optimizer."""
    t, tp = costs.time, settings.tp_size
    dp = settings.data_parallel_size(cluster.world_size)
    parameters = stage_parameters(workload.model, stage) / tp
    group = data_group(cluster, tp, dp)
    traffic = reduce_s(4 * parameters, group, cluster, costs)
    exposed = max(t["data_exposed"] * traffic, traffic - micro_batch_s / 2)
    zero1 = settings.sharding is Sharding.ZERO1
    if zero1:
        exposed += gather_s(2 * parameters, group, cluster, costs)
    shards = dp if zero1 else 1
    assert cluster.gpu.memory_bytes_per_s is not None
    # Clipping reads fp32 gradients twice; Adam reads 16 bytes and writes 14.
    return exposed + parameters * (8 + 30 / shards) / cluster.gpu.memory_bytes_per_s
