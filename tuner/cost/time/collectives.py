"""Every collective of one optimizer step of rank 0, by arithmetic.

For torch, accelerate and trainer, whose step is the probe program's: accelerate's FSDP2 units
(``accelerate/utils/fsdp_utils.py``, ``fsdp2_prepare_model``), DDP's buckets
(torch/csrc/distributed/c10d/reducer.cpp), and sequence parallelism as in
``workers/probe/tensor_parallel``. Names of operators, axes and phases, and the meaning of bytes
(the whole tensors: gathered, not yet scattered, or reduced) are those of the probe program, and
tests hold the list against dry runs. Experts are never exchanged: they are gathered (FSDP) or
replicated (tensor parallelism), so there is no all-to-all.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from math import ceil

from tuner.core.cluster import Cluster
from tuner.core.configuration import FSDP, Checkpointing, Settings, Sharding
from tuner.core.measurement import Collective, Phase
from tuner.core.workload import Precision, Workload
from tuner.cost.memory.attention import leaves_groups
from tuner.cost.memory.shards import (
    COMPUTE_BYTES,
    REDUCE_BYTES,
    WEIGHT_BYTES,
    Axis,
    Sizes,
    axis_sizes,
    ddp_buckets,
    model_units,
    reduced_in,
)
from tuner.cost.memory.tensors import buffer_bytes, model_tensors
from tuner.cost.memory.zero import ALL_REDUCE_ELEMENTS, DEFAULTS, Zero, stage_of


class Op(StrEnum):
    """Collectives."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    BROADCAST = "broadcast"
    PERMUTE = "permute"  # each rank sends to the next; bytes are what one sends


class Overlap(StrEnum):
    """Names the work that runs at the same time as a collective."""

    PREFETCHED = "prefetched"  # FSDP2 gathers a layer while the one before computes
    BEHIND_BACKWARD = "behind_backward"  # gradients are reduced while lower layers' are computed
    EXPOSED = "exposed"  # nothing: computing waits for it


@dataclass(frozen=True, slots=True)
class StepCollective:
    """Collectives of one kind in one optimizer step."""

    op: Op  # which collective
    axis: Axis  # ranks that take part
    phase: Phase  # when
    overlap: Overlap  # what hides it
    count: int  # how many there are
    bytes: float  # bytes of the whole tensors, all of them together

    @classmethod
    def seen(cls, row: Collective) -> "StepCollective":
        """What a probe or a dry run saw, in the words of the cost model. Raises ValueError: one
        that has no price here."""
        return cls(
            op=Op(row.op),
            axis=Axis(row.axis),
            phase=Phase(row.phase),
            overlap=Overlap(row.overlap),
            count=row.count,
            bytes=row.bytes,
        )


def reducing_passes(settings: Settings) -> int:
    """Backward passes of a step that reduce gradients over the data-parallel ranks."""
    return settings.gradient_accumulation_steps if settings.sync_each_batch else 1


def all_reducing_passes(settings: Settings) -> int:
    """Those of them that reduce over the replicas of hybrid sharding too."""
    return 1 if settings.defer_all_reduce else reducing_passes(settings)


def step_collectives(
    workload: Workload, settings: Settings, cluster: Cluster
) -> tuple[StepCollective, ...]:
    """All collectives of one optimizer step of rank 0, added up by kind.

    The settings are legal ones; ``pp_size`` must be 1, and the workload is of one rank
    (:meth:`Workload.part`).
    """
    sizes = axis_sizes(settings, cluster)
    found: list[StepCollective] = []
    if sizes.is_fsdp:
        found += _of_fsdp(workload, settings, sizes)
    elif sizes.dp > 1:
        found += _of_ddp(workload, settings)
    if sizes.cp > 1:
        found += _of_ring(workload, settings)
    if sizes.tp > 1:
        if workload.splits_sequence:
            found += _of_activations(workload, settings)
            found += _of_partial_gradients(workload, settings, sizes)
        else:
            found += _of_whole_activations(workload, settings, sizes)
    return tuple(found)


