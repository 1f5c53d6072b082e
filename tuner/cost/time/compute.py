"""Seconds that one GPU computes under torch: matrices, attention, traffic of its memory.

nanotron's kernels are priced in ``cost/pipeline.py``, by constants that are fitted to its own runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from math import exp

from tuner.catalog.gpus import gpu_kinds, matmul_share
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.workload import Precision, Workload
from tuner.cost.constants import Costs, TorchCosts
from tuner.cost.memory.attention import Backend, attention_of
from tuner.cost.memory.shards import (
    COMPUTE_BYTES,
    adapter_bytes,
    adapter_input_bytes,
    axis_sizes,
    layer_variants,
    logit_ranks,
    loss_width,
)
from tuner.cost.memory.step import LOSS_PARTS
from tuner.cost.memory.tensors import counts
from tuner.cost.time.collectives import StepCollective
from tuner.model import ModelConfig
from tuner.model.fields import ARCHITECTURES
from tuner.model.shape import linears

# What both sides of a 16-bit weight are multiples of where products with it take the usual kernels:
# 16 bytes (NVIDIA's Matrix Multiplication Background User's Guide).
ALIGNED = 8
# Tokens that a matrix kernel computes at once: CUTLASS's usual tile on Ampere and Hopper.
TILE_ROWS = 128


def peak_flops_per_s(workload: Workload, cluster: Cluster) -> float | None:
    """The matrix rate of the precision; ``None`` when the GPU's is not known."""
    if workload.precision is Precision.FP32:
        return cluster.gpu.fp32_flops_per_s
    return cluster.gpu.dense_bf16_flops_per_s


def host_bytes_per_s(cluster: Cluster) -> float | None:
    """The GPU's link to the host's memory, in one direction; ``None`` outside the catalogue."""
    kind = gpu_kinds().get(cluster.gpu.name)
    return None if kind is None else kind.host_bytes_per_s


@lru_cache(maxsize=64)
def layer_backends(workload: Workload, cluster: Cluster) -> tuple[Backend, ...]:
    """Lists the attention kernel of each layer of transformers' model."""
    compute = COMPUTE_BYTES[workload.precision]
    attention = attention_of(workload, compute, cluster.gpu)
    layers = layer_variants(workload.model, workload.sequence_length, workload.masked)
    return tuple(attention.of(masked=layer.masked) for layer in layers)


@lru_cache(maxsize=64)
def _bytes_per_score(workload: Workload, cluster: Cluster, *, again: float) -> float:
    """Traffic of one score of attention, averaged over layers; kernels that are fused have none.

    Every operator of ``eager_attention_forward`` in transformers' ``modeling_gemma2.py`` reads and
    writes all scores. Forward: the product writes them; scaling, division, tanh, multiplication and
    the mask's addition each read and write them; softmax reads and writes fp32, to which they are
    cast and from which they are cast back (ATen's ``SoftMax.cpp`` casts in its kernel from fp16
    only); the second product reads them. Backward: the products write the gradient, and read the
    probabilities and it again twice; both casts again; softmax multiplies gradient and result into
    a buffer, and reads that and the result (``softmax_backward_cuda_out`` in ``SoftMax.cu``); tanh
    reads its result too.

    Torch's own operators are in fp32 (``_scaled_dot_product_attention_math`` in ``attention.cpp``).
    Forward: the product writes scores; the mask's addition reads and writes them, and so does
    softmax; ``_safe_softmax`` looks for rows without a key, which reads scores and writes and reads
    a byte of each, and fills these, which reads and writes probabilities; the second product reads
    them. A copy of them in a narrower input's precision is made too, and not used. Backward: one
    product reads probabilities, one writes their gradient; softmax as in capped attention; two
    products read what it leaves.

    MPT's (``MptAttention`` in ``modeling_mpt.py``): the product writes scores, scaling reads and
    writes them, the bias makes them fp32, masking and softmax each read and write that, a cast
    ends it, the second product reads. Backward goes the same way, softmax as above.
    """
    width, backends = COMPUTE_BYTES[workload.precision], layer_backends(workload, cluster)
    casts = 2 * (width + 4) if width < 4 else 0
    if workload.model.has_biased_scores:
        forward = width + 2 * width + (width + 4) + 8 + 8 + casts / 2 + width
        return (1 + again) * forward + 2 * width + casts / 2 + 24 + 8 + casts / 2 + 4 * width
    capped = width + 5 * 2 * width + 2 * 4 + casts + width
    capped_backward = 2 * width + 6 * 4 + casts + 3 * width + 3 * 2 * width + 2 * width
    copied = 4 + width if width < 4 else 0
    math = 4 + 2 * 4 + 2 * 4 + (4 + 1 + 1) + 2 * 4 + 4 + copied
    math_backward = 2 * 4 + 6 * 4 + 2 * 4
    each = {
        Backend.EAGER: (1 + again) * capped + capped_backward,
        Backend.MATH: (1 + again) * math + math_backward,
    }
    return sum(each.get(backend, 0) for backend in backends) / len(backends)


