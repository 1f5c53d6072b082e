"""The allow-listed fields of each supported ``config.json``, with their bounds, as tables.

What is not in these tables never reaches the program that builds the model. Names, defaults and
rules are those of the configuration classes of transformers 5
(``transformers/models/<model_type>/configuration_<model_type>.py``); a test compares the two.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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
    harmless: frozenset[str] = frozenset()  # names that transformers 5 does not read in this type


# Names that are dropped, and names that are refused

# Names of published files that change neither shape nor compute of a training step, or that
# transformers 5 does not read: dropped. The weights of a probe are random, so how the published
# ones were initialized does not matter either.
HARMLESS = frozenset(
    """
    _attn_implementation_autoset _commit_hash _flash_attn_2_enabled _from_model_config _name_or_path
    architectures assistant_confidence_threshold assistant_lookbehind bad_words_ids
    begin_suppress_tokens cache_implementation classifier_dropout decoder_start_token_id
    diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size
    encoder_repetition_penalty epsilon_cutoff eta_cutoff exponential_decay_length_penalty
    finetuning_task flash_attn flash_rotary forced_bos_token_id forced_eos_token_id fused_dense
    gradient_checkpointing id2label initializer_range is_assistant is_decoder is_llama_config
    label2id length_penalty max_length max_new_tokens max_sequence_length max_window_layers
    min_length model_max_length name_or_path neftune_noise_alpha no_repeat_ngram_size
    num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams num_labels
    num_return_sequences original_max_position_embeddings output_attentions output_hidden_states
    output_scores prefix pretraining_tp problem_type remove_invalid_values repetition_penalty
    return_dict return_dict_in_generate rope_interleaved sep_token_id seq_length
    sliding_window_size suppress_tokens target_lookbehind task_specific_params temperature
    tf_legacy_loss tokenizer_class top_k top_p torch_dtype torchscript transformers.js_config
    transformers_version typical_p unsloth_fixed unsloth_version use_bfloat16 use_cache
    use_return_dict
    """.split()  # noqa: SIM905
)

# Names that are dropped when they hold this value, in types without such a field; with any other
# value the model would be another one.
ONLY: Mapping[str, Any] = {
    "add_cross_attention": False,
    "attention_bias": False,
    "chunk_size_feed_forward": 0,
    "full_attn_mod": 1,
    "interpolate_factor": 1,
    "is_encoder_decoder": False,
    "lm_head_bias": False,
    "mlp_bias": False,
    "qk_layernorm": False,
    "qkv_bias": False,
    "tie_encoder_decoder": False,
    "use_bidirectional_attention": False,
    "use_mrope": False,
    "use_parallel_residual": False,
    "use_qk_norm": False,
    "use_sliding_window": False,
}

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
IMPLEMENTATIONS: Mapping[str, tuple[str, ...]] = {
    "attn_implementation": (
        "eager",
        "sdpa",
        "flash_attention_2",
        "flash_attention_3",
        "flash_attention_4",
        "flex_attention",
    ),
    "experts_implementation": ("eager", "batched_mm", "grouped_mm"),
}

# The supported types

# Keys of transformers' ``ACT2FN`` whose function has no parameters of its own.
ACTIVATIONS = tuple(
    """
    gelu gelu_10 gelu_accurate gelu_fast gelu_new gelu_python gelu_python_tanh gelu_pytorch_tanh
    hardswish leaky_relu linear mish quick_gelu relu relu2 relu6 sigmoid silu swish tanh
    """.split()  # noqa: SIM905
)

_TOKENS = {name: Field(unused) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
_TIED = Field(flag, True)
_DROPOUT = number(0.0, 1.0)
_EPSILON = number(0.0, 1.0, above=True)
_SOFTCAP = number(0.0, 1e6, above=True)
_LAYER_TYPES = Field(listed(one_of(("full_attention", "sliding_attention"))), nullable=True)


def _window(default: int | None, least: int = 1, *, nullable: bool = True) -> Field:
    return Field(whole(least, POSITIONS), default, nullable=nullable)


def _act(default: str) -> Field:
    return Field(one_of(ACTIVATIONS), default)


def _decoder(
    vocabulary: int, hidden: int, width: int, layers: int, heads: int, positions: int, **more: Field
) -> dict[str, Field]:
    """Fields of nearly every type, with a type's own defaults, and ``more``, which come first."""
    return {
        "vocab_size": Field(whole(1, VOCABULARY), vocabulary),
        "hidden_size": Field(whole(1, HIDDEN), hidden),
        "intermediate_size": Field(whole(1, WIDTH), width),
        "num_hidden_layers": Field(whole(1, LAYERS), layers),
        "num_attention_heads": Field(whole(1, HEADS), heads),
        "max_position_embeddings": Field(whole(1, POSITIONS), positions),
        "tie_word_embeddings": Field(flag, False),
        "attention_dropout": Field(_DROPOUT, 0.0),
        **_TOKENS,
        **more,
    }


