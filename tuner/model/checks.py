"""Holds a ``config.json`` object against the allow-list and fills in what it leaves out."""

import math
import re
from collections.abc import Mapping
from typing import Any

from tuner.errors import ModelConfigError
from tuner.model.fields import (
    ARCHITECTURES,
    HARMLESS,
    IMPLEMENTATIONS,
    LAYERS,
    ONLY,
    POSITIONS,
    REFUSED,
    Architecture,
    Check,
    Field,
    Rope,
    flag,
    listed,
    number,
    one_of,
    whole,
)

# Levels of lists and objects; published files have four at most.
DEEPEST = 8
# Bound of integers anywhere in a file, harmless fields included.
LARGEST_INTEGER = 2**63
# Factors of a scaling by channel.
MOST_CHANNELS = 2**16
# Characters of a value of types that only dry runs know.
LONGEST_WORD = 100

_THETA = number(1.0, 1e15, above=True)
_FACTOR = number(0.0, 1e6, above=True)
_PER_CHANNEL = listed(_FACTOR, MOST_CHANNELS)

# Kinds of the values of ``rope_parameters`` (``rope_scaling`` before transformers 5).
ROPE_VALUES: Mapping[str, Check] = {
    "rope_theta": _THETA,
    "partial_rotary_factor": number(0.0, 1.0, above=True),
    "factor": _FACTOR,
    "original_max_position_embeddings": whole(2, POSITIONS),
    "low_freq_factor": _FACTOR,
    "high_freq_factor": _FACTOR,
    "attention_factor": _FACTOR,
    "beta_fast": _FACTOR,
    "beta_slow": _FACTOR,
    "mscale": number(0.0, 1e6),
    "mscale_all_dim": number(0.0, 1e6),
    "truncate": flag,
    "short_factor": _PER_CHANNEL,
    "long_factor": _PER_CHANNEL,
}

# Names inside it that transformers 5 does not read, or that are read apart.
ROPE_IGNORED = frozenset({"type", "rope_type", "finetuned", "short_mscale", "long_mscale"})

# What each scaling needs, and what it may have (``transformers/modeling_rope_utils.py``).
ROPE_KINDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "dynamic": (("factor",), ()),
    "yarn": (
        ("factor", "original_max_position_embeddings"),
        ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"),
    ),
    "longrope": (
        ("short_factor", "long_factor", "original_max_position_embeddings"),
        ("factor", "attention_factor"),
    ),
    "llama3": (
        ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
        (),
    ),
}


