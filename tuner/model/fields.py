"""The allow-listed fields of each supported ``config.json``, with their bounds.

What is neither here nor in ``architectures.json`` never reaches the program that builds the model.
Names, defaults and rules are those of the configuration classes of transformers 5
(``transformers/models/<model_type>/configuration_<model_type>.py``); a test compares the two.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

from tuner.errors import ModelConfigError

# Takes a field's name and value; returns the value to keep, or raises ModelConfigError.
Check = Callable[[str, object], Any]

LAYERS, HIDDEN, WIDTH, HEADS = 1024, 2**17, 2**20, 4096
# The largest sizes that are believed; published ones are well below.
POSITIONS, VOCABULARY, EXPERTS = 2**24, 2**22, 4096

# Kinds of values


def whole(least: int, most: int) -> Check:
    """An integer of a range, both ends included; ``true`` is not one."""

    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ModelConfigError(name, value, f"must be an integer from {least} to {most}")
        return value

    return check


def number(least: float, most: float, *, above: bool = False) -> Check:
    """A finite number of a range as a float; ``above`` leaves out the lower end."""

    def check(name: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not inside(value):
            start = "above" if above else "from"
            raise ModelConfigError(name, value, f"must be a number {start} {least:g} to {most:g}")
        return float(value)

    def inside(value: float) -> bool:
        return (least < value if above else least <= value) and value <= most

    return check


def flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ModelConfigError(name, value, "must be true or false")
    return value


def one_of(names: Sequence[str], renamed: Mapping[str, str] | None = None) -> Check:
    """One of some names; ``renamed`` says which of them mean another."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in names:
            raise ModelConfigError(name, value, f"must be one of {', '.join(names)}")
        return (renamed or {}).get(value, value)

    return check


def listed(item: Check, most: int = LAYERS) -> Check:
    def check(name: str, value: object) -> list[Any]:
        if not isinstance(value, list | tuple) or len(value) > most:
            raise ModelConfigError(name, value, f"must be a list of {most} items at most")
        return [item(f"{name}[{i}]", v) for i, v in enumerate(value)]

    return check


def unused(name: str, value: object) -> None:
    """A field that is always null: transformers' own default would matter, the given does not."""