def computed_again(settings: Settings, layers: int) -> tuple[float, float]:
    """Shares of forward in the layers that backward computes again: of matrix products with fused
    attention, and of all else (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198)."""
    share = settings.activation_checkpointing.layers_again(layers) / layers
    keeps = settings.activation_checkpointing is Checkpointing.SELECTIVE
    return (0.0 if keeps else share), share


# Products of attention, each of 2 FLOPs per query, key and channel: forward makes scores and adds
# values. Backward of kernels that keep no scores makes these again, and four gradients (Dao 2023,
# https://arxiv.org/abs/2307.08691, section 3.1.2); others make the four.
FORWARD, BACKWARD, KEPT_BACKWARD = 2, 5, 4


@lru_cache(maxsize=256)
def attention_work(
    workload: Workload,
    cluster: Cluster,
    costs: TorchCosts,
    *,
    again: tuple[float, float],
    parts: int = 1,
) -> float:
    """FLOPs of wide products that take as long as one token's attention in one layer, on average.

    A kernel that skips what is after a query computes half of the sequence, and half a tile.
    A window does not make keys fewer: it comes as a mask (``sdpa_mask`` in
    ``transformers/masking_utils.py``), which flash attention does not take
    (``check_for_attn_mask`` in ATen's ``sdp_utils_cpp.h``), and the kernel that takes one goes
    through all keys. So do scores that are computed operator by operator. Documents that are packed
    for a kernel without a mask are each a sequence of their own. Beside its products,
    a score's exponential takes as long in heads of any size. ``again`` is how often forward is
    computed once more, of fused kernels and of others (:func:`computed_again`). A sequence that is
    one of several ``parts`` meets the keys of all: their ranks share them evenly.
    """
    model, tokens, work = workload.model, workload.sequence_length, 0.0
    variants = layer_variants(model, tokens, workload.masked)
    rows = workload.row if workload.packing and workload.packing.restarts else (tokens,)
    causal = sum(length * (parts * length + TILE_ROWS) / 2 for length in rows) / tokens
    for layer, backend in zip(variants, layer_backends(workload, cluster), strict=True):
        if backend in (Backend.EAGER, Backend.MATH):
            work += tokens * ((1 + again[1]) * FORWARD + KEPT_BACKWARD)
            continue
        keys = tokens if layer.masked else causal
        if cluster.gpu.device is Device.CPU:  # nothing is known of its kernels beside its products
            work += keys * ((1 + again[0]) * FORWARD + BACKWARD)
            continue
        reached = model.head_dim / (model.head_dim + costs.attention_dim)
        forward = (1 + again[0]) * FORWARD / costs.attention_forward
        work += keys * (forward + BACKWARD / costs.attention_backward) / reached
    return 2 * model.heads * model.head_dim * work / model.layers


