"""Rows of text with images in them, as processors of vision-language models make them."""

from math import isqrt
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

# Labels that no loss looks at.
IGNORED = -100


def with_images(tokens: torch.Tensor, config: Any, count: int) -> dict[str, Any]:
    """What a model is called with, of tokens (rows, sequence length): ``count`` of each row, from
    its second on, stand for images, and are not predicted.

    A row has one image, as nearly square as so many tokens allow, or as many as it takes where a
    type's images are all as large. Positions are those of text; they change no shapes.

    Raises:
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