def _of_fsdp(workload: Workload, settings: Settings, sizes: Sizes) -> list[StepCollective]:
    """Gathers of each pass, and reductions of those passes that synchronize.

    Where the head is the embedding, that unit begins forward and ends backward. The root's is
    gathered first. All but the outermost are gathered in backward again.
    """
    adapter, tied = workload.adapter, workload.model.tied_embeddings
    width = COMPUTE_BYTES[workload.precision]
    held = model_units(workload.model, sizes.tp, sizes.shard, adapter=adapter, frozen_width=width)
    embedding, tail, root = held.embedding.padded, held.tail.padded, held.root.padded
    outermost = embedding + tail * tied  # its gradients come last
    whole = outermost + tail * (not tied) + root + held.layers_padded
    first = root or outermost  # forward waits for it
    passes, reduces = settings.gradient_accumulation_steps, reducing_passes(settings)
    gather = passes * width
    number = REDUCE_BYTES[reduced_in(workload, sizes)]
    reduce = reduces * number
    axis, forward, backward = Axis.DP_SHARD, Phase.FORWARD, Phase.BACKWARD
    ahead, behind, waits = Overlap.PREFETCHED, Overlap.BEHIND_BACKWARD, Overlap.EXPOSED
    again_units = len(held.layers) + (not tied)
    units = again_units + bool(root)
    found = [
        StepCollective(Op.ALL_GATHER, axis, forward, waits, passes, gather * first),
        StepCollective(
            Op.ALL_GATHER, axis, forward, ahead, passes * units, gather * (whole - first)
        ),
    ]
    if adapter is not None and not tied:  # the head is gathered when the loss begins
        late = StepCollective(Op.ALL_GATHER, axis, Phase.LOSS, ahead, passes, gather * tail)
        forth = found.pop()
        found += [replace(forth, count=forth.count - passes, bytes=forth.bytes - late.bytes), late]
    if settings.sharding is not Sharding.SHARD_GRAD_OP:
        count, again = passes * again_units, held.layers_padded + embedding * (not tied)
        found += [StepCollective(Op.ALL_GATHER, axis, backward, ahead, count, gather * again)]
    count, others = reduces * units, whole - outermost
    if adapter is not None:  # layers alone have something to reduce, the first one last
        outermost = held.layers[0].trained.padded
        others = sum(layer.trained.padded for layer in held.layers[1:])
        units = len(held.layers) - 1
        count = reduces * units
    found += [
        StepCollective(Op.REDUCE_SCATTER, axis, backward, waits, reduces, reduce * outermost),
        StepCollective(Op.REDUCE_SCATTER, axis, backward, behind, count, reduce * others),
    ]
    if sizes.replicate > 1:
        axis, reduces = Axis.DP_REPLICATE, all_reducing_passes(settings)
        shared = reduces * number / sizes.shard
        count = reduces * units
        found += [
            StepCollective(Op.ALL_REDUCE, axis, backward, waits, reduces, shared * outermost),
            StepCollective(Op.ALL_REDUCE, axis, backward, behind, count, shared * others),
        ]
    return found


def _of_ddp(workload: Workload, settings: Settings) -> list[StepCollective]:
    """DDP's buckets, in each pass that synchronizes; the last of them is waited for.

    Rank 0's buffers are broadcast before each forward that follows a synchronized backward
    (``require_forward_param_sync`` in torch/nn/parallel/distributed.py).
    """
    weight = WEIGHT_BYTES[workload.precision]
    buckets = ddp_buckets(workload.model, weight, workload.adapter)
    reduces = reducing_passes(settings)
    scale = reduces * REDUCE_BYTES[workload.reduced_in(sharded=False)] / weight  # by a hook's casts
    op, axis, phase = Op.ALL_REDUCE, Axis.DP, Phase.BACKWARD
    *early, last = buckets
    found = [StepCollective(op, axis, phase, Overlap.EXPOSED, reduces, scale * last)]
    if early:
        count, size = reduces * len(early), scale * sum(early)
        found += [StepCollective(op, axis, phase, Overlap.BEHIND_BACKWARD, count, size)]
    if buffers := reduces * buffer_bytes(workload.model):
        op, phase = Op.BROADCAST, Phase.FORWARD
        found += [StepCollective(op, axis, phase, Overlap.EXPOSED, reduces, buffers)]
    return found


