"""What a rank holds of a model, and what it gathers at once."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil

from tuner import layers
from tuner.cluster import Cluster, Device
from tuner.cost.graph import Program
from tuner.cost.layer_graph import LayerKey, layer_program
from tuner.model import ModelConfig
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.workload import Optimizer, Precision, ReduceDtype, Workload

WEIGHT_BYTES = {Precision.BF16: 2, Precision.BF16_MIXED: 4, Precision.FP32: 4}
"""Bytes of a parameter, and of its gradient where it is kept between micro-batches."""

COMPUTE_BYTES = {Precision.BF16: 2, Precision.BF16_MIXED: 2, Precision.FP32: 4}
"""Bytes of an activation, and of a gathered parameter."""

REDUCE_BYTES = {ReduceDtype.BF16: 2, ReduceDtype.FP32: 4}
"""Bytes of an unsharded gradient that waits for its reduction."""

STATE_BYTES_8BIT = 2 * (1 + 4 / 256)
"""torchao's 8-bit AdamW: two moments of a byte, and an fp32 scale for each block of 256."""

FSDP = (Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD, Sharding.HYBRID_SHARD)
"""Shardings that split gradients and optimizer state at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Parameters that are gathered together: a decoder layer, or the embeddings. In elements."""

    whole: float
    """What one rank computes with: the tensor-parallel rank's part."""
    padded: float
    """The same with what sharding pads: whole shards of dimension 0 for every rank."""
    shard: float
    """What one rank keeps."""
    summed: float = 0.0
    """The largest weight whose gradient is summed over tensor-parallel ranks, if any is large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One decoder layer."""

    program: Program
    """What its activations do."""
    unit: Unit
    """Its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Some layers together; the sums of their fields."""

    count: int
    """How many."""
    kept_bytes: float
    cast_elements: float
    unsaved_cast_elements: float
    whole: float
    padded: float
    shard: float

    @classmethod
    def of(cls, layers: tuple[Layer, ...]) -> "Span":
        """The sums of some layers."""
        return cls(
            count=len(layers),
            kept_bytes=sum(layer.program.kept_bytes for layer in layers),
            cast_elements=sum(layer.program.cast_elements for layer in layers),
            unsaved_cast_elements=sum(layer.program.unsaved_cast_elements for layer in layers),
            whole=sum(layer.unit.whole for layer in layers),
            padded=sum(layer.unit.padded for layer in layers),
            shard=sum(layer.unit.shard for layer in layers),
        )


NEAR_ENDS = 2
"""Layers at each end whose backward is followed one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A model as one rank holds it."""

    layers: tuple[Layer, ...]
    """In order."""
    all_layers: Span
    """All of them together."""
    inner: Span
    """Those between the first and the last."""
    middle: Span
    """Those between the first two and the last two."""
    embedding: Unit
    """The token embedding; empty where it is tied to the head."""
    tail: Unit
    """The output head and the last norm."""
    largest: float
    """Elements of the largest single parameter's shard."""

    @property
    def whole(self) -> float:
        """Elements that one rank computes with."""
        return self.embedding.whole + self.all_layers.whole + self.tail.whole

    @property
    def shard(self) -> float:
        """Elements that one rank keeps."""
        return self.embedding.shard + self.all_layers.shard + self.tail.shard


def shard_ranks(settings: Settings, cluster: Cluster) -> int:
    """Ranks that split the sharded state among themselves."""
    if settings.sharding is Sharding.DDP:
        return 1
    ranks = settings.data_parallel_size(cluster.world_size)
    return ranks // cluster.nodes if settings.sharding is Sharding.HYBRID_SHARD else ranks


def is_fsdp(settings: Settings, cluster: Cluster) -> bool:
    """Whether the model is wrapped by FSDP2."""
    return settings.sharding in FSDP and settings.data_parallel_size(cluster.world_size) > 1


def autocasts(workload: Workload, settings: Settings, cluster: Cluster) -> bool:
    """Whether fp32 weights are cast where they are used, and not where they are gathered."""
    return workload.precision is Precision.BF16_MIXED and not is_fsdp(settings, cluster)


