"""Finds the kernel that torch computes attention with, and what a ring of ranks needs beside it.

transformers calls ``scaled_dot_product_attention``, and torch takes the first kernel of an order
that can bear the call. The rules are those of ``aten/src/ATen/native/transformers``, alike in torch
2.11 and 2.13: ``select_sdp_backend``, ``check_prefer_cudnn_attention`` and ``can_use_*_attention``
in ``cuda/sdp_utils.cpp``, and the checks of ``sdp_utils_cpp.h``. ``tests/cuda/test_attention.py``
holds them against torch itself.
"""

from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from tuner.core.cluster import Device, Gpu
from tuner.core.packing import PackingVariant
from tuner.core.workload import Workload
from tuner.model import ModelConfig

# What a GPU of unknown compute capability is taken for. So are AMD's, an assumption: torch's
# kernels for them (AOTriton) are flash and efficient ones for the same calls, but for heads of more
# than 256 channels, and without cuDNN.
AMPERE = (8, 0)
# Channels of a head that flash attention takes at most (``check_head_dim_size_flash``).
FLASH_HEAD_DIM = 256
# The same of cuDNN's; on Hopper it takes 256 (``check_cudnn_tensor_shapes``).
CUDNN_HEAD_DIM = 128
# Up to here transformers leaves grouped keys and values to the kernel (``use_gqa_in_sdpa``).
GROUPED_HEAD_DIM = 256
# From and to: where flash attention's backward has not enough shared memory for some large heads
# (``check_requires_grad_and_head_dim_gt192_constraints_on_sm86_89_or_120``).
NO_FLASH_BACKWARD = (((8, 6), (8, 9)), ((12, 0), (12, 1)))


class Backend(StrEnum):
    """Names the kernels of attention. All but the last two keep no scores."""

    CUDNN = "cudnn"  # cuDNN's fused kernel: it keeps what flash attention keeps
    FLASH = "flash"  # FlashAttention 2
    EFFICIENT = "efficient"  # xFormers' memory-efficient kernel
    MATH = "math"  # torch's own operators, in fp32: scores of all heads are kept
    EAGER = "eager"  # transformers' operators, where scores are capped or biased


class Call(NamedTuple):
    """Holds what torch's choice depends on, beside the device."""

    bits: int  # of an element of queries, keys and values: 16 or 32
    is_bf16: bool  # whether 16 bits are bfloat16
    grouped: bool
    """Whether there are fewer heads of keys than of queries, left to the kernel (``enable_gqa``);
    not where they were repeated before."""
    head_dim: int  # channels of a head
    masked: bool = False  # whether a mask is given, as of a window; being causal needs none
    dropout: bool = False  # whether probabilities are dropped out


def sdpa_backend(call: Call, capability: tuple[int, int], *, has_cudnn: bool = True) -> Backend:
    """The kernel that torch chooses in training on an NVIDIA GPU of this compute capability.

    cuDNN is newer than 9.15 in torch's builds for CUDA 13.
    """
    major, minor = capability
    most = FLASH_HEAD_DIM if capability == (9, 0) else CUDNN_HEAD_DIM
    if (
        has_cudnn
        and major in (9, 10)  # only the large chips of Hopper and Blackwell have it first
        and minor in (0, 3)
        and call.bits == 16
        and call.head_dim <= most
        and call.head_dim % 8 == 0
        and not call.dropout
    ):
        return Backend.CUDNN
    takes_flash = capability >= AMPERE and call.bits == 16 and not call.masked
    takes_flash = takes_flash and call.head_dim <= FLASH_HEAD_DIM
    if any(first <= capability <= last for first, last in NO_FLASH_BACKWARD):
        small = call.head_dim <= 192 or (call.head_dim > 224 and not call.dropout)
        takes_flash = takes_flash and small
    if takes_flash:
        return Backend.FLASH
    # The efficient kernel takes no grouped heads, no bf16 before Ampere, and rows of a tensor
    # core's width (``minimum_gemm_alignment``).
    if call.grouped or (call.is_bf16 and call.bits == 16 and capability < AMPERE):
        return Backend.MATH
    alignment = 8 if call.bits == 16 else 4 if capability >= AMPERE else 1
    return Backend.EFFICIENT if call.head_dim % alignment == 0 else Backend.MATH


