"""Seconds that one GPU computes: matrices at an efficiency that depends on shapes, and traffic."""

from functools import lru_cache
from math import exp

from tuner.core.cluster import Cluster
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.workload import Precision, Workload
from tuner.cost.constants import Costs
from tuner.cost.memory.attention import Backend, attention_of
from tuner.cost.memory.pipeline import Stage, counts
from tuner.cost.memory.shards import COMPUTE_BYTES, axis_sizes, layer_variants

# Tokens that a matrix kernel computes at once: CUTLASS's usual tile on Ampere and Hopper.
TILE_ROWS = 128


def peak_flops_per_s(workload: Workload, cluster: Cluster) -> float | None:
    """The matrix rate of the precision; ``None`` when the GPU's is not known."""
    if workload.precision is Precision.FP32:
        return cluster.gpu.fp32_flops_per_s
    return cluster.gpu.dense_bf16_flops_per_s


@lru_cache(maxsize=64)
def attended_keys(workload: Workload, cluster: Cluster) -> float:
    """Keys that each query of transformers' attention is multiplied with, averaged over layers.

    Half of the sequence where a kernel skips what is after the query. A window does not make them
    fewer: it comes as a mask (``sdpa_mask`` in ``transformers/masking_utils.py``), which flash
    attention does not take (``check_for_attn_mask`` in ATen's ``sdp_utils_cpp.h``), and the kernel
    that takes one goes through all keys. So do scores that are computed operator by operator.
    """
    tokens, spelled_out = workload.sequence_length, (Backend.EAGER, Backend.MATH)
    whole = sum(
        layer.masked or backend in spelled_out
        for layer, backend in zip(
            layer_variants(workload.model, tokens), layer_backends(workload, cluster), strict=True
        )
    )
    layers = workload.model.layers
    return tokens * (whole + (layers - whole) / 2) / layers


@lru_cache(maxsize=64)
def layer_backends(workload: Workload, cluster: Cluster) -> tuple[Backend, ...]:
    """Lists the attention kernel of each layer of transformers' model."""
    compute = COMPUTE_BYTES[workload.precision]
    attention = attention_of(workload.model, compute, cluster.gpu)
    layers = layer_variants(workload.model, workload.sequence_length)
    return tuple(attention.of(masked=layer.masked) for layer in layers)


@lru_cache(maxsize=64)
def _bytes_per_score(workload: Workload, cluster: Cluster, *, again: bool) -> float:
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
    """
    width, backends = COMPUTE_BYTES[workload.precision], layer_backends(workload, cluster)
    casts = 2 * (width + 4) if width < 4 else 0
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


def stage_compute_s(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    costs: Costs,
    stage: Stage,
    *,
    keys: float | None = None,
) -> float:
    """Forward and backward of one micro-batch on one rank, without communication.

    FLOPs: 6 per parameter and token, 12 x keys x channels for attention; a third more where forward
    is computed again. The fitted traffic of logits is of their fp32 copies, in any precision.
    ``keys`` are those that each query is multiplied with; causal attention's by default. The GPU's
    rates must be known.
    """
    model, tp = workload.model, axis_sizes(settings, cluster).tp
    found, t = counts(model), costs.time
    tokens = settings.micro_batch_size * workload.sequence_length / tp
    peak, rate = peak_flops_per_s(workload, cluster), cluster.gpu.memory_bytes_per_s
    assert peak is not None
    assert rate is not None
    again = 4 / 3 if settings.activation_checkpointing is Checkpointing.FULL else 1.0
    attention = 12 * (workload.sequence_length / 2 if keys is None else keys) * found.attention
    width = COMPUTE_BYTES[workload.precision]
    narrowest = min(model.hidden_size, found.mlp) / tp
    layer = 6 * found.active + attention
    moved = width * t.traffic_factor * found.kept * tokens
    if model.experts:
        # experts that at least one token goes to, if a router spreads tokens evenly
        reached = model.experts * (1 - exp(-tokens * model.experts_per_token / model.experts))
        # grouped products compute half a tile of each expert in vain; forward reads their weights
        # however few the tokens are, backward reads them and writes their gradients
        expert = found.expert
        layer += 6 * (TILE_ROWS / 2 * reached / tokens) * expert
        moved += 3 * width * (reached * expert)
        narrowest = min(model.hidden_size / tp, model.expert_intermediate_size)
    efficiency = t.matmul_efficiency * narrowest / (narrowest + t.small_dim)
    layer_s = again * (layer * tokens / (peak * efficiency) + moved / rate)
    each = _bytes_per_score(workload, cluster, again=again > 1)
    layer_s += each * model.heads * workload.sequence_length * tokens / rate
    logits = tokens * model.vocab_size
    head_s = 6 * model.hidden_size * logits / (peak * t.matmul_efficiency)
    head_s += t.logit_traffic * logits / rate
    return stage.layers * layer_s + stage.head * head_s