def state_bytes(workload: Workload) -> float:
    """Bytes of optimizer state per parameter: Adam has two moments."""
    if workload.optimizer is Optimizer.ADAMW:
        return 2 * WEIGHT_BYTES[workload.precision]
    return STATE_BYTES_8BIT if workload.optimizer is Optimizer.ADAMW_8BIT else 0


def shards(workload: Workload, settings: Settings, cluster: Cluster) -> Shards:
    """The model as one rank holds it; under pipelining, the first stage's share of layers."""
    compute = COMPUTE_BYTES[workload.precision]
    residual = 4 if autocasts(workload, settings, cluster) else compute
    key = LayerKey(
        model=workload.model,
        sequence_length=workload.sequence_length,
        compute_bytes=compute,
        residual_bytes=residual,
        tp_size=settings.tp_size,
        recompute=settings.tp_recompute_allgather,
        device=cluster.gpu.device,
    )
    return _shards(key, shard_ranks(settings, cluster), settings.pp_size)


@lru_cache(maxsize=1024)
def _shards(key: LayerKey, ranks: int, pp_size: int) -> Shards:
    model, tp = key.model, key.tp_size
    kinds = layer_kinds(model, key.sequence_length)[: ceil(model.layers / pp_size)]
    made = {kind: _layer(key, ranks, *kind) for kind in set(kinds)}
    embedding = model.vocab_size * model.hidden_size
    rest = model.embedding_parameters - embedding
    head = rest / tp if not model.tied_embeddings else (embedding + rest) / tp
    expert = _expert_elements(model) if model.sparse_layers else 0
    matrix = expert * 2 / 3 * _experts_per_rank(model, ranks) if expert else 0.0
    layers = tuple(made[kind] for kind in kinds)
    return Shards(
        layers=layers,
        all_layers=Span.of(layers),
        inner=Span.of(layers[1:-1]),
        middle=Span.of(layers[NEAR_ENDS:-NEAR_ENDS]),
        embedding=_unit(0 if model.tied_embeddings else embedding / tp, ranks),
        tail=_unit(head + model.hidden_size, ranks),
        largest=max(embedding / tp / ranks, matrix),
    )


def _unit(elements: float, ranks: int) -> Unit:
    return Unit(whole=elements, padded=elements, shard=elements / ranks)


def _layer(key: LayerKey, ranks: int, sparse: bool, sliding: bool) -> Layer:
    program = layer_program(key, sparse=sparse, sliding=sliding)
    model = key.model
    experts = model.experts * _expert_elements(model) if sparse else 0
    rest = program.weight_elements - experts
    padding = padded_experts(model, ranks)
    unit = Unit(
        whole=rest + experts,
        padded=rest + padding * experts,
        shard=(rest + padding * experts) / ranks,
        summed=experts * 2 / 3 if key.tp_size > 1 else 0.0,
    )
    return Layer(program=program, unit=unit)


def _expert_elements(model: ModelConfig) -> int:
    return 3 * model.hidden_size * model.expert_intermediate_size  # gate, up and down


def _experts_per_rank(model: ModelConfig, ranks: int) -> int:
    return ceil(model.experts / ranks)


def padded_experts(model: ModelConfig, ranks: int) -> float:
    """How much larger packed experts are when sharded, and gathered.

    FSDP2 cuts dimension 0, which for packed experts is the expert: each rank holds room for
    whole ones, even if there are more ranks than experts.
    """
    return _experts_per_rank(model, ranks) * ranks / model.experts if model.experts else 1.0


@lru_cache(maxsize=256)
def layer_kinds(model: ModelConfig, sequence_length: int) -> tuple[tuple[bool, bool], ...]:
    """Of each layer: whether it has experts, and whether its attention takes a window's mask."""
    window = model.fields.get("sliding_window") or 0
    masks = 0 < window <= sequence_length
    return tuple(
        (kind.sparse, masks and kind.attention == layers.SLIDING)
        for kind in layers.layer_kinds(model)
    )


def checkpointed(settings: Settings) -> bool:
    """Whether backward computes each layer again."""
    return settings.activation_checkpointing is Checkpointing.FULL


def copies_whole(workload: Workload, cluster: Cluster) -> bool:
    """On CUDA torch's AdamW works on all parameters at once, through one copy of them."""
    return workload.optimizer is Optimizer.ADAMW and cluster.gpu.device is Device.CUDA
