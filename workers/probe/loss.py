"""Losses that training scripts have in the place of transformers' own."""

from functools import partial
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from workers.probe.fused_loss import fuse_loss


def set_loss(model: PreTrainedModel, kind: str, *, fused: bool) -> None:
    """Gives the model the loss of this kind; ``hf`` leaves it its own, fused losses are alike."""
    if fused:
        fuse_loss(model)
    elif kind != "hf":
        own: Any = partial(cross_entropy_loss, widens=kind == "fp32")
        model.loss_function = own


def cross_entropy_loss(
    logits: torch.Tensor, labels: torch.Tensor, vocab_size: int, *, widens: bool, **_: Any
) -> torch.Tensor:
    """The mean over tokens, each predicted from those before it; with ``widens`` in fp32."""
    targets = functional.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    flat = logits.view(-1, vocab_size)
    return functional.cross_entropy(flat.float() if widens else flat, targets)
