"""A simple bound of the memory of a training step, good enough to order probes by.

Sources of the formulas: Rajbhandari et al. 2020, "ZeRO" (https://arxiv.org/abs/1910.02054)
for what data parallelism shards; Korthikanti et al. 2022, "Reducing Activation
Recomputation" (https://arxiv.org/abs/2205.05198) for activations, rewritten for a decoder
with fused (sdpa) attention, which keeps no matrix of sequence x sequence, and a gated MLP;
torch's fully_shard (``FSDPParam.to_accumulated_grad_if_needed``) for unsharded gradients.

Two numbers matter. ``floor_bytes`` leaves out whatever is not certain, so settings whose
floor exceeds the limit do not fit. ``total_bytes`` is an estimate, and is often wrong by a
quarter.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from tuner.cluster import Cluster, Device
from tuner.model import ModelConfig
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.workload import Optimizer, Precision, ReduceDtype, Workload

WEIGHT_BYTES = {Precision.BF16: 2, Precision.BF16_MIXED: 4, Precision.FP32: 4}
"""Bytes of a parameter, and of its gradient where it is kept between micro-batches."""

COMPUTE_BYTES = {Precision.BF16: 2, Precision.BF16_MIXED: 2, Precision.FP32: 4}
"""Bytes of an activation, and of a gathered parameter."""

REDUCE_BYTES = {ReduceDtype.BF16: 2, ReduceDtype.FP32: 4}
"""Bytes of an unsharded gradient that waits for its reduction."""

_FSDP = (Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD, Sharding.HYBRID_SHARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """Bytes on the rank that needs most. Categories peak at different times."""

    parameters_bytes: int
    """Parameters of this rank, between steps."""
    gradients_bytes: int
    """Gradients held: after the last backward, or unsharded between micro-batches if more."""
    optimizer_bytes: int
    """Optimizer state."""
    gathered_bytes: int
    """Parameters gathered or cast for computing, and gradients on their way to reduction."""
    activations_bytes: int
    """What forward keeps for backward."""
    logits_bytes: int
    """Logits and the loss's copies of them."""
    update_bytes: int
    """Peak of the optimizer's step: weights, gradients, state, and a copy of what it updates."""
    floor_bytes: int
    """What the step's peak cannot be below."""
    total_bytes: int
    """Estimate of the step's peak."""


class _Parameters(NamedTuple):
    """Numbers of parameters of one rank before data parallelism shards them."""

    layers: float
    """All of its decoder layers, experts apart."""
    experts: float
    """All experts of its layers."""
    rest: float
    """Embedding, lm_head and the last norm."""
    depth: int
    """Its decoder layers."""

    @property
    def whole(self) -> float:
        return self.layers + self.experts + self.rest


def memory_bound(workload: Workload, settings: Settings, cluster: Cluster) -> MemoryBound:
    """The bound for one settings; it does not fall when only the micro-batch size grows.

    Raises:
        ZeroDivisionError: settings of more ranks than the cluster has.
    """
    parameters = _parameters(workload, settings)
    on_device = not settings.cpu_offload
    shared = _sharded(workload, settings, parameters, cluster)
    weights = WEIGHT_BYTES[workload.precision]
    own = on_device * weights * (shared if settings.sharding in _FSDP else parameters.whole)
    state = on_device * _state_bytes(workload) * shared
    waiting, gathered_whole = _between(workload, settings, parameters, shared)
    activations = _activations(workload, settings)
    logits = _logits(workload, settings)
    gathered = _gathered(workload, settings, parameters, cluster)
    foreach = own if _has_foreach_copy(workload, cluster) else 0
    update = 2 * own + state + foreach
    floor = own + state + max(own, waiting + gathered_whole)
    backward = own + state + waiting + gathered_whole + gathered + activations + logits
    return MemoryBound(
        parameters_bytes=int(own),
        gradients_bytes=int(max(own, waiting)),
        optimizer_bytes=int(state),
        gathered_bytes=int(gathered_whole + gathered),
        activations_bytes=int(activations),
        logits_bytes=int(logits),
        update_bytes=int(update),
        floor_bytes=int(floor),
        total_bytes=int(max(backward, update)),
    )


class _Shape(NamedTuple):
    """Counts of a model that take a while to find."""

    experts: int
    """Parameters of all experts of all layers."""
    layers: int
    """Parameters of all layers, experts apart."""
    rest: int
    """Embedding and lm_head."""
    mlp_channels: int
    """Inner channels of the MLP that one token goes through, of the widest layer."""


@lru_cache(maxsize=64)
def _shape(model: ModelConfig) -> _Shape:
    expert = 3 * model.hidden_size * model.expert_intermediate_size  # gate, up and down
    experts = model.sparse_layers * model.experts * expert
    rest = model.embedding_parameters
    dense = model.intermediate_size if model.sparse_layers < model.layers else 0
    return _Shape(
        experts=experts,
        layers=model.parameters - rest - experts,
        rest=rest,
        mlp_channels=max(dense, model.experts_per_token * model.expert_intermediate_size),
    )


def _parameters(workload: Workload, settings: Settings) -> _Parameters:
    """Tensor parallelism splits layers and vocabulary; experts stay whole on each rank."""
    shape, tp = _shape(workload.model), settings.tp_size
    depth = ceil(workload.model.layers / settings.pp_size)
    part = depth / workload.model.layers
    return _Parameters(
        layers=part * shape.layers / tp,
        experts=part * shape.experts,
        rest=shape.rest / tp,
        depth=depth,
    )


