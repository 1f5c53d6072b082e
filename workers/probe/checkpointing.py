"""Activation checkpointing of decoder layers: what is computed again in backward."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from workers.probe.model import decoder_layers

_ATEN: Any = torch.ops.aten
# Matrix products of linears and experts; not ``bmm``, which makes the scores of attention where
# that is computed operator by operator.
PRODUCTS = (_ATEN.mm.default, _ATEN.addmm.default, _ATEN._grouped_mm.default)
# Kernels of attention that keep no scores.
ATTENTION = (
    _ATEN._scaled_dot_product_cudnn_attention.default,
    _ATEN._scaled_dot_product_flash_attention.default,
    _ATEN._scaled_dot_product_flash_attention_for_cpu.default,
    _ATEN._scaled_dot_product_efficient_attention.default,
)


def products() -> Iterator[Any]:
    """Operators of matrix products; transformers has one of its own where torch has no kernel."""
    yield from PRODUCTS
    own = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if own is not None:
        yield own.default


def checkpoint_layers(model: PreTrainedModel, how: str) -> None:
    """Have the decoder's layers computed again in backward: ``how`` is the knob's value.

    Raises:
        ValueError: no such value, or this release checkpoints all layers or none.
    """
    if how == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        kept = [*products(), *ATTENTION]
        options["context_fn"] = partial(create_selective_checkpoint_contexts, kept)
    elif how not in ("every_2", "full"):
        raise ValueError(f"activation_checkpointing is {how!r}; none, selective, every_2 or full")
    model.gradient_checkpointing_enable(options)
    if how != "every_2":
        return
    for layer in decoder_layers(model)[1::2]:
        if not getattr(layer, "gradient_checkpointing", False):
            raise ValueError(f"{type(layer).__name__} is not checkpointed by itself")
        layer.gradient_checkpointing = False  # type: ignore[assignment]
