"""nanotron's step: how a model is cut into pipeline stages, their memory, and seconds of 1F1B.

A stage's micro-batch takes the longer of the GPU's path (compute, and the tensor-parallel traffic
that cannot be hidden) and the host's (launching kernels). The pipeline then costs m - 1 times the
slowest stage and once all of them (Narayanan et al. 2021, https://arxiv.org/abs/2104.04473).

Published runs of one cluster of H100s also stall, for reasons that are not published; what that may
add is kept apart from the rest (:class:`PipelineSeconds`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import exp, log2

from tuner.core.cluster import Cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.measurement import Category
from tuner.core.workload import Workload
from tuner.cost.constants import Costs
from tuner.cost.memory.shards import COMPUTE_BYTES, axis_sizes
from tuner.cost.memory.tensors import counts
from tuner.cost.time.communication import data_group, gather_s, tensor_group
from tuner.cost.time.compute import peak_flops_per_s
from tuner.model import ModelConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One pipeline stage: its layers and its end pieces."""

    layers: int  # decoder layers
    embedding: bool  # the token embedding
    head: bool  # the output head
    blocks: int  # parts of any kind, also those without parameters; a stage without any cannot run


@lru_cache(maxsize=1024)
def stages(model: ModelConfig, pp_size: int) -> tuple[Stage, ...]:
    """Stages as nanotron cuts them (``nanotron/models/base.py``, ``build_model``).

    Parts in order go to a stage until it has more than its share of the cost; layers and head
    cost their parameters, the embedding, the last norm, the cast and the loss nothing.
    """
    found = counts(model)
    parts = [("embedding", 0.0)] + [("layers", found.active)] * model.layers
    parts += [("norm", 0.0), ("head", float(found.embedding)), ("cast", 0.0), ("loss", 0.0)]
    total = sum(cost for _, cost in parts)
    held: list[list[str]] = [[] for _ in range(pp_size)]
    stage, done = 0, 0.0
    for name, cost in parts:
        held[stage].append(name)
        done += cost
        if done > total * (stage + 1) / pp_size * (1 + 1e-12) and stage < pp_size - 1:
            stage += 1
    return tuple(
        Stage(
            layers=names.count("layers"),
            embedding="embedding" in names,
            head="head" in names,
            blocks=len(names),
        )
        for names in held
    )


