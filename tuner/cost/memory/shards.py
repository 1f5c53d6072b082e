"""Parameters that FSDP2 gathers together, in elements: accelerate's units.

accelerate wraps the embedding, each decoder layer, and the last norm with the head; what is left is
the root's (``fsdp2_prepare_model`` in ``accelerate/utils/fsdp_utils.py``). Where the head is the
embedding, both are one unit.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, takewhile
from math import ceil
from typing import NamedTuple

from tuner.core.adapter import Adapter
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import FSDP, Checkpointing, Settings, Sharding
from tuner.core.packing import PackingVariant
from tuner.core.workload import Loss, Precision, ReduceDtype, Workload
from tuner.cost.memory.attention import attention_of
from tuner.cost.memory.graph import Program
from tuner.cost.memory.layers import LayerKey, layer_program
from tuner.cost.memory.tensors import Split, Tensor, model_tensors
from tuner.model import ModelConfig
from tuner.model.shape import SLIDING


class Trained(NamedTuple):
    """Elements of a unit's parameters that have gradients; all but beside an adapter."""

    whole: int = 0
    padded: int = 0
    shard: int = 0


class Unit(NamedTuple):
    """Elements of parameters that are gathered together."""

    whole: int = 0  # what one rank computes with: the tensor-parallel rank's part
    padded: int = 0  # the same with what sharding pads: whole rows of dimension 0 for every rank
    shard: int = 0  # what one rank keeps
    summed: int = 0  # of the largest weight whose gradient is summed over tensor-parallel ranks
    trained: "Trained" = Trained()  # of these, those that have gradients


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    embedding: Unit  # the token embedding, also where it is the head too
    layers: tuple[Unit, ...]  # decoder layers, in order
    layers_padded: int  # what all of them gather
    tail: Unit  # the last norm, and the head where it is not the embedding
    root: Unit  # learned positions, where there are any
    ends: Unit  # tail and root, and the embedding where it is the head, as one unit
    largest: int  # elements of the largest single trained parameter's shard


@lru_cache(maxsize=4096)
def model_units(
    model: ModelConfig,
    tp: int,
    ranks: int,
    splits_sequence: bool = True,
    adapter: Adapter | None = None,
    frozen_width: int = 2,
) -> Units:
    """The units of a model that is sharded over ``ranks``.

    Tensor parallelism that ``splits_sequence`` leaves parts of all replicated weights' gradients to
    be summed, other of the norms of heads alone. In peft's wrapper accelerate does not find the
    last norm (``_find_final_norm`` in fsdp_utils.py, accelerate 1.15), which is then the root's.
    """
    tensors = model_tensors(model, adapter, frozen_width)
    whole = frozenset(() if splits_sequence else (model.hidden_size,))

    def unit(*parts: Tensor) -> Unit:
        local = [part.local(tp) for part in parts]
        shard = sum(shard_elements(part, ranks) for part in local)
        trained = [part for part in local if part.trained]
        own = sum(shard_elements(part, ranks) for part in trained)
        summed = [
            part.elements
            for part in local
            if tp > 1 and part.split is Split.NONE and part.elements not in whole
        ]
        return Unit(
            whole=sum(part.elements for part in local),
            padded=shard * ranks,
            shard=shard,
            summed=max(summed, default=0),
            trained=Trained(sum(part.elements for part in trained), own * ranks, own),
        )

    dense, sparse = unit(*tensors.dense_layer), unit(*tensors.sparse_layer)
    layers = tuple(sparse if is_sparse else dense for is_sparse in tensors.is_sparse)
    tied = model.tied_embeddings
    tail, root = (*tensors.norm, *tensors.head), tensors.positions
    if adapter is not None:
        tail, root = tensors.head, (*tensors.positions, *tensors.norm)
    return Units(
        embedding=unit(*tensors.embedding),
        layers=layers,
        layers_padded=sum(layer.padded for layer in layers),
        tail=unit(*tail),
        root=unit(*root),
        ends=unit(
            *tensors.norm, *tensors.head, *tensors.positions, *(tensors.embedding if tied else ())
        ),
        largest=max(shard_elements(t.local(tp), ranks) for t in set(tensors.trained)),
    )


