"""CUDA's kernels of dropout, for tensors that dispatch to a CPU's."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional


@contextlib.contextmanager
def kernels_of(kind: str) -> Iterator[None]:
    """Under this, dropout keeps for backward what it does on a device of ``kind``.

    CUDA's dropout is one kernel with a mask of bytes (``is_fused_kernel_acceptable`` in
    aten/src/ATen/native/Dropout.cpp), where a CPU keeps one in the tensor's dtype. CUDA's flash
    and efficient attention drop out inside the kernel and keep what they keep without dropout,
    beside the generator's state, which is two numbers and not counted here. A CPU's fused
    attention refuses dropout, so scores are computed one operator after the other, and kept.

    Args:
        kind: cpu, where nothing changes, or cuda.
    """
    if kind != "cuda":
        yield
        return
    module: Any = functional
    dropout, attention = module.dropout, module.scaled_dot_product_attention
    module.dropout = _fused_dropout(dropout)
    module.scaled_dot_product_attention = _attention_without_dropout(attention)
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


def _attention_without_dropout(original: Any) -> Any:
    def attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        return original(query, key, value, attn_mask, 0.0, *args, **kwargs)

    return attention