def _grouped(
    kv_heads: int | None, *, head_dim: int | None = None, eps: float = 1e-6
) -> dict[str, Field]:
    return {
        "num_key_value_heads": Field(whole(1, HEADS), kv_heads, nullable=True),
        "head_dim": Field(whole(1, HIDDEN), head_dim, nullable=True),
        "hidden_act": _act("silu"),
        "rms_norm_eps": Field(_EPSILON, eps),
    }


def _gemma_of_two_kinds(
    window: int, softcaps: tuple[float | None, float | None]
) -> dict[str, Field]:
    return {
        "attention_bias": Field(flag, False),
        "hidden_activation": _act("gelu_pytorch_tanh"),
        "query_pre_attn_scalar": Field(whole(1, HIDDEN), 256),
        "sliding_window": _window(window, nullable=False),
        "layer_types": _LAYER_TYPES,
        "final_logit_softcapping": Field(_SOFTCAP, softcaps[0], nullable=True),
        "attn_logit_softcapping": Field(_SOFTCAP, softcaps[1], nullable=True),
    }


def _without(fields: dict[str, Field], *names: str) -> dict[str, Field]:
    return {name: spec for name, spec in fields.items() if name not in names}


def _router(experts: str, count: int, chosen: int) -> dict[str, Field]:
    """Fields of a mixture of experts; ``experts`` is the name of the number of experts."""
    other = {"num_experts": "num_local_experts", "num_local_experts": "num_experts"}[experts]
    return {
        experts: Field(whole(1, EXPERTS), count, also=(other,)),
        "num_experts_per_tok": Field(whole(1, EXPERTS), chosen),
        "output_router_logits": Field(flag, False),
        "router_aux_loss_coef": Field(number(0.0, 1e6), 0.001),
    }


def _sparse_qwen(width: int) -> dict[str, Field]:
    return {
        "moe_intermediate_size": Field(whole(1, WIDTH), width),
        "norm_topk_prob": Field(flag, False),
        "decoder_sparse_step": Field(whole(1, LAYERS), 1),
        "mlp_only_layers": Field(listed(whole(0, LAYERS)), ()),
    }


def _qwen_window(*, typed: bool = True) -> dict[str, Field]:
    fields = {
        "use_sliding_window": Field(flag, False),
        "sliding_window": _window(4096, least=0),
        "max_window_layers": Field(whole(0, LAYERS), 28),
        "layer_types": _LAYER_TYPES,
    }
    return fields if typed else _without(fields, "max_window_layers", "layer_types")


def _granite() -> dict[str, Field]:
    factor = number(-1e6, 1e6)
    names = ("embedding", "residual", "attention")
    return {
        "attention_bias": Field(flag, False),
        **{f"{name}_multiplier": Field(factor, 1.0) for name in names},
        "logits_scaling": Field(number(0.0, 1e6, above=True), 1.0),
    }


def _gpt(activation: str, **more: Field) -> dict[str, Field]:
    return {
        "vocab_size": Field(whole(1, VOCABULARY), 50257),
        "hidden_size": Field(whole(1, HIDDEN), 768, also=("n_embd",)),
        "n_inner": Field(whole(1, WIDTH), None, nullable=True),
        "num_hidden_layers": Field(whole(1, LAYERS), 12, also=("n_layer",)),
        "num_attention_heads": Field(whole(1, HEADS), 12, also=("n_head",)),
        "max_position_embeddings": Field(whole(1, POSITIONS), 1024, also=("n_positions",)),
        "tie_word_embeddings": Field(flag, True),
        "activation_function": _act(activation),
        "layer_norm_epsilon": Field(_EPSILON, 1e-5),
        "attn_pdrop": Field(_DROPOUT, 0.1),
        "resid_pdrop": Field(_DROPOUT, 0.1),
        "embd_pdrop": Field(_DROPOUT, 0.1),
        "scale_attn_weights": Field(flag, True),
        **more,
        **_TOKENS,
    }


# Beside their fields.
_OF_GPT: Mapping[str, Any] = {
    "rope": None, "learned_positions": True, "own_head_dim": False, "layer_norm": True,
    "norm_weights": 2, "gated": False, "qkv_bias": True, "output_bias": True, "mlp_bias": True,
    "harmless": frozenset(
        """
        inference_runner max_batch_size max_sequence_length n_ctx n_special pad_key_length
        pre_allocate_kv_cache predict_special_tokens summary_activation summary_first_dropout
        summary_proj_to_labels summary_type summary_use_proj validate_runner_input
        """.split()  # noqa: SIM905
    ),
}  # fmt: skip

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