def _sharded(
    workload: Workload, settings: Settings, parameters: _Parameters, cluster: Cluster
) -> float:
    """Parameters whose optimizer state is this rank's."""
    if settings.sharding is Sharding.DDP:
        return parameters.whole
    ranks = _shard_ranks(settings, cluster)
    of_experts = _padding(workload, ranks) * parameters.experts
    return (parameters.layers + parameters.rest + of_experts) / ranks


def _shard_ranks(settings: Settings, cluster: Cluster) -> int:
    """Ranks that split the sharded state among themselves."""
    ranks = settings.data_parallel_size(cluster.world_size)
    return ranks // cluster.nodes if settings.sharding is Sharding.HYBRID_SHARD else ranks


def _padding(workload: Workload, ranks: int) -> float:
    """How much larger packed experts are when sharded, and gathered.

    FSDP2 cuts dimension 0, which for packed experts is the expert: each rank holds room for
    whole ones, even if there are more ranks than experts.
    """
    experts = workload.model.experts
    return ceil(experts / ranks) * ranks / experts if experts else 1.0


def _state_bytes(workload: Workload) -> int:
    """Bytes of optimizer state per parameter: Adam has two moments."""
    if workload.optimizer is Optimizer.ADAMW:
        return 2 * WEIGHT_BYTES[workload.precision]
    return 2 if workload.optimizer is Optimizer.ADAMW_8BIT else 0


def _has_foreach_copy(workload: Workload, cluster: Cluster) -> bool:
    """On CUDA torch's AdamW works on all parameters at once, through one copy of them."""
    return workload.optimizer is Optimizer.ADAMW and cluster.gpu.device is Device.CUDA


def _between(
    workload: Workload, settings: Settings, parameters: _Parameters, shared: float
) -> tuple[float, float]:
    """Bytes held when a later micro-batch turns to backward: gradients, gathered parameters."""
    accumulates = settings.gradient_accumulation_steps > 1
    weights = WEIGHT_BYTES[workload.precision]
    if settings.sharding not in _FSDP:
        return accumulates * weights * parameters.whole, 0.0
    gathered = 0.0
    if settings.sharding is Sharding.SHARD_GRAD_OP:
        gathered = COMPUTE_BYTES[workload.precision] * parameters.whole
    if not accumulates:
        return 0.0, gathered
    if settings.sync_each_batch:
        return (not settings.cpu_offload) * weights * shared, gathered
    assert workload.reduce_dtype is not None
    return REDUCE_BYTES[workload.reduce_dtype] * parameters.whole, gathered


def _gathered(
    workload: Workload, settings: Settings, parameters: _Parameters, cluster: Cluster
) -> float:
    """Bytes that come and go with the layers, or belong to the wrapper."""
    compute, weights = COMPUTE_BYTES[workload.precision], WEIGHT_BYTES[workload.precision]
    if settings.sharding not in _FSDP:
        buckets = settings.data_parallel_size(cluster.world_size) > 1
        cast = workload.precision is Precision.BF16_MIXED  # autocast keeps its casts till backward
        return (buckets * weights + cast * compute) * parameters.whole
    padding = _padding(workload, _shard_ranks(settings, cluster))
    layer = (parameters.layers + padding * parameters.experts) / parameters.depth
    assert workload.reduce_dtype is not None
    on_the_way = REDUCE_BYTES[workload.reduce_dtype] * layer
    if settings.sharding is Sharding.SHARD_GRAD_OP:
        return on_the_way
    return compute * (2 * layer + parameters.rest) + on_the_way  # the next layer is prefetched


def _activations(workload: Workload, settings: Settings) -> float:
    """Bytes that forward keeps; full checkpointing keeps inputs of layers, and one layer."""
    depth = ceil(workload.model.layers / settings.pp_size)
    layer = _layer_activations(workload, settings)
    micro_batches = min(settings.pp_size, settings.gradient_accumulation_steps)  # 1F1B
    if settings.activation_checkpointing is Checkpointing.NONE:
        return micro_batches * depth * layer
    kept = COMPUTE_BYTES[workload.precision] * workload.model.hidden_size
    return micro_batches * depth * kept * _tokens(workload, settings) / settings.tp_size + layer


def _layer_activations(workload: Workload, settings: Settings) -> float:
    """Bytes that one decoder layer keeps for its backward.

    Per token: each of two norms keeps its input in fp32 and its output; the linears after
    it keep their input, which tensor parallelism gathers (and keeps gathered unless it is
    gathered again); attention keeps q, k, v and its output; the MLP keeps gate, up, the
    activated gate and their product, for as many experts as the token goes to.
    """
    model, tp = workload.model, settings.tp_size
    compute = COMPUTE_BYTES[workload.precision]
    heads = model.heads * model.head_dim
    kv_heads = model.kv_heads * model.head_dim
    norms = 2 * (4 + compute) * model.hidden_size
    inputs = 2 * compute * model.hidden_size
    attention = compute * (2 * heads + 2 * kv_heads)
    mlp = compute * 4 * _shape(model).mlp_channels
    kept_whole = tp if tp > 1 and not settings.tp_recompute_allgather else 1
    per_token = norms + kept_whole * inputs + attention + mlp
    return _tokens(workload, settings) / tp * per_token


def _logits(workload: Workload, settings: Settings) -> float:
    """Logits, their fp32 copy, its log-softmax and its gradient, of a part of the vocabulary."""
    compute = COMPUTE_BYTES[workload.precision]
    bytes_each = compute + (4 if compute < 4 else 0) + 8
    vocabulary = ceil(workload.model.vocab_size / settings.tp_size)
    return _tokens(workload, settings) * vocabulary * bytes_each


def _tokens(workload: Workload, settings: Settings) -> int:
    return settings.micro_batch_size * workload.sequence_length
