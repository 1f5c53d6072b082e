"""CUDA's kernels of dropout and attention, for tensors that dispatch to a CPU's."""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel


@contextlib.contextmanager
def kernels_of(kind: str, backends: Mapping[str, str]) -> Iterator[None]:
    """Under this, dropout and attention keep for backward what they do on a device of ``kind``.

    CUDA's dropout is one kernel with a mask of bytes (``is_fused_kernel_acceptable`` in
    aten/src/ATen/native/Dropout.cpp), where a CPU keeps one in the tensor's dtype. CUDA's flash
    and efficient attention drop out inside the kernel and keep what they keep without dropout,
    beside the generator's state, which is two numbers and not counted here. A CPU's fused
    attention refuses dropout, so scores are computed one operator after the other, and kept.

    Where torch would take no fused kernel on the device, attention is computed operator by
    operator here too: the operators, and their precision, are the same on all devices
    (``_scaled_dot_product_attention_math`` in aten/src/ATen/native/transformers/attention.cpp).

    Args:
        kind: cpu, where nothing changes, or cuda.
        backends: of ``Spec.attention_backends``.
    """
    if kind != "cuda":
        yield
        return
    module: Any = functional
    dropout, attention = module.dropout, module.scaled_dot_product_attention
    module.dropout = _fused_dropout(dropout)
    module.scaled_dot_product_attention = _attention(attention, backends)
    try:
        yield
    finally:
        module.dropout, module.scaled_dot_product_attention = dropout, attention


def _fused_dropout(original: Any) -> Any:
    def dropout(
        input: torch.Tensor,  # noqa: A002  (its name is part of the function)
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        if training and not inplace and 0.0 < p < 1.0:
            return torch.native_dropout(input, p, training)[0]
        return original(input, p, training, inplace)

    return dropout


def _attention(fused: Any, backends: Mapping[str, str]) -> Any:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        given: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "enable_gqa": enable_gqa}
        if backends.get("unmasked" if attn_mask is None else "masked") != "math":
            return fused(query, key, value, attn_mask, 0.0, **given)
        if dropout_p > 0.0:
            return _dropped_out(query, key, value, attn_mask, dropout_p, **given)
        with sdpa_kernel(SDPBackend.MATH):
            return fused(query, key, value, attn_mask, 0.0, **given)

    return attention


def _dropped_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None,
    dropout_p: float,
    *,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> torch.Tensor:
    """torch's operators with CUDA's dropout among them: on a CPU torch takes a CPU's."""
    given = query.dtype
    if enable_gqa:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    query, key, value = query.float(), key.float(), value.float()
    factor = (query.shape[-1] ** -0.5 if scale is None else scale) ** 0.5
    scores = torch.matmul(query * factor, key.transpose(-2, -1) * factor)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        nothing = torch.zeros((), dtype=given, device=query.device)
        attn_mask = torch.where(attn_mask, nothing, float("-inf"))
    if attn_mask is not None:
        scores = scores + attn_mask
    weights = torch._safe_softmax(scores, -1)
    del scores
    weights = torch.native_dropout(weights, dropout_p, True)[0]
    return torch.matmul(weights, value).to(given)
