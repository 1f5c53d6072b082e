"""Activation checkpointing of decoder layers: what is computed again in backward."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import create_selective_checkpoint_contexts
from transformers import PreTrainedModel

from workers.probe.errors import NO_MEMORY, cuda_code
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
# FlashAttention's own for several documents (``torch.library.custom_op`` in its
# flash_attn_interface.py, 2.7.0 to 2.8.3), in the namespace flash_attn; CPU's stand-in for it
# (batches.py) is called the same, in a namespace of its own.
VARLEN_FORWARD = "_flash_attn_varlen_forward"
VARLEN_ON_CPU = "varlen_on_cpu"


def attention() -> Iterator[Any]:
    """Operators of attention that keep no scores; those for documents where they are defined."""
    yield from ATTENTION
    for namespace in (torch.ops.flash_attn, getattr(torch.ops, VARLEN_ON_CPU)):
        of_documents = getattr(namespace, VARLEN_FORWARD, None)
        if of_documents is not None:
            yield of_documents.default


def products() -> Iterator[Any]:
    """Operators of matrix products; transformers has one of its own where torch has no kernel."""
    yield from PRODUCTS
    own = getattr(torch.ops.transformers, "grouped_mm_fallback", None)
    if own is not None:
        yield own.default


def checkpoint_layers(model: PreTrainedModel, how: str) -> None:
    """Have the decoder's layers computed again in backward: ``how`` is the knob's value. Raises
    ValueError: no such value, or this release checkpoints all layers or none."""
    if how == "none":
        return
    options: dict[str, Any] = {"use_reentrant": False}
    if how == "selective":
        kept = [*products(), *attention()]
        options["context_fn"] = partial(create_selective_checkpoint_contexts, kept)
    elif how not in ("every_2", "full", "offload"):
        raise ValueError(
            f"activation_checkpointing is {how!r}; none, selective, every_2, full or offload"
        )
    enable = getattr(model, "activation_checkpointing_enable", None)
    enable = enable or model.gradient_checkpointing_enable  # its name before transformers 5.23
    enable(options)
    layers: Any = decoder_layers(model) if how in ("every_2", "offload") else ()
    for index, layer in enumerate(layers):
        if not getattr(layer, "gradient_checkpointing", False):
            raise ValueError(f"{type(layer).__name__} is not checkpointed by itself")
        if how == "offload":
            layer._gradient_checkpointing_func = KeptOnHost(layer._gradient_checkpointing_func)
        else:
            layer.gradient_checkpointing = index % 2 == 0


class KeptOnHost:
    """Checkpoints a layer, and keeps its input in host memory until backward.

    So do transformers (``_activation_checkpointing_enable`` in modeling_utils.py, 5.17 to 5.23) and
    accelerate (``fsdp2_apply_ac`` in utils/fsdp_utils.py, 1.15): pinned on CUDA, copied on the
    stream that computes. What layers have in common, such as masks, comes by keyword and stays.

    Attributes:
        kept_bytes: of inputs that were copied so far.
    """

    def __init__(self, checkpoint: Callable[..., Any]) -> None:
        self.kept_bytes = 0
        self._checkpoint = checkpoint

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        hooks: Any = save_on_cpu(pin_memory=True)
        copy = hooks.pack_hook

        def pack(tensor: torch.Tensor) -> Any:
            self.kept_bytes += tensor.nbytes
            try:
                return copy(tensor)
            except torch.AcceleratorError as error:  # it is the host's memory that it allocates
                if cuda_code(error) != NO_MEMORY:
                    raise
                message = f"no {tensor.nbytes} bytes of pinned host memory: {error}"
                raise MemoryError(message) from None

        hooks.pack_hook = pack
        with hooks:
            return self._checkpoint(*args, **kwargs)


def host_bytes(layers: Sequence[nn.Module]) -> int:
    """Bytes of layers' inputs that were copied to host memory so far."""
    found = (getattr(layer, "_gradient_checkpointing_func", None) for layer in layers)
    return sum(one.kept_bytes for one in found if isinstance(one, KeptOnHost))
