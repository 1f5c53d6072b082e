"""What kinds of layers a model has, and which of its layers is of which kind."""

from dataclasses import dataclass
from functools import lru_cache

from tuner.model import ModelConfig

SLIDING = "sliding_attention"
"""Attention that sees a window only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """What makes two layers of one model need different memory."""

    attention: str = "full_attention"
    """full_attention, or sliding_attention where it sees a window only."""
    rotates: bool = True
    """Whether its attention has rotary position embeddings."""
    sparse: bool = False
    """Whether it has experts, where the model has some; else a dense MLP."""


def has_capped_scores(model: ModelConfig) -> bool:
    """Whether scores of attention are capped, which is computed operator by operator (Gemma 2)."""
    return bool(model.fields.get("attn_logit_softcapping"))


@lru_cache(maxsize=256)
def layer_kinds(model: ModelConfig) -> tuple[LayerKind, ...]:
    """The kind of every layer, as transformers 5 builds it.

    The rules are those of ``configuration_<model_type>.py`` and ``modeling_<model_type>.py`` in
    ``transformers/models``.
    """
    return tuple(
        LayerKind(
            attention=_attention(model, i), rotates=_rotates(model, i), sparse=_sparse(model, i)
        )
        for i in range(model.layers)
    )


def _attention(model: ModelConfig, index: int) -> str:
    if given := model.fields.get("layer_types"):
        return str(given[index])
    return SLIDING if _slides(model, index) else "full_attention"


def _slides(model: ModelConfig, index: int) -> bool:
    """Whether a layer sees a window where ``layer_types`` is left out.

    Whether the window is shorter than the sequence is not asked here.
    """
    fields = model.fields
    switch = bool(fields.get("use_sliding_window"))
    match model.model_type:
        case "mistral" | "mixtral" | "phi3":
            return bool(fields.get("sliding_window"))
        case "qwen3_moe":
            return switch
        case "gemma2":
            return bool((index + 1) % 2)
        case "gemma3_text":
            return bool((index + 1) % fields["sliding_window_pattern"])
        case "qwen2" | "qwen3":
            return switch and index >= fields["max_window_layers"]
        case "qwen2_moe":
            return switch and bool((index + 1) % 2) and index < fields["max_window_layers"]
        case "smollm3":
            return switch and not _rotates(model, index)
    return False


def _rotates(model: ModelConfig, index: int) -> bool:
    if model.model_type != "smollm3":
        return True
    if given := model.fields["no_rope_layers"]:  # 1 where there are rotary embeddings
        return bool(given[index])
    return bool((index + 1) % model.fields["no_rope_layer_interval"])


def _sparse(model: ModelConfig, index: int) -> bool:
    if not model.experts:
        return False
    step = int(model.fields.get("decoder_sparse_step") or 1)
    return (index + 1) % step == 0 and index not in (model.fields.get("mlp_only_layers") or ())