@dataclass(frozen=True, slots=True)
class Field:
    """One allow-listed field of a configuration."""

    check: Check  # its kind and bounds
    default: Any = None  # what transformers takes when the field is absent
    also: tuple[str, ...] = ()  # other spellings of its name
    nullable: bool = False
    """Whether null is a value of its own; otherwise null is as good as absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rope:
    """How a type spells rotary position embeddings."""

    theta: float = 10_000.0  # base, where none is given
    local_theta: float | None = None
    """Base of sliding layers, in types that rotate their two kinds of layers differently."""
    partial: float | None = None
    """Share of a head that is rotated, where none is given; null where it must be all of it."""
    kinds: tuple[str, ...] = ("default", "linear", "dynamic", "yarn", "longrope", "llama3")
    """Scalings that the type knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Describes the parameters of a ``model_type``, and how its configuration is spelled.

    A bias or norm that depends on the configuration is given as the name of the flag.
    """

    fields: Mapping[str, Field]  # the allow-list, by name
    rope: Rope | None = field(default_factory=Rope)  # rotary embeddings, if it has any
    learned_positions: bool = False  # whether each position has an embedding of its own
    own_head_dim: bool = True  # whether ``head_dim`` may differ from hidden size / heads
    divides_hidden: bool = False  # whether heads must divide the hidden size even then
    norms: int = 2  # norms of the hidden size in one layer
    layer_norm: bool = False  # whether norms are torch's LayerNorm, or RMSNorm in fp32
    norm_weights: int = 1  # weights of a norm per channel: 2 where it has a bias
    head_norms: bool | str = False  # whether queries and keys are normed over a head's channels
    wide_norms: bool = False  # whether queries and keys are normed over all heads' channels
    qkv_bias: bool | str = False
    output_bias: bool | str = False
    mlp_bias: bool | str = False
    head_bias: bool = False  # whether the output head has a bias
    gated: bool = True  # whether the MLP has three matrices (gate, up, down) or two
    layer: str = ""  # class of its blocks, which FSDP shards one by one (``_no_split_modules``)
    # Modules in ``modeling_<model_type>.py`` of transformers 5.23: of the token embedding, of
    # attention and of the MLP; what leads out of a block comes last.
    embedding_name: str = "embed_tokens"
    attention_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    mlp_names: tuple[str, ...] = ("gate_proj", "up_proj", "down_proj")
    harmless: frozenset[str] = frozenset()  # names that transformers 5 does not read in this type


# Names that are dropped, and names that are refused

_DATA = json.loads(files("tuner.model").joinpath("architectures.json").read_text("utf-8"))

# Names of published files that change neither shape nor compute of a training step, or that
# transformers 5 does not read: dropped. The weights of a probe are random, so how the published
# ones were initialized does not matter either.
HARMLESS = frozenset(_DATA["harmless"])

# Names that are dropped when they hold this value, in types without such a field; with any other
# value the model would be another one.
ONLY: Mapping[str, Any] = _DATA["only"]

_CODE = "is refused: it names code, and models are built from transformers' own; remove it"
# Names that are refused whatever they hold, unless it is null or empty.
REFUSED: Mapping[str, str] = {
    "auto_map": _CODE,
    "custom_pipelines": _CODE,
    "trust_remote_code": _CODE,
    "_auto_class": _CODE,
    "quantization_config": "is refused: training starts from weights that are not quantized",
    "compression_config": "is refused: training starts from weights that are not quantized",
    "per_layer_config": "is refused: layers of different shapes are not supported",
}

# Implementations that a file may name; the name is dropped, since the probe program chooses its
# own. Anything else, such as ``org/repo``, would have transformers fetch and run code.
IMPLEMENTATIONS: Mapping[str, Sequence[str]] = _DATA["implementations"]

# Keys of transformers' ``ACT2FN`` whose function has no parameters of its own.
ACTIVATIONS = tuple(_DATA["activations"])

# What MPT's own ``attn_config`` may hold without being another model; ``attn_pdrop`` and others of
# ``MptAttentionConfig`` that transformers does not read, or that must be as they are here.
_MPT_ONLY: Mapping[str, Any] = {
    "attn_pdrop": 0, "alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention",
    "prefix_lm": False, "qk_ln": False, "attn_uses_sequence_id": False,
}  # fmt: skip
_MPT_FACTORS = ("clip_qkv", "softmax_scale")


def _attention_of_mpt(name: str, value: object) -> dict[str, float] | None:
    """MPT's ``attn_config``: the two factors that transformers reads, where they are set."""
    if not isinstance(value, Mapping):
        raise ModelConfigError(name, value, "must be an object")
    for key in set(value) - {*_MPT_FACTORS, "attn_impl", "model_type"}:
        if key not in _MPT_ONLY or value[key] != _MPT_ONLY[key]:
            raise ModelConfigError(f"{name}.{key}", value[key], f"may hold {dict(_MPT_ONLY)} only")
    positive = number(0.0, 1e6, above=True)
    given = {key: value[key] for key in _MPT_FACTORS if value.get(key) is not None}
    return {key: positive(f"{name}.{key}", factor) for key, factor in given.items()} or None


