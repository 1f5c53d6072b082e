"""Sizes that a model's configuration leaves out: transformers' own are taken, which is told."""

from collections.abc import Mapping
from typing import Any

from tuner.model.fields import ARCHITECTURES

SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "max_position_embeddings",
    "num_local_experts",
    "num_experts",
    "num_experts_per_tok",
    "moe_intermediate_size",
)
"""Fields that decide what a model needs, and that hardly anybody leaves to their default."""


def default_sizes(model: object) -> Mapping[str, Any]:
    """The sizes that a configuration leaves out, with what transformers takes.

    Args:
        model: as it is written: a name of the catalogue, or the fields of a ``config.json``.
    """
    kind = model.get("model_type") if isinstance(model, Mapping) else None
    if not isinstance(model, Mapping) or not isinstance(kind, str) or kind not in ARCHITECTURES:
        return {}
    fields = ARCHITECTURES[kind].fields
    return {
        name: fields[name].default
        for name in SIZES
        if name in fields
        and fields[name].default is not None
        and all(model.get(spelling) is None for spelling in (name, *fields[name].also))
    }


def default_note(model: object) -> str:
    """A sentence on these sizes; empty where none is left out."""
    listed = ", ".join(f"{name} {value}" for name, value in default_sizes(model).items())
    if not listed:
        return ""
    return f"not in the model's configuration, so taken as transformers does: {listed}"
