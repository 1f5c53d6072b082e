"""A small model of the same architecture: the same kinds of layers, few channels, no dropout."""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from tuner.dryrun.depths import at_depth, depths_of
from tuner.errors import TunerError
from tuner.model import ModelConfig, read_model_config

VOCABULARY = 128
"""Tokens of a small model."""
POSITIONS = 64
"""Learned positions of a small model, where it has some."""
WINDOW = 16
"""Tokens that sliding layers see: half of a sequence, so that sliding does something."""
KV_HEADS = 2
"""Key and value heads, where there are several; each part of tensor parallelism gets some."""
HEADS = 4
"""Heads, where each has keys and values of its own."""
MOST_EXPERTS = 8
"""Experts of a small model."""
MOST_LAYERS = 64
"""Layers: a model whose layers follow no pattern that comes twice keeps all of them."""
HEAD_DIMS = (8, 10, 12, 16, 20, 32, 64)
"""Channels of a head, the first that the configuration's rules let pass: what is rotated of them
must be even, also where it is 0.4 of them (Phi-2)."""
ROUND = 8
"""Widths are multiples of this: of 16 bytes in bf16, which grouped products want."""

_WIDTHS = ("intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size")


class NoTwinError(TunerError):
    """There is no small model or no few ranks that stand for these."""


@lru_cache(maxsize=256)
def small_model(model: ModelConfig, parts: int) -> tuple[ModelConfig, tuple[str, ...]]:
    """A small model of the same architecture, and what was left out of it, in words.

    Kept are the kinds of layers and their order (:mod:`tuner.dryrun.depths`), query heads for
    each key head, the shape of the MLP, experts chosen of experts, ties, biases, norms, caps and
    the kind of position embeddings.

    Args:
        model: the model to stand for.
        parts: what heads and the MLP must be divisible by: ranks of tensor parallelism.

    Raises:
        NoTwinError: its layers follow no pattern, or no small shape is allowed.
    """
    depth = depths_of(model)[0]
    if depth > MOST_LAYERS:
        raise NoTwinError(f"{model.name} has {depth} layers that follow no pattern")
    config = at_depth(model, depth)
    notes = _leave_out(config)
    error: TunerError | None = None
    for fields in _shapes(model, config, parts):
        try:
            return read_model_config(fields, name=f"twin of {model.name}"), notes
        except TunerError as refused:
            error = refused
    raise NoTwinError(f"no small {model.model_type} of its kind is allowed: {error}")


def _leave_out(config: dict[str, Any]) -> tuple[str, ...]:
    """Take out what is random, or not the mean over a batch's tokens: it cannot be compared."""
    notes = []
    for name in config:
        if ("drop" in name or name == "router_jitter_noise") and config[name]:
            config[name] = 0.0
            notes.append(f"{name} was set to 0")
    if config.get("output_router_logits"):
        config["output_router_logits"] = False
        notes.append("the router's auxiliary loss was left out")
    return tuple(notes)


def _shapes(model: ModelConfig, config: Mapping[str, Any], parts: int) -> Iterator[dict[str, Any]]:
    """Configurations to try, smallest first."""
    heads, kv_heads = _heads(model, parts)
    for head_dim in HEAD_DIMS:
        hidden = _hidden(model, heads * head_dim)
        if hidden is None:
            continue
        fields = dict(config)
        fields |= {"vocab_size": VOCABULARY, "hidden_size": hidden, "num_attention_heads": heads}
        for name, value in (("num_key_value_heads", kv_heads), ("head_dim", head_dim)):
            if name in config:
                fields[name] = value
        if "max_position_embeddings" in config and "rope_parameters" not in config:
            fields["max_position_embeddings"] = POSITIONS
        if config.get("sliding_window"):
            fields["sliding_window"] = WINDOW
        if "query_pre_attn_scalar" in config:
            fields["query_pre_attn_scalar"] = head_dim
        fields |= _widths(model, config, hidden, parts) | _experts(model, config)
        fields |= _rope(config, head_dim / model.head_dim)
        yield fields


def _heads(model: ModelConfig, parts: int) -> tuple[int, int]:
    """Heads, and key and value heads: divisible by the parts where the model's own are."""
    if model.kv_heads == model.heads:
        heads = model.heads if model.heads < HEADS else _multiple(HEADS, parts)
        return heads, heads
    kv_heads = 1 if model.kv_heads == 1 else _multiple(KV_HEADS, parts)
    return kv_heads * (model.heads // model.kv_heads), kv_heads


def _hidden(model: ModelConfig, width: int) -> int | None:
    """The hidden size whose heads are ``width`` wide together; ``None`` where none is even."""
    if model.hidden_size == model.heads * model.head_dim:
        return width if width % ROUND == 0 else None
    return _multiple(width * model.hidden_size // (model.heads * model.head_dim), ROUND)


def _widths(
    model: ModelConfig, config: Mapping[str, Any], hidden: int, parts: int
) -> dict[str, Any]:
    """MLPs as wide for the hidden size as the model's."""
    names = [name for name in (*_WIDTHS, "n_inner") if config.get(name)]
    scaled = {name: config[name] * hidden // model.hidden_size for name in names}
    return {name: _multiple(width, ROUND * parts) for name, width in scaled.items()}


def _experts(model: ModelConfig, config: Mapping[str, Any]) -> dict[str, Any]:
    """Fewer experts, of which as large a share is chosen: several where the model's are."""
    if model.experts <= MOST_EXPERTS:
        return {}
    chosen = round(MOST_EXPERTS * model.experts_per_token / model.experts)
    least = min(2, model.experts_per_token)
    name = "num_experts" if "num_experts" in config else "num_local_experts"
    return {name: MOST_EXPERTS, "num_experts_per_tok": max(least, chosen)}


def _rope(config: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Scalings by channel pair, thinned out to the pairs that are left."""
    given = config.get("rope_parameters")
    if given is None or "short_factor" not in given:
        return {}
    thinned = dict(given)
    for name in ("short_factor", "long_factor"):
        whole = given[name]
        count = max(1, round(len(whole) * share))
        thinned[name] = [whole[i * len(whole) // count] for i in range(count)]
    return {"rope_parameters": thinned}


def _multiple(number: int, of: int) -> int:
    """The next multiple that is not less."""
    return max(1, -(-number // of)) * of