@lru_cache(maxsize=64)
def moved_bytes(model: ModelConfig, width: int, whole: int = 1) -> float:
    """Bytes that one layer's forward reads and writes per token beside its products' own.

    Each token between the blocks is of ``whole`` ranks.

    In transformers 5's models: LayerNorm is one kernel; RMSNorm (``modeling_llama.py``) casts to
    fp32, squares, averages, scales, casts back and multiplies, each in a kernel of its own. Rotary
    embeddings of queries and keys negate and concatenate halves, multiply twice and add. Two
    residuals are added; an activation reads and writes, and a gate is multiplied with it.
    """
    of, hidden = ARCHITECTURES[model.model_type], model.hidden_size
    query, key = model.heads * model.head_dim, model.kv_heads * model.head_dim
    casts = 2 * (width + 4) if width < 4 else 0
    norm = 2 * width if of.layer_norm else casts + 8 + 4 + 8 + 2 * width
    normed = of.norms * whole * hidden + (query + key) * bool(of.head_norms or of.wide_norms)
    rotated = 0 if of.rope is None else (3 + 2 + 2 + 3) * width * (query + key)
    inner = model.mlp_width * (5 if of.gated else 2) * width
    return norm * normed + rotated + 2 * 3 * width * whole * hidden + inner


def _merged_bytes(model: ModelConfig, width: int, ranks: int, *, again: float) -> float:
    """Bytes that ring attention reads and writes per token and layer beside its kernels.

    Of each block but the first forward makes fp32 of the result, and of the difference to the one
    so far a product and a sum (``_SDPAMerger``). Backward adds each block's gradient of queries to
    fp32, and of keys and values it adds half, joins the halves, and joins both to send them.
    """
    if ranks == 1:
        return 0.0
    query, keys = model.heads * model.head_dim, 2 * model.kv_heads * model.head_dim
    forward = (ranks - 1) * (width + 4 + 12 + 8 + 12) * query
    backward = ranks * ((width + 8) * query + ((width + 8) / 2 + 8 + 8 + 2 * width) * keys)
    return (1 + again) * forward + backward


@lru_cache(maxsize=64)
def adapter_work(workload: Workload, wide: int, t: TorchCosts) -> tuple[float, float]:
    """FLOPs, and bytes of memory beside them, of a token's forward in one layer's adapters.

    As ``Linear.forward`` in peft/tuners/lora/layer.py: the input is cast to the matrices' format,
    of ``wide`` bytes an element, and by autocast back; dropout reads it, writes it and a mask; what
    the matrices make is read and written scaled, and then added to the layer's own, of which
    ``Linear4bit.forward`` in bnb.py makes a copy first.
    """
    model, adapter = workload.model, workload.adapter
    assert adapter is not None
    width, work, moved = COMPUTE_BYTES[workload.precision], 0.0, 0.0
    for one in adapter.adapted(model):
        sides = one.inputs + one.outputs + 2 * adapter.rank
        work += 2 * (adapter.rank * (one.inputs + one.outputs) + t.small_dim * sides)
        moved += 2 * (width + wide) * one.inputs * (wide > width)
        moved += (2 * wide + 1) * one.inputs * bool(adapter.dropout)
        moved += (2 + 3 + 2 * adapter.quantizes) * width * one.outputs
    return work, moved


# Kernels that a Llama layer's forward and backward launch, 38 and 71, as dry runs count them
# (transformers 5.23): what ``layer_host_s`` is the time of, of which forward is given a third.
LAYER_KERNELS = 109


def launched(workload: Workload, settings: Settings, cluster: Cluster) -> float:
    """Kernels of a layer's forward over those of a layer without adapters.

    Each adapted linear has two products more, a scaling and an addition, one for dropout; and where
    autocast finds fp32 matrices, casts of the input there and back, and of both. Of a quantized one
    the product is copied; and each is unpacked, its scales first where they are quantized too.
    """
    adapter = workload.adapter
    if adapter is None:
        return 1.0
    width = COMPUTE_BYTES[workload.precision]
    casts = 2 * (adapter_bytes(workload, settings, cluster) > width)
    casts += 2 * (adapter_input_bytes(workload, settings, cluster) > width)
    each = 4 + bool(adapter.dropout) + casts + adapter.quantizes
    more = each * len(adapter.adapted(workload.model))
    if adapter.quantizes:
        more += (1 + 2 * adapter.double_quant) * len(linears(workload.model))
    return 1 + more / (LAYER_KERNELS / 3)


