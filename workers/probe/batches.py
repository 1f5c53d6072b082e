"""Batches as collators make them: of packed or padded documents, with attention within each, and
of text with images, as processors of vision-language models make them."""

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import isqrt
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AttentionInterface
from transformers.utils import is_flash_attn_2_available

from workers.probe.checkpointing import VARLEN_FORWARD, VARLEN_ON_CPU
from workers.probe.errors import AttentionUnavailableError


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
        batch["attention_mask"] = block_mask(positions, width)
    return batch


def labelled(tokens: torch.Tensor, task: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """What a model is called with for masked language modelling, or for classification.

    15% of the tokens are predicted, the same places of each row, so that the mean over the
    micro-batches is that over the batch (``DataCollatorForLanguageModeling`` draws as many). A
    row's label, or labels, follow from its tokens; a model of one label, or of several at once,
    takes them as numbers (``ForSequenceClassificationLoss`` in loss/loss_utils.py, 5.23).
    """
    if task == "masked_lm":
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return {"input_ids": tokens, "labels": tokens.masked_fill(places * 7 % 20 > 2, -100)}
    count, problem = config["num_labels"], config.get("problem_type")
    labels = tokens[:, 0] % count
    if problem == "multi_label_classification":
        labels = torch.nn.functional.one_hot(labels, count).float()
    elif problem == "regression" or (problem is None and count == 1):
        labels = (tokens[:, :1] % 2).float().expand(-1, count)
    return {"input_ids": tokens, "labels": labels}


def block_mask(positions: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A mask of numbers that keeps attention within each document of rows, made on their device."""
    document = (positions == 0).cumsum(-1)
    seen = (document[:, :, None] == document[:, None]).tril()
    mask = torch.full(seen.shape, torch.finfo(dtype).min, dtype=dtype, device=positions.device)
    return mask.masked_fill_(seen, 0).unsqueeze(1)


def attention_name(packing: Mapping[str, Any] | None, device: torch.device) -> str:
    """What computes attention: FlashAttention's library for ``varlen``, which needs a GPU. Raises
    AttentionUnavailableError: it is not installed, or does not run here. transformers would take a
    kernel of the hub in its place (``FLASH_ATTN_KERNEL_FALLBACK`` in
    modeling_flash_attention_utils.py, 5.23), which is another."""
    if packing is None or packing["variant"] != "varlen":
        return "sdpa"
    if device.type != "cuda":
        _define_varlen_on_cpu()
        AttentionInterface.register(VARLEN_ON_CPU, _varlen_on_cpu)
        return VARLEN_ON_CPU
    needs = "packing varlen needs flash-attn 2.7 or newer"
    try:
        import flash_attn  # noqa: F401  (its operators are known from then on)
    except ImportError as error:
        raise AttentionUnavailableError(f"{needs}: {error}") from error
    if not is_flash_attn_2_available():
        raise AttentionUnavailableError(f"{needs}; what is installed does not run here")
    return "flash_attention_2"


class DocumentAttention(torch.autograd.Function):
    """Causal attention within each document of one row, by CPU's flash attention.

    It keeps what FlashAttention's kernel for variable lengths keeps: queries, keys, values, the
    output, and one fp32 per head and token (``FlashAttnVarlenFunc`` in flash_attn_interface.py).
    """

    @staticmethod
    def forward(ctx, query, key, value, lengths, scale) -> Any:  # type: ignore
        ctx.lengths, ctx.scale = lengths, scale
        forward = getattr(getattr(torch.ops, VARLEN_ON_CPU), VARLEN_FORWARD)
        out, rows = forward(query, key, value, lengths, True, scale)
        ctx.save_for_backward(query, key, value, out, rows)
        return out

    @staticmethod
    def backward(ctx, gradient) -> Any:  # type: ignore
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


@cache
def _define_varlen_on_cpu() -> None:
    """Has CPU's kernel stand for FlashAttention's under its operator's name, by which trackers and
    selective checkpointing know it; in another namespace, so that the library may be there too."""
    name = f"{VARLEN_ON_CPU}::{VARLEN_FORWARD}"

    @torch.library.custom_op(name, mutates_args=(), device_types="cpu")
    def forward(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        lengths: Sequence[int],
        is_causal: bool,
        scale: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if len(lengths) == 1:
            out, rows = _forward(query, key, value, 0.0, is_causal, scale=scale)
            return out, rows
        out = torch.empty_like(query)
        rows = query.new_empty(query.shape[:3], dtype=torch.float32)
        for span in _spans(lengths):
            parts = [tensor[:, :, span] for tensor in (query, key, value)]
            out[:, :, span], rows[:, :, span] = _forward(*parts, 0.0, is_causal, scale=scale)
        return out, rows

    @forward.register_fake
    def _(query, key, value, lengths, is_causal, scale) -> Any:  # type: ignore
        out, rows = _forward(query, key, value, 0.0, is_causal, scale=scale)
        return out, rows


def _spans(lengths: Sequence[int]) -> list[slice]:
    ends = torch.tensor(lengths).cumsum(0).tolist()
    return [slice(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def _varlen_on_cpu(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    position_ids: torch.Tensor | None = None,
    **given: Any,
) -> tuple[torch.Tensor, None]:
    """Stands for ``flash_attention_forward`` of transformers, which casts under autocast too.

    Documents are told by the positions that the model hands on; where it hands on none, a row is
    one document. On fake tensors they make no difference.
    """
    del module, attention_mask, dropout, given
    if torch.is_autocast_enabled("cpu"):
        narrow = torch.get_autocast_dtype("cpu")
        query, key, value = (tensor.to(narrow) for tensor in (query, key, value))
    lengths = [query.shape[2]]
    if position_ids is not None and not is_fake(query):
        starts = [*(position_ids.flatten() == 0).nonzero().flatten().tolist(), query.shape[2]]
        lengths = [end - start for start, end in pairwise(starts)]
    out = DocumentAttention.apply(query, key, value, lengths, scaling)
    return out.transpose(1, 2).contiguous(), None


# Labels that no loss looks at.
IGNORED = -100


def with_images(tokens: torch.Tensor, config: Any, count: int) -> dict[str, Any]:
    """What a model is called with, of tokens (rows, sequence length): ``count`` of each row, from
    its second on, stand for images, and are not predicted.

    A row has one image, as nearly square as so many tokens allow, or as many as it takes where a
    type's images are all as large. Positions are those of text; they change no shapes. Raises
    ValueError: of so many tokens no images are made, or not of this type.
    """
    rows, length = tokens.shape
    if not 0 < count < length:
        raise ValueError(f"image_tokens: {count} of {length} leave no text")
    token = getattr(config, "image_token_id", None)
    token = config.image_token_index if token is None else token
    places = torch.arange(length, device=tokens.device)
    in_image = ((places > 0) & (places <= count)).expand(rows, -1)
    text = torch.where(tokens == token, tokens - 1 if token else tokens + 1, tokens)
    batch = {
        "input_ids": text.masked_fill(in_image, token),
        "labels": text.masked_fill(in_image, IGNORED),
    }
    return batch | _pixels(config, rows, count, in_image)


def _pixels(config: Any, rows: int, count: int, in_image: torch.Tensor) -> dict[str, Any]:
    kind, vision, device = config.model_type, config.vision_config, in_image.device
    patch = vision.patch_size
    side: Any = getattr(vision, "image_size", None)
    if kind in ("qwen2_vl", "qwen2_5_vl", "qwen3_vl"):
        merge = vision.spatial_merge_size
        height, width = _nearly_square(count)
        channels = getattr(vision, "in_channels", 3) * vision.temporal_patch_size
        patches = rows * count * merge**2
        return {
            "pixel_values": torch.rand(patches, channels * patch**2, device=device),
            "image_grid_thw": _numbers([[1, height * merge, width * merge]] * rows, device),
            "position_ids": torch.arange(in_image.shape[1], device=device).expand(3, rows, -1),
        }
    if kind == "mistral3":
        edge = patch * config.spatial_merge_size
        height, width = (edge * one for one in _nearly_square(count))
        if max(height, width) > side:
            raise ValueError(f"image_tokens: {count} are more than an image of {side} pixels has")
        pixels = torch.rand(rows, 3, height, width, device=device)
        return {
            "pixel_values": pixels,
            "image_sizes": _numbers([[height, width]] * rows, device),
        }
    if kind not in ("gemma3", "llama4"):
        raise ValueError(f"image_tokens: what images of {kind} are is not known here")
    each = getattr(config, "mm_tokens_per_image", None)
    if each is None:
        each = round((side // patch) ** 2 * vision.pixel_shuffle_ratio**2)
    if count % each:
        raise ValueError(f"image_tokens: an image of this model is {each} tokens, {count} are not")
    pixels = torch.rand(rows * count // each, 3, side, side, device=device)
    types = {"token_type_ids": in_image.long()} if kind == "gemma3" else {}
    return {"pixel_values": pixels, **types}


def _nearly_square(count: int) -> tuple[int, int]:
    """The two factors that are nearest to each other, the smaller first."""
    small = next(n for n in range(isqrt(count), 0, -1) if count % n == 0)
    return small, count // small


def _numbers(rows: list[list[int]], device: torch.device) -> torch.Tensor:
    """A tensor that has values in a dry run too: models make loops of them."""
    with _disable_current_modes():
        return torch.tensor(rows, device=device)