def check_fields(model_type: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The allow-listed fields of a configuration, complete and in one spelling.

    What it returns is a fixed point: checking it again gives the same. Raises ModelConfigError: a
    field is refused, unknown, of the wrong kind, out of bounds, or does not go with another.
    """
    check_json(given)
    architecture = ARCHITECTURES[model_type]
    rest = dict(given)
    _refuse(rest)
    fields = {name: _take(rest, name, spec) for name, spec in architecture.fields.items()}
    _settle_heads(architecture, fields, rest)
    _settle_layers(fields)
    if architecture.rope is not None:
        fields["rope_parameters"] = _take_rope(architecture.rope, fields, rest)
    _drop_harmless(model_type, architecture, rest)
    return fields


# Where a type that only dry runs know says how many layers its decoder has, and how long its
# sequences may be; its text part may have a configuration of its own.
LAYER_NAMES = ("decoder_layers", "num_hidden_layers", "n_layer", "n_layers", "num_layers")
LENGTH_NAMES = (
    "max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "n_ctx",
    "seq_length", "max_sequence_length",
)  # fmt: skip
# Sizes that are believed of such types; those with a mask of all positions squared take fewer.
LARGEST_SIZE = 2**24
SQUARED = frozenset({"codegen", "gpt_neo", "gptj"})
MOST_SQUARED = 2**15
# What of HARMLESS is not, in some of them.
_READ = frozenset({
    "is_decoder", "original_max_position_embeddings", "max_sequence_length", "classifier_dropout",
})  # fmt: skip
MOST_LABELS = 2**20
# What transformers takes a loss by; without it, by the number of labels and their format.
PROBLEMS = ("regression", "single_label_classification", "multi_label_classification")


def text_of(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of the language model, of a configuration that may have several parts."""
    nested = fields.get("text_config")
    return nested if isinstance(nested, Mapping) else fields


def first_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """The name under which text fields give something; empty where they do not."""
    own = text_of(fields)
    return next((name for name in names if own.get(name) is not None), "")


def check_labels(given: Mapping[str, Any]) -> dict[str, Any]:
    """How many labels a classifier has, and of what kind: fields that other models do without.

    transformers takes two where nothing is said (``num_labels`` in configuration_utils.py, 5.23).
    Raises ModelConfigError: they are refused.
    """
    named = given.get("id2label")
    count = given.get("num_labels") or (len(named) if isinstance(named, Mapping) else 0) or 2
    found: dict[str, Any] = {"num_labels": whole(1, MOST_LABELS)("num_labels", count)}
    if (problem := given.get("problem_type")) is not None:
        found["problem_type"] = one_of(PROBLEMS)("problem_type", problem)
    return found


def check_traced(model_type: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a type that only dry runs know: any JSON that names no code and no place.
    Raises ModelConfigError: a field is refused, too large, or does not say how many layers there
    are."""
    check_json(given)
    fields = _without_code(given)
    name = first_of(fields, LAYER_NAMES)
    if not name:
        allowed = f"must be given for {model_type}, whose defaults are not known here"
        raise ModelConfigError(LAYER_NAMES[1], None, allowed)
    whole(1, LAYERS)(name, text_of(fields)[name])
    if length := first_of(fields, LENGTH_NAMES):
        most = MOST_SQUARED if model_type in SQUARED else POSITIONS
        whole(1, most)(length, text_of(fields)[length])
    return fields


def _without_code(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of an object when nothing harmless is; what names code is refused anywhere."""
    rest = dict(given)
    _refuse(rest)
    left = {n: v for n, v in rest.items() if n not in HARMLESS or n in _READ}
    return {name: _without_places(_shown_key(name), value) for name, value in left.items()}


def _without_places(name: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return _without_code(value)
    if isinstance(value, list | tuple):
        return [_without_places(name, item) for item in value]
    if isinstance(value, str) and ("/" in value or "\\" in value or len(value) > LONGEST_WORD):
        raise ModelConfigError(name, value, "must be a word: it could name a file or a repository")
    if isinstance(value, int) and abs(value) > LARGEST_SIZE:
        raise ModelConfigError(name, value, f"must be {LARGEST_SIZE} at most")
    return value


def check_json(value: object, name: str = "", depth: int = 0) -> None:
    """Refuse what is not plain, finite and shallow JSON, so that whatever is kept can be shown.
    Raises ModelConfigError, naming the field."""
    field = name or "model"
    if depth > DEEPEST:
        raise ModelConfigError(field, "a deeper one", f"may have {DEEPEST} levels at most")
    if isinstance(value, Mapping):
        for key, item in value.items():
            shown = _shown_key(key)
            check_json(item, name or shown, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            check_json(item, field, depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ModelConfigError(field, value, "must be a finite number")
    elif isinstance(value, int) and not -LARGEST_INTEGER <= value < LARGEST_INTEGER:
        raise ModelConfigError(field, "a huge integer", "must fit in 64 bits")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise ModelConfigError(field, type(value).__name__, "must be a JSON value")


def _shown_key(key: object) -> str:
    if not isinstance(key, str):
        raise ModelConfigError("model", "a field whose name is not a string", "must be JSON")
    return key if re.fullmatch(r"[\w.\-]{1,80}", key, re.ASCII) else ascii(key[:80])


def _says_nothing(value: object) -> bool:
    return value is None or (isinstance(value, Mapping | list | tuple) and not value)


def _refuse(rest: dict[str, Any]) -> None:
    for name, why in REFUSED.items():
        if not _says_nothing(value := rest.pop(name, None)):
            raise ModelConfigError(name, value, why)
    for public, allowed in IMPLEMENTATIONS.items():
        for name in (public, f"_{public}", f"_{public}_internal"):
            value = rest.pop(name, None)
            if value is not None and value not in allowed:
                raise ModelConfigError(name, value, f"must be one of {', '.join(allowed)}")


def _take(rest: dict[str, Any], name: str, spec: Field) -> Any:
    """The value of a field, which is taken out of ``rest`` in all its spellings."""
    given = [(n, rest.pop(n)) for n in (name, *spec.also) if n in rest]
    if any(value != given[0][1] for _, value in given):
        raise ModelConfigError(given[1][0], given[1][1], f"must be the same as {given[0][0]}")
    if not given or (given[0][1] is None and not spec.nullable):
        return spec.default
    spelled, value = given[0]
    return None if value is None else spec.check(spelled, value)


def _settle_heads(architecture: Architecture, fields: dict[str, Any], rest: dict[str, Any]) -> None:
    hidden, heads = fields["hidden_size"], fields["num_attention_heads"]
    head_dim = fields["head_dim"] if architecture.own_head_dim else None
    if hidden % heads and (head_dim is None or architecture.divides_hidden):
        raise ModelConfigError("num_attention_heads", heads, f"must divide hidden_size, {hidden}")
    if architecture.own_head_dim:
        fields["head_dim"] = head_dim or hidden // heads
    elif (given := rest.pop("head_dim", None)) not in (None, hidden // heads):
        raise ModelConfigError("head_dim", given, f"must be hidden_size / heads, {hidden // heads}")
    if "num_key_value_heads" in fields:
        kv_heads = fields["num_key_value_heads"] or heads
        if heads % kv_heads:
            raise ModelConfigError("num_key_value_heads", kv_heads, f"must divide {heads} heads")
        fields["num_key_value_heads"] = kv_heads
    if "n_inner" in fields:
        fields["n_inner"] = fields["n_inner"] or 4 * hidden


def _settle_layers(fields: dict[str, Any]) -> None:
    """Per-layer lists have one entry for each layer, and there are the experts that are chosen."""
    layers = fields["num_hidden_layers"]
    for name in ("layer_types", "no_rope_layers"):
        if (value := fields.get(name)) is not None and len(value) != layers:
            raise ModelConfigError(name, f"{len(value)} items", f"must have {layers}, one a layer")
    experts = fields.get("num_experts", fields.get("num_local_experts"))
    if experts is not None and fields["num_experts_per_tok"] > experts:
        chosen = fields["num_experts_per_tok"]
        raise ModelConfigError("num_experts_per_tok", chosen, f"must be {experts} at most")
    if experts is not None and sparse_layers(fields) == 0:
        raise ModelConfigError("decoder_sparse_step", "no layer with experts", "must leave one")
    # a window is set where layers slide, and only there
    switch = fields.get("use_sliding_window")
    if switch is False:
        fields["sliding_window"] = None
    window = fields.get("sliding_window")
    slides = switch or "sliding_attention" in (fields.get("layer_types") or ())
    if window == 0 or (slides and window is None):
        allowed = f"must be an integer from 1 to {POSITIONS} where layers slide"
        raise ModelConfigError("sliding_window", window, allowed)


def sparse_layers(fields: Mapping[str, Any]) -> int:
    """How many layers of a mixture of experts have experts; the others have a dense MLP."""
    step, dense = fields.get("decoder_sparse_step", 1), fields.get("mlp_only_layers", ())
    layers = range(fields["num_hidden_layers"])
    return sum((i + 1) % step == 0 and i not in dense for i in layers)


def _drop_harmless(model_type: str, architecture: Architecture, rest: dict[str, Any]) -> None:
    for name, value in rest.items():
        if _says_nothing(value) or name in HARMLESS or name in architecture.harmless:
            continue
        shown = _shown_key(name)
        if name not in ONLY:
            raise ModelConfigError(
                shown,
                value,
                f"is not a known field of {model_type} and may change what is trained;"
                " remove it if it does not",
            )
        if value != ONLY[name]:
            allowed = str(ONLY[name]).lower()
            raise ModelConfigError(shown, value, f"must be {allowed} for {model_type}")


def _take_rope(rope: Rope, fields: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """``rope_parameters`` in transformers 5's spelling, from either spelling."""
    scaling, parameters = rest.pop("rope_scaling", None), rest.pop("rope_parameters", None)
    given = _object("rope_scaling", scaling) or _object("rope_parameters", parameters)
    theta = _first(rest, ("rotary_emb_base", "rope_theta"), _THETA, rope.theta)
    partial = _first(
        rest,
        ("rotary_pct", "partial_rotary_factor"),
        ROPE_VALUES["partial_rotary_factor"],
        1.0 if rope.partial is None else rope.partial,
    )
    if rope.local_theta is None:
        return _one_rope(rope, given, fields, theta, partial)
    local = _first(rest, ("rope_local_base_freq",), _THETA, rope.local_theta)
    kinds = ("full_attention", "sliding_attention")
    if not set(given) & set(kinds):
        given = {"full_attention": given}
    if odd := set(given) - set(kinds):
        raise ModelConfigError("rope_parameters", sorted(odd), f"may have {' and '.join(kinds)}")
    return {
        kind: _one_rope(rope, _object(kind, given.get(kind)), fields, base, partial)
        for kind, base in zip(kinds, (theta, local), strict=True)
    }


def _one_rope(
    rope: Rope, given: dict[str, Any], fields: dict[str, Any], theta: float, partial: float
) -> dict[str, Any]:
    kind = given.get("rope_type") or given.get("type") or "default"
    if kind in ("su", "yarn") and "yarn" not in rope.kinds:
        kind = "longrope"  # what Phi-3 called it at first
    kind = str(one_of(rope.kinds)("rope_type", kind))
    if odd := sorted(set(given) - set(ROPE_VALUES) - ROPE_IGNORED):
        raise ModelConfigError(_shown_key(odd[0]), given[odd[0]], "is not known in rope_parameters")
    needed, possible = ROPE_KINDS[kind]
    values = {
        name: ROPE_VALUES[name](name, given[name])
        for name in ("rope_theta", "partial_rotary_factor", *needed, *possible)
        if given.get(name) is not None
    }
    values = {"rope_theta": theta, "partial_rotary_factor": partial, **values, "rope_type": kind}
    before = "original_max_position_embeddings"
    if before in needed:  # Phi-3 keeps it outside, others may leave it out
        fallback = values.get(before, max(2, fields["max_position_embeddings"]))
        values[before] = fields.get(before, fallback)
    if missing := [name for name in needed if name not in values]:
        raise ModelConfigError(missing[0], None, f"must be set in rope_parameters of type {kind}")
    _check_rotation(rope, fields, values)
    if rope.partial is None:
        del values["partial_rotary_factor"]
    return values


def _check_rotation(rope: Rope, fields: dict[str, Any], values: dict[str, Any]) -> None:
    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    partial = values["partial_rotary_factor"]
    if rope.partial is None and partial != 1.0:
        raise ModelConfigError("partial_rotary_factor", partial, "must be 1 in this type")
    channels = int(head_dim * partial)
    if channels < 2 or channels % 2:
        raise ModelConfigError(
            "head_dim", head_dim, f"must leave an even number of rotated channels, not {channels}"
        )
    if values["rope_type"] == "dynamic" and channels == 2:
        raise ModelConfigError("head_dim", head_dim, "must be 4 or more under dynamic scaling")
    for name in ("short_factor", "long_factor"):
        if name in values and len(values[name]) != channels // 2:
            raise ModelConfigError(
                name, f"{len(values[name])} items", f"must have {channels // 2}, one a channel pair"
            )
    if values["rope_type"] == "llama3" and values["high_freq_factor"] <= values["low_freq_factor"]:
        raise ModelConfigError(
            "high_freq_factor", values["high_freq_factor"], "must be above low_freq_factor"
        )


def _first(rest: dict[str, Any], names: tuple[str, ...], check: Check, default: float) -> Any:
    """The first of some spellings that is given; all are taken out of ``rest``."""
    given = [(name, rest.pop(name)) for name in names if name in rest]
    return next((check(name, value) for name, value in given if value is not None), default)


def _object(name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ModelConfigError(name, value, "must be an object")
    return dict(value)