def loss_traffic(workload: Workload, settings: Settings, cluster: Cluster) -> float:
    """Traffic of a logit under the workload's loss, as a share of that under transformers' own.

    Each is written; copied to fp32 where the loss is of such a copy; read and written by
    log-softmax; its gradient is written, read with that and written again, and copied back.
    Under ``fused_loss``, which is in fp32, as many operators work in place: as much in all.
    """
    compute = COMPUTE_BYTES[workload.precision]
    return logit_bytes(compute, loss_width(workload, settings, cluster)) / logit_bytes(compute, 4)


def logit_bytes(compute: int, width: int) -> int:
    """Bytes that are moved of a logit by a loss of so many bytes an element."""
    return compute + 6 * width + (2 * (compute + width) if width > compute else 0)


def layer_compute_s(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> float:
    """Forward and backward of one layer and micro-batch on one rank, without communication.

    FLOPs: 6 per parameter and token, or 4 where it is frozen and needs no gradient of its own, and
    attention's; 2 more where forward is computed again. Backward moves twice what forward does. The
    GPU's rates must be known.
    """
    t = costs.torch
    model, tp = workload.model, axis_sizes(settings, cluster).tp
    found, width = counts(model), COMPUTE_BYTES[workload.precision]
    tokens = settings.micro_batch_size * workload.sequence_length / tp
    whole = 1 if workload.splits_sequence else tp
    products_again, again = computed_again(settings, model.layers)
    # both dimensions of the weights of all products that a token goes through, added: tensor
    # parallelism cuts the inner one; experts stay whole, but have a part of the tokens
    hidden, times = model.hidden_size, model.experts_per_token or 1
    qkv = found.attention + 2 * model.kv_heads * model.head_dim
    sides = (tp * hidden + qkv) + (found.attention + tp * hidden)
    into = 2 if ARCHITECTURES[model.model_type].gated else 1
    sides += (into + 1) * (times * (1 if model.experts else tp) * hidden + model.mlp_width)
    forward = 2 * (found.active + t.small_dim * sides)
    # weights: forward reads them, backward reads them and writes gradients
    read = (found.active - model.experts_per_token * found.expert * bool(model.experts)) / tp
    if model.experts:
        # experts that at least one token goes to, if a router spreads tokens evenly
        reached = model.experts * (1 - exp(-tokens * model.experts_per_token / model.experts))
        read += reached * found.expert
        # grouped products compute half a tile of each expert in vain
        forward += 2 * (TILE_ROWS / 2 * reached / tokens) * found.expert
    products, passes, unpacked = (3 + products_again) * forward, 3.0, 0.0
    if workload.adapter is not None:
        products, passes = (2 + products_again) * forward, 2.0
        taken = adapter_input_bytes(workload, settings, cluster)
        work, traffic = adapter_work(workload, taken, t)
        products += (3 + products_again) * work
        if workload.adapter.quantizes:
            # read packed and written whole, each time before it is read: selective checkpointing
            # does not know the product, which is computed again
            products += (again - products_again) * forward
            unpacked = (passes + again) * (0.5 + width)
            passes += again - products_again
    moved = (passes + products_again) * width * read + unpacked * read
    moved += (3 + again) * t.traffic_factor * moved_bytes(model, width, whole) * tokens
    if workload.adapter is not None:
        moved += (3 + again) * traffic * tokens
    each = _bytes_per_score(workload, cluster, again=again)
    moved += each * model.heads * workload.sequence_length * tokens
    moved += _merged_bytes(model, width, settings.cp_size, again=again) * tokens
    attention = attention_work(
        workload, cluster, t, again=(products_again, again), parts=settings.cp_size
    )
    memory_rate = cluster.gpu.memory_bytes_per_s
    assert memory_rate is not None
    rate = _matmul_rate(workload, cluster, costs)
    return tokens * (products + attention) / rate + moved / memory_rate


def ends_compute_s(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> float:
    """The same of the output head and the loss; embedding tokens takes next to nothing."""
    model, t, tp = workload.model, costs.torch, axis_sizes(settings, cluster).tp
    rate, memory_rate = _matmul_rate(workload, cluster, costs), cluster.gpu.memory_bytes_per_s
    assert memory_rate is not None
    vocabulary, hidden = model.vocab_size / tp, model.hidden_size
    logits = settings.micro_batch_size * workload.sequence_length * vocabulary
    frozen = workload.adapter is not None
    work = (
        (4 if frozen else 6) * hidden * logits * (1 + t.small_dim * (1 / hidden + 1 / vocabulary))
    )
    if COMPUTE_BYTES[workload.precision] == 2 and vocabulary % ALIGNED:
        work *= 1 + unaligned_more(rate, costs)
    # the weight is read twice and its gradient written; for each part, which adds it up
    times = 4.0 * LOSS_PARTS if settings.fused_loss else 3.0 - frozen
    moved = times * COMPUTE_BYTES[workload.precision] * hidden * vocabulary
    lost = logits * tp / logit_ranks(workload, settings)
    moved += t.logit_traffic * loss_traffic(workload, settings, cluster) * lost
    return work / rate + moved / memory_rate


def _matmul_rate(workload: Workload, cluster: Cluster, costs: Costs) -> float:
    """FLOP/s of wide products in the workload's precision; the GPU's peak must be known."""
    peak = peak_flops_per_s(workload, cluster)
    assert peak is not None
    return peak if costs.calibrated else peak * matmul_share(cluster.gpu.name)


def unaligned_more(rate: float, costs: Costs) -> float:
    """How much longer a 16-bit product takes, as a share of its time at this rate, where a side of
    its weight is no multiple of 8: its kernels load element by element, for tensor cores of an
    older generation."""
    return max(0.0, rate / costs.torch.unaligned_flops_per_s - 1)


# A phase, forward with the loss or backward, and a part: layers, or the ends around them.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What the operators of a micro-batch do, as ``workers/probe/dry/work.py`` counts it."""

    product_flops: float  # of matrix products
    unaligned_flops: float  # of those, whose weights are not aligned
    product_sides: float  # 2 x tokens x (k + n) of those with weights of k x n
    attention_flops: float  # of fused attention's forward, less the keys that a causal one skips
    attention_scores: float  # the same over the channels of a head
    attention_backward_flops: float
    attention_backward_scores: float
    weight_bytes: float  # that products read of weights, or write of their gradients
    moved_bytes: float  # that all other kernels read and write
    kernels: float  # that are launched
    host_bytes: float  # of layers' inputs that go to the host, or come back


AMOUNTS = tuple(one.name for one in fields(Amounts))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """Holds what dry runs show of an optimizer step's time."""

    amounts: Mapping[Place, Amounts]  # of one micro-batch
    trained_elements: float  # parameters that have gradients
    updated_elements: float  # those that this rank's optimizer updates
    collectives: tuple[StepCollective, ...]  # of the optimizer step


def gpu_s(
    done: Amounts, peak: float, cluster: Cluster, costs: Costs, traffic_factor: float
) -> float:
    """Seconds of one GPU, whose memory's rate must be known, with matrices at this peak rate."""
    memory_rate = cluster.gpu.memory_bytes_per_s
    assert memory_rate is not None
    t = costs.torch
    work = done.product_flops + t.small_dim * done.product_sides
    if cluster.gpu.device is Device.CPU:  # nothing is known of its kernels beside its products
        work += done.attention_flops + done.attention_backward_flops
    else:
        forward = done.attention_flops + t.attention_dim * done.attention_scores
        backward = done.attention_backward_flops + t.attention_dim * done.attention_backward_scores
        work += forward / t.attention_forward + backward / t.attention_backward
    rate = peak if costs.calibrated else peak * matmul_share(cluster.gpu.name)
    if done.unaligned_flops:
        work += done.unaligned_flops * unaligned_more(rate, costs)
    moved = traffic_factor * done.moved_bytes + done.weight_bytes
    return work / rate + moved / memory_rate