def zero_collectives(
    workload: Workload, settings: Settings, cluster: Cluster, zero: Zero = DEFAULTS
) -> tuple[StepCollective, ...]:
    """The same of DeepSpeed 0.19.8.

    Stages 1 and 2 sum whole buckets over all ranks (``use_multi_rank_bucket_allreduce``), stage 1
    in a step's last pass, and gather what each rank has updated; by default nothing is computed
    meanwhile. Stage 3 gathers for forward and for backward, the latter within a node where
    secondary shards are (``zero_hpz_partition_size``), as after a step's first pass forward is too.
    """
    ranks = settings.data_parallel_size(cluster.world_size)
    if ranks == 1:
        return ()
    stage, passes = stage_of(settings, cluster), settings.gradient_accumulation_steps
    tensors = [tensor.elements for tensor in model_tensors(workload.model).all]
    elements, width = sum(tensors), COMPUTE_BYTES[workload.precision]
    reduces = passes if stage >= 2 else 1
    bucket = zero.reduce_bucket_size if stage else ALL_REDUCE_ELEMENTS
    beside = Overlap.BEHIND_BACKWARD if stage and zero.overlaps(stage) else Overlap.EXPOSED
    op = Op.REDUCE_SCATTER if stage == 3 else Op.ALL_REDUCE
    backward, everywhere = Phase.BACKWARD, Axis.DP
    number = REDUCE_BYTES[workload.reduced_in(sharded=True)]
    count, size = reduces * ceil(elements / bucket), reduces * number * elements
    found = [StepCollective(op, everywhere, backward, beside, count, size)]
    gather, waits = Op.ALL_GATHER, Overlap.EXPOSED
    if stage in (1, 2):
        found.append(
            StepCollective(gather, everywhere, Phase.OPTIMIZER, waits, 1, width * elements)
        )
    if stage == 3:
        cut = [size for size in tensors if size > zero.param_persistence_threshold]
        each, whole, ahead = len(cut), width * sum(cut), waits
        if zero.prefetch_bucket_size:  # small ones are gathered together
            small = [size for size in cut if size < zero.prefetch_bucket_size]
            each += ceil(sum(small) / zero.prefetch_bucket_size) - len(small)
            ahead = Overlap.PREFETCHED
        within = settings.sharding is Sharding.HYBRID_SHARD
        near = Axis.DP_SHARD if within else everywhere
        far = 1 if within else passes

        def gathers(axis: Axis, phase: Phase, times: int) -> StepCollective:
            return StepCollective(gather, axis, phase, ahead, times * each, times * whole)

        found.append(gathers(everywhere, Phase.FORWARD, far))
        if passes > far:
            found.append(gathers(near, Phase.FORWARD, passes - far))
        found.append(gathers(near, backward, passes))
    return tuple(found)


def _of_ring(workload: Workload, settings: Settings) -> list[StepCollective]:
    """Context parallelism, as in :meth:`tuner.cost.memory.layers._Layer._fused`: forward of a layer
    gathers keys and values once, which only its first block of attention could hide; so does
    backward, and then sends their gradients in fp32 around the whole ring, block by block."""
    model, cp = workload.model, settings.cp_size
    heads = model.kv_heads if leaves_groups(model) else model.heads
    tokens = settings.micro_batch_size * workload.sequence_length
    elements = 2.0 * tokens * heads * model.head_dim
    gather = COMPUTE_BYTES[workload.precision] * cp * elements
    layers = settings.gradient_accumulation_steps * model.layers
    again = settings.activation_checkpointing.layers_again(model.layers)
    back = layers + settings.gradient_accumulation_steps * again
    op, sends, axis, waits = Op.ALL_GATHER, Op.PERMUTE, Axis.CP, Overlap.EXPOSED
    forward, backward, beside = Phase.FORWARD, Phase.BACKWARD, Overlap.BEHIND_BACKWARD
    return [
        StepCollective(op, axis, forward, waits, layers, layers * gather),
        StepCollective(op, axis, backward, waits, back, back * gather),
        StepCollective(sends, axis, backward, beside, cp * layers, 4 * cp * layers * elements),
    ]