_DROPOUT = number(0.0, 1.0)
_POSITIVE = number(0.0, 1e6, above=True)
_LAYER_TYPES = listed(one_of(("full_attention", "sliding_attention")))
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
# The kind of a field by its name, or by another name where a type has it otherwise.
KINDS: Mapping[str, Check] = {
    **dict.fromkeys(_TOKENS, unused),
    **dict.fromkeys(
        ("tie_word_embeddings", "attention_bias", "mlp_bias", "qkv_bias", "qk_layernorm",
         "use_parallel_residual", "use_sliding_window", "output_router_logits", "norm_topk_prob",
         "multi_query", "attention_softmax_in_fp32", "scale_attention_softmax_in_fp32",
         "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"), flag,
    ),
    **dict.fromkeys(
        ("attention_dropout", "hidden_dropout", "attn_pdrop", "resid_pdrop", "embd_pdrop",
         "router_jitter_noise"), _DROPOUT,
    ),
    **dict.fromkeys(
        ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon"), number(0.0, 1.0, above=True)
    ),
    **dict.fromkeys(
        ("hidden_act", "hidden_activation", "activation_function"), one_of(ACTIVATIONS)
    ),
    **dict.fromkeys(("hidden_size", "head_dim", "query_pre_attn_scalar"), whole(1, HIDDEN)),
    **dict.fromkeys(
        ("intermediate_size", "n_inner", "moe_intermediate_size",
         "shared_expert_intermediate_size"), whole(1, WIDTH),
    ),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads"), whole(1, HEADS)),
    **dict.fromkeys(
        ("num_hidden_layers", "decoder_sparse_step", "sliding_window_pattern",
         "no_rope_layer_interval"), whole(1, LAYERS),
    ),
    **dict.fromkeys(
        ("max_position_embeddings", "max_seq_len", "sliding_window", "given_window"),
        whole(1, POSITIONS),
    ),
    **dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok"), whole(1, EXPERTS)),
    **dict.fromkeys(
        ("final_logit_softcapping", "attn_logit_softcapping", "logits_scaling"), _POSITIVE
    ),
    **dict.fromkeys(
        ("embedding_multiplier", "residual_multiplier", "attention_multiplier"), number(-1e6, 1e6)
    ),
    "vocab_size": whole(1, VOCABULARY),
    "original_max_position_embeddings": whole(2, POSITIONS),
    "squared_positions": whole(1, 2**15),  # a mask of all positions squared is held
    "window_or_zero": whole(0, POSITIONS),
    "max_window_layers": whole(0, LAYERS),
    "layer_types": _LAYER_TYPES,
    "mlp_only_layers": listed(whole(0, LAYERS)),
    "no_rope_layers": listed(whole(0, 1)),
    "router_aux_loss_coef": number(0.0, 1e6),
    "expansion_ratio": whole(4, 4),  # transformers reads no other
    "attn_config": _attention_of_mpt,
    # the published "gelu" of Gemma meant the tanh approximation all along
    "gelu_is_tanh": one_of(ACTIVATIONS, {"gelu": "gelu_pytorch_tanh"}),
}  # fmt: skip
# Kinds of which null is a value of its own.
_NULLABLE = frozenset({
    "num_key_value_heads", "head_dim", "n_inner", "layer_types", "no_rope_layers", "attn_config",
    "final_logit_softcapping", "attn_logit_softcapping", "sliding_window", "window_or_zero",
})  # fmt: skip


def _read_architectures() -> Mapping[str, Architecture]:
    """The supported types by ``model_type``, as ``architectures.json`` describes them.

    Its ``fields`` have what transformers takes where a file says nothing, ``also`` their other
    names, ``kinds`` those that are not by a field's name; all else is of :class:`Architecture`.
    """
    found = {}
    for model_type, given in _DATA["types"].items():
        one: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in given.items()
        }
        also, kinds = one.pop("also", {}), one.pop("kinds", {})
        fields = {}
        for name, default in one.pop("fields").items():
            kind = kinds.get(name, name)
            spelled = tuple(also.get(name, ()))
            fields[name] = Field(KINDS[kind], default, spelled, nullable=kind in _NULLABLE)
        rope = one.pop("rope", {})
        found[model_type] = Architecture(
            fields=fields,
            rope=None if rope is None else Rope(**rope),
            harmless=frozenset(one.pop("harmless", ())),
            **one,
        )
    return found


ARCHITECTURES: Mapping[str, Architecture] = _read_architectures()
# Of any other type only names are taken for granted.
OTHER = Architecture(fields={})
