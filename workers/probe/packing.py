"""Batches as collators make them of packed or padded documents, and attention within each."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from transformers import AttentionInterface

# The name that CPU's stand-in for FlashAttention has in transformers.
VARLEN_ON_CPU = "varlen_on_cpu"


def batch_of(tokens: torch.Tensor, packing: Mapping[str, Any] | None, width: torch.dtype) -> Any:
    """What the model is called with, of tokens (rows, sequence length).

    Each row has the same documents. Positions begin anew in each, and its first token is not
    predicted, as ``DataCollatorWithFlattening`` (transformers, data/data_collator.py) and TRL's
    collator have it. A mask of numbers is in the format of products.
    """
    if packing is None:
        return {"input_ids": tokens, "labels": tokens}
    variant, lengths = packing["variant"], packing["documents"]
    rows, length = tokens.shape
    if variant == "padded":
        is_text = torch.arange(length, device=tokens.device) < lengths[0]
        labels = tokens.masked_fill(~is_text, -100)
        mask = is_text.expand(rows, -1).long()
        return {"input_ids": tokens, "labels": labels, "attention_mask": mask}
    places = torch.cat([torch.arange(each, device=tokens.device) for each in lengths])
    positions = places.repeat(rows, 1)
    labels = tokens.masked_fill(positions == 0, -100)
    batch = {"input_ids": tokens, "labels": labels, "position_ids": positions}
    if variant == "varlen":  # one row
        batch = {name: tensor.view(1, -1) for name, tensor in batch.items()}
    elif variant == "block_diagonal":
        document = (places == 0).cumsum(0)
        seen = document[:, None] == document[None]
        seen &= torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        mask = torch.full((length, length), torch.finfo(width).min, device=tokens.device)
        mask = mask.to(width).masked_fill(seen, 0)
        batch["attention_mask"] = mask.expand(rows, 1, -1, -1).contiguous()
    return batch


def attention_name(packing: Mapping[str, Any] | None, device: torch.device) -> str:
    """What computes attention: FlashAttention's library for ``varlen``, which needs a GPU."""
    if packing is None or packing["variant"] != "varlen":
        return "sdpa"
    if device.type == "cuda":
        return "flash_attention_2"
    AttentionInterface.register(VARLEN_ON_CPU, partial(_varlen_on_cpu, packing["documents"]))
    return VARLEN_ON_CPU


class DocumentAttention(torch.autograd.Function):
    """Causal attention within each document of one row, by CPU's flash attention.

    It keeps what FlashAttention's kernel for variable lengths keeps: queries, keys, values, the
    output, and one fp32 per head and token.
    """

    @staticmethod
    def forward(ctx, query, key, value, lengths, scale):  # type: ignore
        ctx.lengths, ctx.scale = lengths, scale
        if len(lengths) == 1:
            out, rows = _forward(query, key, value, 0.0, True, scale=scale)
            ctx.save_for_backward(query, key, value, out, rows)
            return out
        out = torch.empty_like(query)
        rows = query.new_empty(query.shape[:3], dtype=torch.float32)
        for span in _spans(lengths):
            parts = [tensor[:, :, span] for tensor in (query, key, value)]
            out[:, :, span], rows[:, :, span] = _forward(*parts, 0.0, True, scale=scale)
        ctx.save_for_backward(query, key, value, out, rows)
        return out

    @staticmethod
    def backward(ctx, gradient):  # type: ignore
        saved = ctx.saved_tensors
        if len(ctx.lengths) == 1:
            return *_backward(gradient, *saved, 0.0, True, scale=ctx.scale), None, None
        gradients = [torch.empty_like(tensor) for tensor in saved[:3]]
        for span in _spans(ctx.lengths):
            parts = [tensor[:, :, span] for tensor in (gradient, *saved)]
            found = _backward(*parts, 0.0, True, scale=ctx.scale)
            for whole, part in zip(gradients, found, strict=True):
                whole[:, :, span] = part
        return *gradients, None, None


_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


def _spans(lengths: Sequence[int]) -> list[slice]:
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def _varlen_on_cpu(
    documents: Sequence[int],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Stands for ``flash_attention_forward`` of transformers, which casts under autocast too.

    On fake tensors documents make no difference.
    """
    del module, attention_mask, dropout, given
    if torch.is_autocast_enabled("cpu"):
        narrow = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(narrow) for tensor in (query, key, value))
    tokens = query.shape[2]
    rows = [tokens] if is_fake(query) else [*documents] * (tokens // sum(documents))
    out = DocumentAttention.apply(query, key, value, rows, scaling)
    return out.transpose(1, 2).contiguous(), None