class Attention(NamedTuple):
    unmasked: Backend = Backend.FLASH  # where a kernel itself leaves out what comes after a query
    masked: Backend = Backend.EFFICIENT
    """In layers with a window that is shorter than the sequence, which takes a mask, and in all
    where packing makes one."""

    def of(self, *, masked: bool) -> Backend:
        return self.masked if masked else self.unmasked

    def by_operators(self) -> dict[str, str]:
        """Calls that no kernel bears, by name, as the probe program is told."""
        named = self._asdict()
        return {name: str(backend) for name, backend in named.items() if backend is Backend.MATH}


@lru_cache(maxsize=256)
def attention_of(workload: Workload, compute_bytes: int, gpu: Gpu) -> Attention:
    """Finds the attention kernels of a model's layers.

    A training script that packs for FlashAttention's kernel has its library, not torch's choice.

    On CPUs torch has one fused kernel, which keeps what flash attention keeps. An element in matrix
    products has ``compute_bytes``: 2 (bf16) or 4 (fp32).
    """
    model, packing = workload.model, workload.packing
    if packing is not None and packing.variant is PackingVariant.VARLEN:
        return Attention(unmasked=Backend.FLASH, masked=Backend.FLASH)
    if model.has_capped_scores or model.has_biased_scores:
        return Attention(unmasked=Backend.EAGER, masked=Backend.EAGER)
    if gpu.device is Device.CPU:
        return Attention(unmasked=Backend.FLASH, masked=Backend.FLASH)
    fields, capability = model.fields, gpu.capability
    call = Call(
        bits=8 * compute_bytes,
        is_bf16=compute_bytes == 2,
        grouped=leaves_groups(model),
        head_dim=model.head_dim,
        dropout=bool(fields.get("attention_dropout") or fields.get("attn_pdrop")),
    )
    return Attention(
        unmasked=sdpa_backend(call, capability),
        masked=sdpa_backend(call._replace(masked=True, grouped=False), capability),
    )


def leaves_groups(model: ModelConfig) -> bool:
    """Tells whether transformers leaves grouped keys and values to the kernel, where there is no
    mask."""
    return model.kv_heads < model.heads and model.head_dim <= GROUPED_HEAD_DIM


def ring_buffers(q: float, k: float, width: int, ranks: int) -> tuple[float, float]:
    """Bytes of buffers of ring attention in forward and in backward, on the rank that needs most;
    its queries have ``q`` elements of ``width`` bytes, its keys and its values ``k`` each.

    As torch has it (``_templated_ring_attention`` and ``_backward`` in torch/distributed/tensor/
    experimental/_context_parallel/_attention.py, 2.13; Liu et al. 2023, "Ring Attention",
    https://arxiv.org/abs/2310.01889): keys and values of all ranks are gathered at once (rotate
    method ``allgather``, the default of torch and accelerate). Forward merges results in fp32: the
    one so far, the block's, their difference, a product or the new one. Backward adds up in fp32;
    gradients of keys and values go around: those received, added to, joined and sent.
    ``tests/process/probe/test_ring.py`` runs that code.
    """
    if ranks == 1:
        return 0.0, 0.0
    gathered, results = 2 * width * ranks * k, width * (q + 2 * k)
    # the results before it are still there
    at_kernel = 4 * q + results + width * (q + k) + 24 * k
    at_exchange = 4 * q + results + 32 * k
    # queries' are added to by half, and joined
    at_half = 8 * q + width * (q / 2 + 2 * k) + 24 * k
    most = max(at_kernel, at_exchange, at_half) + 2 * width * k
    return 4 * 4 * q + gathered, most + gathered - results
