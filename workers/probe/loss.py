"""Losses that training scripts have in the place of transformers' own."""

from functools import partial
from typing import Any

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from workers.probe.fused_loss import fuse_loss

# Liger's loss alone: it would swap norms, rotations and MLPs too.
LIGER_CONFIG = {
    "fused_linear_cross_entropy": True,
    "cross_entropy": False,
    "rope": False,
    "rms_norm": False,
    "swiglu": False,
    "geglu": False,
}


def set_loss(model: PreTrainedModel, kind: str, *, fused_by: str) -> None:
    """Gives the model the loss of this kind; ``hf`` leaves it its own.

    One that is fused, by ``liger`` or ``chunked``, is the same whatever the kind.
    """
    if fused_by == "liger":  # as the Trainer does (``integrations/liger.py``, transformers 5.23)
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model, **LIGER_CONFIG)
    elif fused_by:
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