# By ``model_type``. Numbers of ``_decoder`` are vocabulary, hidden size, MLP width, layers, heads
# and positions that transformers takes where a file says nothing.
ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(
        fields=_decoder(
            32000, 4096, 11008, 32, 32, 2048,
            attention_bias=Field(flag, False), mlp_bias=Field(flag, False), **_grouped(None),
        ),
        divides_hidden=True,
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
    ),
    "mistral": Architecture(
        fields=_decoder(
            32000, 4096, 14336, 32, 32, 131072, sliding_window=_window(4096), **_grouped(8)
        ),
    ),
    "mixtral": Architecture(
        fields=_decoder(
            32000, 4096, 14336, 32, 32, 131072,
            sliding_window=_window(None), router_jitter_noise=Field(number(0.0, 1.0), 0.0),
            **_grouped(8, eps=1e-5), **_router("num_local_experts", 8, 2),
        ),
        rope=Rope(theta=1e6),
    ),
    "qwen2": Architecture(
        fields=_decoder(151936, 4096, 22016, 32, 32, 32768, **_grouped(32), **_qwen_window()),
        qkv_bias=True,
    ),
    "qwen2_moe": Architecture(
        fields=_decoder(
            151936, 2048, 5632, 24, 16, 32768,
            qkv_bias=Field(flag, True),
            shared_expert_intermediate_size=Field(whole(1, WIDTH), 5632),
            **_grouped(16), **_qwen_window(), **_sparse_qwen(1408), **_router("num_experts", 60, 4),
        ),
        qkv_bias="qkv_bias",
    ),
    "qwen3": Architecture(
        fields=_decoder(
            151936, 4096, 22016, 32, 32, 32768,
            attention_bias=Field(flag, False), **_grouped(32, head_dim=128), **_qwen_window(),
        ),
        head_norms=True, qkv_bias="attention_bias", output_bias="attention_bias",
    ),
    "qwen3_moe": Architecture(
        fields=_decoder(
            151936, 2048, 6144, 24, 32, 32768,
            attention_bias=Field(flag, False),
            **_grouped(4), **_qwen_window(typed=False), **_sparse_qwen(768),
            **_router("num_experts", 128, 8),
        ),
        head_norms=True, qkv_bias="attention_bias", output_bias="attention_bias",
        harmless=frozenset({"shared_expert_intermediate_size", "use_qk_norm"}),
    ),
    "gemma": Architecture(
        fields={
            **_decoder(
                256000, 3072, 24576, 28, 16, 8192, tie_word_embeddings=_TIED,
                attention_bias=Field(flag, False), **_grouped(16, head_dim=256),
            ),
            # the published "gelu" meant the tanh approximation all along
            "hidden_act": Field(
                one_of(ACTIVATIONS, {"gelu": "gelu_pytorch_tanh"}), "gelu_pytorch_tanh"
            ),
        },
        qkv_bias="attention_bias", output_bias="attention_bias",
        harmless=frozenset({"hidden_activation"}),
    ),
    "gemma2": Architecture(
        fields=_without(
            _decoder(
                256000, 2304, 9216, 26, 8, 8192, tie_word_embeddings=_TIED,
                **_grouped(4, head_dim=256), **_gemma_of_two_kinds(4096, (30.0, 50.0)),
            ),
            "hidden_act",
        ),
        divides_hidden=True, norms=4,
        qkv_bias="attention_bias", output_bias="attention_bias",
        harmless=frozenset({"hidden_act"}),
    ),
    "gemma3_text": Architecture(
        fields=_without(
            _decoder(
                262208, 2304, 9216, 26, 8, 131072, tie_word_embeddings=_TIED,
                sliding_window_pattern=Field(
                    whole(1, LAYERS), 6, also=("_sliding_window_pattern",)
                ),
                **_grouped(4, head_dim=256), **_gemma_of_two_kinds(4096, (None, None)),
            ),
            "hidden_act",
        ),
        rope=Rope(theta=1e6, local_theta=10_000.0),
        divides_hidden=True, norms=4, head_norms=True,
        qkv_bias="attention_bias", output_bias="attention_bias",
        harmless=frozenset({"hidden_act"}),
    ),
    "phi": Architecture(
        fields=_decoder(
            51200, 2048, 8192, 24, 32, 2048,
            num_key_value_heads=Field(whole(1, HEADS), None, nullable=True),
            resid_pdrop=Field(_DROPOUT, 0.0), embd_pdrop=Field(_DROPOUT, 0.0),
            hidden_act=_act("gelu_new"), layer_norm_eps=Field(_EPSILON, 1e-5),
            qk_layernorm=Field(flag, False),
        ),
        rope=Rope(partial=0.5),
        own_head_dim=False, norms=1, layer_norm=True, norm_weights=2, gated=False,
        head_norms="qk_layernorm",
        qkv_bias=True, output_bias=True, mlp_bias=True, head_bias=True,
    ),
    "phi3": Architecture(
        fields=_without(
            _decoder(
                32064, 3072, 8192, 32, 32, 4096,
                resid_pdrop=Field(_DROPOUT, 0.0), embd_pdrop=Field(_DROPOUT, 0.0),
                original_max_position_embeddings=Field(whole(2, POSITIONS), 4096),
                sliding_window=_window(None), **_grouped(None, eps=1e-5),
            ),
            "head_dim",
        ),
        rope=Rope(partial=1.0, kinds=("default", "longrope")), own_head_dim=False,
    ),
    "gpt2": Architecture(
        fields=_gpt(
            "gelu_new",
            scale_attn_by_inverse_layer_idx=Field(flag, False),
            reorder_and_upcast_attn=Field(flag, False),
        ),
        **_OF_GPT,
    ),
    "gpt_bigcode": Architecture(
        fields=_gpt(
            "gelu_pytorch_tanh",
            # it holds a mask of all positions squared
            max_position_embeddings=Field(whole(1, 2**15), 1024, also=("n_positions",)),
            multi_query=Field(flag, True), attention_softmax_in_fp32=Field(flag, True),
            scale_attention_softmax_in_fp32=Field(flag, True),
        ),
        **_OF_GPT,
    ),
    "granite": Architecture(
        fields=_decoder(
            32000, 4096, 11008, 32, 32, 2048, mlp_bias=Field(flag, False),
            **_granite(), **_without(_grouped(None), "head_dim"),
        ),
        own_head_dim=False,
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
    ),
    "granitemoe": Architecture(
        fields=_decoder(
            32000, 4096, 11008, 32, 32, 2048,
            **_granite(), **_without(_grouped(None), "head_dim"),
            **_router("num_local_experts", 8, 2),
        ),
        own_head_dim=False, qkv_bias="attention_bias", output_bias="attention_bias",
    ),
    "mpt": Architecture(
        fields={
            "vocab_size": Field(whole(1, VOCABULARY), 50368),
            "hidden_size": Field(whole(1, HIDDEN), 2048, also=("d_model",)),
            "num_hidden_layers": Field(whole(1, LAYERS), 24, also=("n_layers",)),
            "num_attention_heads": Field(whole(1, HEADS), 16, also=("n_heads",)),
            "max_seq_len": Field(whole(1, POSITIONS), 2048, also=("max_position_embeddings",)),
            "expansion_ratio": Field(whole(4, 4), 4),  # transformers reads no other
            "tie_word_embeddings": Field(flag, True),
            "layer_norm_epsilon": Field(_EPSILON, 1e-5),
            "attn_config": Field(_attention_of_mpt, nullable=True),
            **_TOKENS,
        },
        rope=None, own_head_dim=False, layer_norm=True, gated=False,
        harmless=frozenset(
            """
            emb_pdrop embedding_fraction fc_type init_config init_device learned_pos_emb logit_scale
            no_bias norm_type resid_pdrop tokenizer_name verbose
            """.split()  # noqa: SIM905
        ),
    ),
    "gpt_neox": Architecture(
        fields=_decoder(
            50432, 6144, 24576, 44, 64, 2048,
            hidden_dropout=Field(_DROPOUT, 0.0), hidden_act=_act("gelu"),
            layer_norm_eps=Field(_EPSILON, 1e-5), use_parallel_residual=Field(flag, True),
            attention_bias=Field(flag, True),
        ),
        rope=Rope(partial=0.25),
        own_head_dim=False, layer_norm=True, norm_weights=2, gated=False,
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias=True,
        harmless=frozenset({"attention_probs_dropout_prob", "hidden_dropout_prob"}),
    ),
    "olmo2": Architecture(
        fields=_decoder(
            50304, 4096, 11008, 32, 32, 2048,
            attention_bias=Field(flag, False), **_grouped(None, eps=1e-5),
        ),
        wide_norms=True, qkv_bias="attention_bias", output_bias="attention_bias",
    ),
    "smollm3": Architecture(
        fields=_decoder(
            128256, 2048, 11008, 36, 16, 32768, tie_word_embeddings=_TIED,
            attention_bias=Field(flag, False), mlp_bias=Field(flag, False),
            use_sliding_window=Field(flag, False), sliding_window=_window(None, least=0),
            no_rope_layers=Field(listed(whole(0, 1)), nullable=True),
            no_rope_layer_interval=Field(whole(1, LAYERS), 4),
            layer_types=_LAYER_TYPES, **_grouped(4),
        ),
        rope=Rope(theta=2e6),
        qkv_bias="attention_bias", output_bias="attention_bias", mlp_bias="mlp_bias",
    ),
}  # fmt: skip