def shard_elements(tensor: Tensor, ranks: int) -> int:
    """Counts the elements that rank 0 keeps: FSDP2 cuts dimension 0, and every shard has room for
    the largest.

    For packed experts that dimension is the expert: each rank holds room for whole ones, even if
    there are more ranks than experts.
    """
    return -(-tensor.rows // ranks) * tensor.columns


class Axis(StrEnum):
    DP = "dp"  # DDP's replicas
    DP_SHARD = "dp_shard"  # ranks that FSDP shards over
    DP_REPLICATE = "dp_replicate"  # ranks that hold equal shards (hybrid_shard)
    CP = "cp"  # ranks that split each sequence; FSDP shards over them too
    TP = "tp"


class Sizes(NamedTuple):
    tp: int
    shard: int  # ranks that FSDP shards over; 1 without it
    replicate: int  # ranks that hold equal shards; 1 unless FSDP shards within nodes
    dp: int  # ranks that see different data, with FSDP or without
    cp: int = 1  # ranks that split each sequence

    @property
    def is_fsdp(self) -> bool:
        return self.shard * self.replicate > 1


def axis_sizes(settings: Settings, cluster: Cluster) -> Sizes:
    """Ranks on each axis; ``hybrid_shard`` shards within a node and replicates between nodes."""
    dp, cp = settings.data_parallel_size(cluster.world_size), settings.cp_size
    sharded = settings.sharding in FSDP and dp * cp > 1
    replicate = cluster.nodes if sharded and settings.sharding is Sharding.HYBRID_SHARD else 1
    shard = dp * cp // replicate if sharded else 1
    return Sizes(tp=settings.tp_size, shard=shard, replicate=replicate, dp=dp, cp=cp)


def reduced_in(workload: Workload, sizes: Sizes) -> ReduceDtype:
    """Number format in which gradients are reduced over data-parallel ranks."""
    return workload.reduced_in(sharded=sizes.is_fsdp, split=sizes.tp > 1)


def shard_ranks(settings: Settings, cluster: Cluster) -> int:
    sizes = axis_sizes(settings, cluster)
    return sizes.dp if settings.sharding is Sharding.ZERO1 else sizes.shard


# Bytes of a parameter, and of its gradient where it is kept between micro-batches.
WEIGHT_BYTES = {Precision.BF16: 2, Precision.BF16_MIXED: 4, Precision.FP32: 4}

# Bytes of an activation, and of a gathered parameter.
COMPUTE_BYTES = {Precision.BF16: 2, Precision.BF16_MIXED: 2, Precision.FP32: 4}

# Bytes of an unsharded gradient that waits for its reduction.
REDUCE_BYTES = {ReduceDtype.BF16: 2, ReduceDtype.FP32: 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    program: Program  # what its activations do
    unit: Unit  # its parameters
    checkpointing: Checkpointing  # anything but every_2
    reentrant: bool
    """Whether its checkpoint is, as that of a model in eight bits is where no layer has another."""

    @property
    def staying_bytes(self) -> float:
        """Bytes that its checkpoint does not drop, per sequence."""
        drops = self.reentrant or self.checkpointing is Checkpointing.NONE
        return 0.0 if drops else self.program.staying_bytes

    @property
    def kept_bytes(self) -> float:
        """Bytes that forward leaves on the device for backward, per sequence."""
        if self.checkpointing is Checkpointing.NONE:
            return self.program.kept_bytes
        if self.checkpointing is Checkpointing.OFFLOAD:
            return self.staying_bytes
        selected = self.checkpointing is Checkpointing.SELECTIVE
        kept = self.program.input_bytes + selected * self.program.selected_bytes
        return kept + self.staying_bytes


@dataclass(frozen=True, slots=True)
class Span:
    """Some layers together; the sums of their fields."""

    count: int  # how many
    kept_bytes: float
    cast_elements: float  # that layers without checkpointing leave for backward
    unsaved_cast_elements: float  # that those with it leave, for nothing
    whole: float
    padded: float
    shard: float
    trained_whole: float
    trained_shard: float

    @classmethod
    def of(cls, layers: tuple[Layer, ...]) -> "Span":
        programs = (
            (one.kept_bytes, one.program.cast_elements, 0.0)
            if one.checkpointing is Checkpointing.NONE
            else (one.kept_bytes, 0.0, one.program.unsaved_cast_elements)
            for one in layers
        )
        units = (
            (*unit[:3], unit.trained.whole, unit.trained.shard)
            for unit in (layer.unit for layer in layers)
        )
        rows = [(*program, *unit) for program, unit in zip(programs, units, strict=True)]
        return cls(len(layers), *(map(sum, zip(*rows, strict=True)) if rows else (0,) * 8))


# Layers at each end whose backward is followed one by one.
NEAR_ENDS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """A model as one rank holds it."""

    layers: tuple[Layer, ...]  # in order
    all_layers: Span  # all of them together
    inner: Span  # those between the first and the last
    middle: Span  # those between the first two and the last two
    embedding: Unit  # the token embedding; empty where it is tied to the head
    tail: Unit  # the output head and the last norm; learned positions too, which are few
    largest: float  # elements of the largest single trained parameter's shard

    @property
    def whole(self) -> float:
        """Elements that one rank computes with."""
        return self.embedding.whole + self.all_layers.whole + self.tail.whole

    @property
    def shard(self) -> float:
        """Elements that one rank keeps."""
        return self.embedding.shard + self.all_layers.shard + self.tail.shard

    @property
    def trained_whole(self) -> float:
        ends = self.embedding.trained.whole + self.tail.trained.whole
        return ends + self.all_layers.trained_whole

    @property
    def trained_shard(self) -> float:
        """Elements of one rank's optimizer."""
        ends = self.embedding.trained.shard + self.tail.trained.shard
        return ends + self.all_layers.trained_shard


def autocasts(workload: Workload, settings: Settings, cluster: Cluster) -> bool:
    """Tells whether fp32 weights are cast where they are used, and not where they are gathered."""
    return workload.precision is Precision.BF16_MIXED and not axis_sizes(settings, cluster).is_fsdp


def residual_bytes(workload: Workload, settings: Settings, cluster: Cluster) -> int:
    """Bytes of an element between the blocks; under autocast these stay fp32, but beside an
    adapter, whose frozen model is narrow."""
    wide = autocasts(workload, settings, cluster) and workload.adapter is None
    return 4 if wide else COMPUTE_BYTES[workload.precision]


def adapter_bytes(workload: Workload, settings: Settings, cluster: Cluster) -> int:
    """Bytes of an element of an adapter's matrices as its layer finds them: FSDP2 gathers them in
    what is computed with, autocast leaves them fp32."""
    return 4 if autocasts(workload, settings, cluster) else COMPUTE_BYTES[workload.precision]


def adapter_input_bytes(workload: Workload, settings: Settings, cluster: Cluster) -> int:
    """Bytes of an element of what they take: beside quantized layers peft casts nothing where
    autocast does, for which it asks of CUDA's alone (``Linear4bit.forward`` in bnb.py)."""
    adapter = workload.adapter
    narrow = adapter is not None and (adapter.quantizes or adapter.eight_bits)
    narrow = narrow and cluster.gpu.device is Device.CUDA
    wide = not narrow and autocasts(workload, settings, cluster)
    return 4 if wide else COMPUTE_BYTES[workload.precision]


def parameter_bytes(workload: Workload, elements: float, trained: float) -> float:
    """Bytes of so many parameters, of which some are trained; what is frozen beside an adapter is
    kept as it is computed with."""
    wide = WEIGHT_BYTES[workload.precision]
    if workload.adapter is None:
        return wide * elements
    return COMPUTE_BYTES[workload.precision] * (elements - trained) + wide * trained


def loss_width(workload: Workload, settings: Settings, cluster: Cluster) -> int:
    """Bytes of an element of the loss's log-softmax; autocast computes it in fp32 whatever comes in
    (``AT_FORALL_FP32`` in ATen's ``autocast_mode.h``), but for the loss of sharded logits."""
    sharded = logit_ranks(workload, settings) > 1
    in_fp32 = not sharded and (settings.fused_loss or autocasts(workload, settings, cluster))
    own = workload.loss is Loss.OWN_DTYPE and not in_fp32
    return COMPUTE_BYTES[workload.precision] if own else 4


def logit_ranks(workload: Workload, settings: Settings) -> int:
    """Ranks that share the loss's logits."""
    return 1 if workload.gathers_logits else settings.tp_size


def shards(
    workload: Workload, settings: Settings, cluster: Cluster, selects_every: int = 1
) -> Shards:
    """The model as one rank holds it; under pipelining, the first stage's share of layers.

    Selective checkpointing keeps the first of each ``selects_every`` products.
    """
    compute = COMPUTE_BYTES[workload.precision]
    key = LayerKey(
        model=workload.model,
        sequence_length=workload.sequence_length,
        compute_bytes=compute,
        residual_bytes=residual_bytes(workload, settings, cluster),
        tp=settings.tp_size,
        recompute=settings.tp_recompute_allgather,
        device=cluster.gpu.device,
        attention=attention_of(workload, compute, cluster.gpu),
        selects_every=selects_every,
        splits_sequence=not settings.splits_layers or workload.splits_sequence,
        adapter=workload.adapter,
        adapter_bytes=adapter_bytes(workload, settings, cluster),
        masked=workload.masked,
        mask_is_shared=is_block_diagonal(workload),
        ring=settings.cp_size,
    )
    checkpointing = settings.activation_checkpointing
    return _shards(key, shard_ranks(settings, cluster), settings.pp_size, checkpointing)


def host_inputs(workload: Workload, settings: Settings, cluster: Cluster) -> tuple[float, ...]:
    """Bytes of each layer's input that a rank's micro-batch leaves in host memory."""
    if settings.activation_checkpointing is not Checkpointing.OFFLOAD:
        return ()
    cut = settings.tp_size if workload.splits_sequence else 1
    residual = residual_bytes(workload, settings, cluster)
    one = residual * (workload.sequence_length / cut) * workload.model.hidden_size
    return (settings.micro_batch_size * one,) * ceil(workload.model.layers / settings.pp_size)


def pinned_bytes(inputs: tuple[float, ...]) -> int:
    """Bytes of pinned host memory for :func:`host_inputs`: torch rounds each block up to a power of
    two (``CachingHostAllocator.h`` in ATen/core, torch 2.13)."""
    return sum(1 << (ceil(size) - 1).bit_length() for size in inputs)


@lru_cache(maxsize=1024)
def _shards(key: LayerKey, ranks: int, pp_size: int, checkpointing: Checkpointing) -> Shards:
    model = key.model
    variants = layer_variants(model, key.sequence_length, key.masked)[
        : ceil(model.layers / pp_size)
    ]
    units = model_units(model, key.tp, ranks, key.splits_sequence, key.adapter, key.compute_bytes)
    # what is before the first adapter has no gradient, unless a checkpoint asks for one
    starts = key.adapter is not None and checkpointing is Checkpointing.NONE
    kinds = [
        (variant, unit, checkpointing.of_layer(index), starts and not index)
        for index, (variant, unit) in enumerate(zip(variants, units.layers, strict=False))
    ]
    made = {
        kind: Layer(
            program=layer_program(
                key, sparse=kind[0].sparse, sliding=kind[0].masked, starts=kind[3]
            ),
            unit=kind[1],
            checkpointing=kind[2],
            reentrant=checkpointing is Checkpointing.FULL,
        )
        for kind in set(kinds)
    }
    layers = tuple(made[kind] for kind in kinds)
    return Shards(
        layers=layers,
        all_layers=Span.of(layers),
        inner=Span.of(layers[1:-1]),
        middle=Span.of(layers[NEAR_ENDS:-NEAR_ENDS]),
        embedding=Unit() if model.tied_embeddings else units.embedding,
        tail=units.ends,
        largest=units.largest,
    )


class LayerVariant(NamedTuple):
    """Holds what makes two layers need different memory in sequences of one length."""

    sparse: bool  # whether it has experts
    masked: bool  # whether its attention takes a mask: a window's, or one of packed documents


@lru_cache(maxsize=256)
def layer_variants(
    model: ModelConfig, sequence_length: int, masked: bool | None = None
) -> tuple[LayerVariant, ...]:
    """The variant of each layer; packing may have all of them ``masked``, or none."""
    window = model.fields.get("sliding_window") or 0
    slides = 0 < window <= sequence_length
    return tuple(
        LayerVariant(
            sparse=kind.sparse,
            masked=bool(masked) or (masked is None and slides and kind.attention == SLIDING),
        )
        for kind in model.layer_kinds
    )


def is_block_diagonal(workload: Workload) -> bool:
    """Tells whether one mask of numbers, which comes with the batch, is all layers' own."""
    packing = workload.packing
    return packing is not None and packing.variant is PackingVariant.BLOCK_DIAGONAL


# DDP's first bucket is small, so that reducing starts early.
FIRST_BUCKET_BYTES = 2**20
# ``bucket_cap_mb`` of ``DistributedDataParallel`` where nobody sets it.
BUCKET_BYTES = 25 * 2**20


@lru_cache(maxsize=256)
def ddp_buckets(
    model: ModelConfig, weight_bytes: int, adapter: Adapter | None = None
) -> tuple[int, ...]:
    """Bytes of DDP's buckets, from the last parameter to the first.

    A bucket is closed by the gradient that brings it to its cap
    (``compute_bucket_assignment_by_size``), so a large gradient makes a large bucket.
    """
    closed: list[int] = []
    filling, cap = 0, FIRST_BUCKET_BYTES
    for tensor in reversed(list(model_tensors(model, adapter).trained)):
        filling += weight_bytes * tensor.elements
        if filling >= cap:
            closed.append(filling)
            filling, cap = 0, BUCKET_BYTES
    return (*closed, filling) if filling else tuple(closed)


@lru_cache(maxsize=256)
def full_buckets_bytes(
    model: ModelConfig, weight_bytes: int, adapter: Adapter | None = None
) -> tuple[int, ...]:
    """Bytes of the buckets that are full as backward comes down to each layer.

    Item ``i`` is for when ``i`` layers are left to do, so the first is for when only the
    embedding's gradient is missing.
    """
    tensors = model_tensors(model, adapter)
    buckets, there = ddp_buckets(model, weight_bytes, adapter), 0
    found: list[int] = []
    for part in [(*tensors.norm, *tensors.head), *reversed(list(tensors.layers))]:
        there += weight_bytes * sum(tensor.elements for tensor in part if tensor.trained)
        filled = takewhile(lambda size: size <= there, accumulate(buckets))  # noqa: B023
        found.append(max(filled, default=0))
    return tuple(reversed(found))
