"""What a rank holds of a model, and what it gathers at once."""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from tuner.cluster import Cluster, Device
from tuner.cost.attention import attention_of
from tuner.cost.axes import is_fsdp, shard_ranks
from tuner.cost.graph import Program
from tuner.cost.layer_graph import LayerKey, layer_program
from tuner.cost.units import Unit, largest_shard, model_units
from tuner.model import ModelConfig
from tuner.model.layers import SLIDING, layer_kinds
from tuner.settings import Checkpointing, Settings
from tuner.workload import Optimizer, Precision, ReduceDtype, Workload

WEIGHT_BYTES = {Precision.BF16: 2, Precision.BF16_MIXED: 4, Precision.FP32: 4}
"""Bytes of a parameter, and of its gradient where it is kept between micro-batches."""

COMPUTE_BYTES = {Precision.BF16: 2, Precision.BF16_MIXED: 2, Precision.FP32: 4}
"""Bytes of an activation, and of a gathered parameter."""

REDUCE_BYTES = {ReduceDtype.BF16: 2, ReduceDtype.FP32: 4}
"""Bytes of an unsharded gradient that waits for its reduction."""

STATE_BYTES_8BIT = 2 * (1 + 4 / 256)
"""torchao's 8-bit AdamW: two moments of a byte, and an fp32 scale for each block of 256."""

STEP_BYTES_8BIT = 2 * (4 + 4 / 256)
"""Of its step on CUDA, per element of the parameter that is updated: both moments in fp32, and new
scales (``single_param_adam`` in torchao/optim/adam.py, as inductor compiles it)."""


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
    """The output head and the last norm; learned positions too, which are few."""
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
        attention=attention_of(workload.model, compute, cluster.gpu),
    )
    return _shards(key, shard_ranks(settings, cluster), settings.pp_size)


@lru_cache(maxsize=1024)
def _shards(key: LayerKey, ranks: int, pp_size: int) -> Shards:
    model, tp = key.model, key.tp_size
    variants = layer_variants(model, key.sequence_length)[: ceil(model.layers / pp_size)]
    units = model_units(model, tp, ranks)
    made = {
        one: Layer(program=layer_program(key, sparse=one.sparse, sliding=one.masked), unit=unit)
        for one, unit in set(zip(variants, units.layers[: len(variants)], strict=True))
    }
    tail, tied = units.tail.beside(units.root), model.tied_embeddings
    layers = tuple(made[one] for one in variants)
    return Shards(
        layers=layers,
        all_layers=Span.of(layers),
        inner=Span.of(layers[1:-1]),
        middle=Span.of(layers[NEAR_ENDS:-NEAR_ENDS]),
        embedding=Unit() if tied else units.embedding,
        tail=tail.beside(units.embedding) if tied else tail,
        largest=largest_shard(model, tp, ranks),
    )


class LayerVariant(NamedTuple):
    """What makes two layers need different memory in sequences of one length."""

    sparse: bool
    """Whether it has experts."""
    masked: bool
    """Whether its attention takes a window's mask."""


@lru_cache(maxsize=256)
def layer_variants(model: ModelConfig, sequence_length: int) -> tuple[LayerVariant, ...]:
    """The variant of each layer, in order."""
    window = model.fields.get("sliding_window") or 0
    masks = 0 < window <= sequence_length
    return tuple(
        LayerVariant(sparse=kind.sparse, masked=masks and kind.attention == SLIDING)
        for kind in layer_kinds(model)
    )


def checkpointed(settings: Settings) -> bool:
    """Whether backward computes each layer again."""
    return settings.activation_checkpointing is Checkpointing.FULL


def copies_whole(workload: Workload, cluster: Cluster) -> bool:
    """On CUDA torch's AdamW works on all parameters at once, through one copy of them."""
    return workload.optimizer is Optimizer.ADAMW and cluster.gpu.device is Device.CUDA