def _of_activations(workload: Workload, settings: Settings) -> list[StepCollective]:
    """Sequence parallelism: an all-gather leads into a block, a reduce-scatter out of it.

    Blocks are each layer's attention, each dense MLP (experts stay on their part of the
    sequence), and the head; the embedding's output is scattered. Backward mirrors forward;
    ``tp_recompute_allgather`` gathers each block's input once more. Checkpointing computes layers
    again up to the last tensor that backward needs, which is before the last reduce-scatter of
    a dense layer and after attention's. The loss reduces three floats per token.
    """
    model = workload.model
    blocks = 2 * model.layers - model.sparse_layers
    passes = settings.gradient_accumulation_steps
    tokens = passes * settings.micro_batch_size * workload.sequence_length
    whole = tokens * COMPUTE_BYTES[workload.precision] * model.hidden_size
    of_embedding = whole
    if workload.precision is Precision.BF16_MIXED and settings.sharding not in FSDP:
        of_embedding = 2 * whole  # autocast leaves it in fp32
    checkpointing = settings.activation_checkpointing
    kinds = enumerate(model.layer_kinds)
    plain = Checkpointing.NONE
    recomputed = [2 - kind.sparse for i, kind in kinds if checkpointing.of_layer(i) is not plain]
    again = settings.tp_recompute_allgather * (blocks + 1) + sum(recomputed)
    scattered = blocks + 1 + len(recomputed)

    def each(op: Op, phase: Phase, count: int, size: float) -> StepCollective:
        return StepCollective(op, Axis.TP, phase, Overlap.EXPOSED, passes * count, size)

    gather, scatter = Op.ALL_GATHER, Op.REDUCE_SCATTER
    return [
        each(gather, Phase.FORWARD, blocks, blocks * whole),
        each(scatter, Phase.FORWARD, blocks + 1, blocks * whole + of_embedding),
        each(gather, Phase.LOSS, 1, whole),
        each(Op.ALL_REDUCE, Phase.LOSS, 2, 3 * 4 * tokens),
        each(gather, Phase.BACKWARD, blocks + 1 + again, (blocks + again) * whole + of_embedding),
        each(scatter, Phase.BACKWARD, scattered, scattered * whole),
    ]


def _of_whole_activations(
    workload: Workload, settings: Settings, sizes: Sizes
) -> list[StepCollective]:
    """Without sequence parallelism: an all-reduce leads out of the embedding and of each block.

    Backward sums the gradient of the input of each linear that is split by output features: of
    queries, keys, values, gate and up, and of the head (``workers/probe/tensor_parallel``).
    What is computed again is summed again, up to the last tensor that backward needs, which is
    before the MLP's sum. Sums of gradients are all-reduces of backward too.
    """
    model, compute = workload.model, COMPUTE_BYTES[workload.precision]
    casts = workload.precision is Precision.BF16_MIXED and settings.sharding not in FSDP
    residual = 4 if casts else compute  # autocast leaves it in fp32
    passes = settings.gradient_accumulation_steps
    tokens = passes * settings.micro_batch_size * workload.sequence_length
    blocks, split = 2 * model.layers, 5 * model.layers + 1
    again = settings.activation_checkpointing.layers_again(model.layers)
    elements = tokens * model.hidden_size

    def each(op: Op, phase: Phase, count: int, size: float) -> StepCollective:
        return StepCollective(op, Axis.TP, phase, Overlap.EXPOSED, passes * count, size)

    reduce = Op.ALL_REDUCE
    found = [each(reduce, Phase.FORWARD, blocks + 1, (residual + blocks * compute) * elements)]
    if workload.gathers_logits:
        padded = -(-model.vocab_size // sizes.tp) * sizes.tp
        found.append(each(Op.ALL_GATHER, Phase.LOSS, 1, compute * tokens * padded))
    else:
        found.append(each(reduce, Phase.LOSS, 2, 3 * 4 * tokens))
    sums = _of_partial_gradients(workload, settings, sizes)
    size = (split * residual + again * compute) * elements + sum(one.bytes for one in sums)
    count = passes * (split + again) + sum(one.count for one in sums)
    exposed = Overlap.EXPOSED
    return [*found, StepCollective(reduce, Axis.TP, Phase.BACKWARD, exposed, count, size)]


def _of_partial_gradients(
    workload: Workload, settings: Settings, sizes: Sizes
) -> list[StepCollective]:
    """Summing gradients of what tensor parallelism replicates: norms, routers, whole experts.

    Without sequence parallelism only norms of heads have parts of a gradient.
    FSDP2 does it before each of its own reductions; without FSDP it is done once per step.
    """
    number = WEIGHT_BYTES[workload.precision]
    passes = 1
    if sizes.is_fsdp:
        passes = reducing_passes(settings)
        number = COMPUTE_BYTES[workload.precision]
        if passes < settings.gradient_accumulation_steps:  # accumulated in the reduction's format
            number = REDUCE_BYTES[reduced_in(workload, sizes)]
    replicated = model_tensors(workload.model).replicated
    if not workload.splits_sequence:
        hidden = workload.model.hidden_size
        replicated = tuple(size for size in replicated if size != hidden)
    if not replicated:
        return []
    op, phase = Op.ALL_REDUCE, Phase.BACKWARD
    count, size = passes * len(replicated), passes * number * sum(replicated)
    return [StepCollective(op, Axis.TP, phase, Overlap.EXPOSED, count, size)]