def stage_parameters(model: ModelConfig, stage: Stage) -> float:
    """Parameters of a stage, before tensor parallelism; a tied head counts beside no embedding."""
    found = counts(model)
    head = stage.head and not (model.tied_embeddings and stage.embedding)
    return stage.layers * found.layer + (stage.embedding + head) * found.embedding


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes on one rank of a stage."""

    held: Mapping[Category, float]  # live at the peak of backward
    late_bytes: float  # freed late, because another stream used it: reserved, not allocated

    @property
    def reserved_bytes(self) -> float:
        return sum(self.held.values()) + self.late_bytes


def stage_memory(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs, index: int = 0
) -> StageMemory:
    """Bytes of stage ``index``; the first usually needs most, having most in flight."""
    m, model, sizes = costs.memory, workload.model, axis_sizes(settings, cluster)
    tp = sizes.tp
    stage = stages(model, settings.pp_size)[index]
    parameters = stage_parameters(model, stage) / tp
    shards = sizes.dp if settings.sharding is Sharding.ZERO1 else 1
    in_flight = min(settings.gradient_accumulation_steps, settings.pp_size - index)
    tokens = settings.micro_batch_size * workload.sequence_length
    channels = tokens * model.hidden_size
    kept = 2.0 * tokens * model.hidden_size / tp  # bytes of one layer and micro-batch
    if settings.activation_checkpointing is not Checkpointing.FULL:
        kept = 2.0 * tokens * counts(model).kept / tp
        if not settings.tp_recompute_allgather and tp > 1:
            # inputs of two linears stay gathered
            kept = kept + 2 * 2.0 * tokens * model.hidden_size * (1 - 1 / tp)
    layers = kept * stage.layers * in_flight
    carried = m.in_flight_bytes + m.in_flight_sharded_bytes / tp
    more = m.tp_factor if tp > 1 else 0.0
    late = 0.0
    if tp > 1 and settings.pp_size > 1:
        megabytes = 2e-6 * channels / tp
        share = 1 / (1 + (m.fragment_from_mb / megabytes) ** 4)
        late = m.fragment_factor * share * layers
    elif tp > 1:
        batches = min(settings.gradient_accumulation_steps, 8) / 8
        late = m.gathered_bytes * batches * channels
    gradients = m.accumulated_bytes + m.passing_bytes  # and the buffers of their reduction
    held = {
        Category.PARAMETERS: m.weight_bytes * parameters,
        Category.GRADIENTS_UNSHARDED: gradients * parameters,
        Category.OPTIMIZER_STATE: m.master_bytes * parameters / shards,
        Category.ACTIVATIONS: layers * (m.activation_factor + more)
        + carried * in_flight * channels,
        Category.LOGITS_AND_LOSS: stage.head * m.logit_bytes * tokens * model.vocab_size / tp,
    }
    return StageMemory(held=held, late_bytes=late)


def refused(workload: Workload, settings: Settings) -> str:
    """Why nanotron cannot run these settings, or nothing."""
    if settings.gradient_accumulation_steps < settings.pp_size - 1:
        return "1F1B needs at least pp_size - 1 micro-batches"
    if not all(stage.blocks for stage in stages(workload.model, settings.pp_size)):
        return "a pipeline stage is left without any part of the model"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSeconds:
    """Seconds of an optimizer step, and what stalls add to it."""

    unstalled_s: float  # without any stall
    exchange_stall_s: float  # expected to be added by exchanges of stages that lie on several nodes
    memory_stall_s: float  # expected to be added by an allocator that is short of memory
    most_stall_s: float  # expected of both, if memory is ``stall_memory_error`` more than predicted

    @property
    def expected_s(self) -> float:
        """With the expected stalls."""
        return self.unstalled_s + self.exchange_stall_s + self.memory_stall_s

    @property
    def most_s(self) -> float:
        """With the most that is expected if memory is underestimated."""
        return self.unstalled_s + self.most_stall_s


def pipeline_seconds(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> PipelineSeconds:
    """Seconds of an optimizer step; rates of GPU and links must be known."""
    t, tp = costs.time, axis_sizes(settings, cluster).tp
    dp = settings.data_parallel_size(cluster.world_size)

    def micro_batch_s(stage: Stage) -> float:
        host, traffic = t.layer_host_s, 0.0
        if tp > 1:
            group = tensor_group(cluster, tp)
            size = 2.0 * settings.micro_batch_size * workload.sequence_length
            once = gather_s(size * workload.model.hidden_size, group, cluster, costs)
            number = t.tp_collectives + 2 * settings.tp_recompute_allgather
            traffic = number * once * (t.tp_exposed if group.nodes == 1 else 1.0)
            if spans_nodes(settings, cluster):
                host += t.pipelined_host_s * tp * max(1.0, group.nodes / 2)
        gpu = _compute_s(workload, settings, cluster, costs, stage) + stage.layers * traffic
        return float((gpu**6 + (host * stage.layers) ** 6) ** (1 / 6))

    def update_s(stage: Stage, seconds: float) -> float:
        """Reducing fp32 gradients beside the last backward, and the optimizer."""
        parameters = stage_parameters(workload.model, stage) / tp
        group = data_group(cluster, tp, dp)
        # an all-reduce is a reduce-scatter and an all-gather
        traffic = 2 * gather_s(4 * parameters, group, cluster, costs)
        exposed = max(t.data_exposed * traffic, traffic - seconds / 2)
        zero1 = settings.sharding is Sharding.ZERO1
        if zero1:
            exposed += gather_s(2 * parameters, group, cluster, costs)
        assert cluster.gpu.memory_bytes_per_s is not None
        # Clipping reads fp32 gradients twice; Adam reads 16 bytes and writes 14.
        moved = parameters * (8 + 30 / (dp if zero1 else 1))
        return exposed + moved / cluster.gpu.memory_bytes_per_s

    held = stages(workload.model, settings.pp_size)
    # most stages hold as much as each other
    by_stage = {stage: micro_batch_s(stage) for stage in dict.fromkeys(held)}
    each = [by_stage[stage] for stage in held]
    steps = settings.gradient_accumulation_steps
    slots = steps + settings.pp_size - 1
    ends = max(update_s(stage, seconds) for stage, seconds in by_stage.items())
    # Expected stalls of one slot: exchanges of stages, an allocator short of memory. The sweep's
    # pipelines over nodes run either at full speed or half a second per neighbor and slot slower:
    # always with ZeRO 0 and data parallelism, and mostly from some hundred ranks on. An expected
    # stall is thus the mean of two modes, and neither of them.
    neighbors = min(settings.pp_size - 1, 2)
    used = stage_memory(workload, settings, cluster, costs).reserved_bytes if t.stall_s else 0.0

    def sigmoid(x: float) -> float:
        return 1 / (1 + exp(-max(-40.0, min(40.0, x))))

    often = 0.0  # how often exchanges of stages stall
    if spans_nodes(settings, cluster):
        often = sigmoid((log2(cluster.world_size) - t.stall_ranks_log2) * 3)
        if settings.sharding is Sharding.DDP and dp > 1:
            often = max(often, t.stall_replicated)
    exchange = t.stall_s * neighbors * often

    def short_of_memory(error: float) -> float:
        full = used * (1 + error) / cluster.gpu.memory_bytes
        return t.stall_s * max(neighbors, 1) * sigmoid((full - t.stall_memory) * 40) * (1 - often)

    return PipelineSeconds(
        unstalled_s=(steps - 1) * max(each) + sum(each) + ends,
        exchange_stall_s=slots * exchange,
        memory_stall_s=slots * short_of_memory(0.0),
        most_stall_s=slots * (exchange + short_of_memory(t.stall_memory_error)),
    )


def spans_nodes(settings: Settings, cluster: Cluster) -> bool:
    """Tells whether stages exchange over the network."""
    return settings.pp_size > 1 and cluster.nodes > 1


def _compute_s(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs, stage: Stage
) -> float:
    """Forward and backward of one micro-batch on one rank; of Llamas, whose tokens use all weights.

    FLOPs: 6 per parameter and token, 12 x keys x channels for causal attention; a third more where
    forward is computed again. All products have one efficiency, attention's too: the runs that it
    is fitted to have one length of sequences.
    """
    t, found = costs.time, counts(workload.model)
    tp = axis_sizes(settings, cluster).tp
    tokens = settings.micro_batch_size * workload.sequence_length / tp
    peak, rate = peak_flops_per_s(workload, cluster), cluster.gpu.memory_bytes_per_s
    assert peak is not None
    assert rate is not None
    again = 4 / 3 if settings.activation_checkpointing is Checkpointing.FULL else 1.0
    narrowest = min(workload.model.hidden_size, workload.model.mlp_width) / tp
    efficiency = t.matmul_efficiency * narrowest / (narrowest + t.small_dim)
    flops = 6 * found.active + 12 * (workload.sequence_length / 2) * found.attention
    moved = COMPUTE_BYTES[workload.precision] * t.traffic_factor * found.kept
    layer_s = again * tokens * (flops / (peak * efficiency) + moved / rate)
    logits = tokens * workload.model.vocab_size
    head_s = 6 * workload.model.hidden_size * logits / (peak * t.matmul_efficiency)
    head_s += t.logit_traffic * logits / rate
    return stage.layers * layer_s + stage.head * head_s
