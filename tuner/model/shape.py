"""The model's shape: a Hugging Face ``config.json`` read as data, and what follows from it.

Nothing here imports torch or transformers. A configuration is an allow-list of checked values;
no field of it names code, files or addresses, so it is safe to build a model from.
"""

import hashlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tuner.catalog import models
from tuner.catalog.models import Task
from tuner.errors import ModelConfigError, UnknownNameError, why_unreadable
from tuner.model.checks import (
    LAYER_NAMES,
    LENGTH_NAMES,
    check_fields,
    check_json,
    check_labels,
    check_traced,
    first_of,
    sparse_layers,
    text_of,
)
from tuner.model.fields import ARCHITECTURES, OTHER, POSITIONS

# Published ``config.json`` files have a few kB; no more than this is read.
LARGEST_FILE_BYTES = 2**20
# Characters of a model's name.
LONGEST_NAME = 200


# Attention that sees a window only.
SLIDING = "sliding_attention"
FULL = "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """Holds what makes two layers of one model need different memory."""

    attention: str = FULL  # or :data:`SLIDING`
    rotates: bool = True  # whether its attention has rotary position embeddings
    sparse: bool = False  # whether it has experts, where the model has some; else a dense MLP
    told: tuple[object, ...] = ()  # of a type that only dry runs know, what its fields tell apart


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model's shape. Equal configurations build equal models.

    Making one checks it: see :func:`tuner.model.checks.check_fields` for what is refused.
    """

    name: str  # what people call it; not part of the fingerprint
    model_type: str  # which architecture, as transformers spells it
    fields: Mapping[str, Any] = field(compare=False, repr=False)
    """Allow-listed fields of ``config.json``, complete and immutable (lists become tuples)."""
    task: Task = Task.CAUSAL_LM  # what it is trained for
    layer_kinds: tuple[LayerKind, ...] = field(init=False, compare=False, repr=False)
    """The kind of every layer, as transformers 5 builds it."""
    fingerprint: str = field(init=False)
    """SHA-256 of the canonical JSON of ``model_type``, ``fields``, and a ``task`` that is not the
    default, in hexadecimal."""

    def __post_init__(self) -> None:
        name, known = self.name, self.model_type
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
            allowed = f"must be printable, from 1 to {LONGEST_NAME} characters"
            raise ModelConfigError("model name", name, allowed)
        types = known_types(self.task)
        if not isinstance(known, str) or known not in types:
            near = get_close_matches(str(known)[:80], types, n=1)
            hint = f" (did you mean {near[0]}?)" if near else ""
            allowed = f"must be one of {', '.join(ARCHITECTURES)}{hint}"
            if not self.is_causal_lm:
                allowed = f"is no type that transformers builds for {self.task}{hint}"
            raise ModelConfigError("model_type", known, allowed)
        fields = (check_traced if self.is_traced else check_fields)(known, self.fields)
        if self.task is Task.SEQUENCE_CLASSIFICATION:
            fields |= check_labels(self.fields)
        decides = [self.model_type, fields, *[str(self.task)] * (not self.is_causal_lm)]
        text = json.dumps(decides, sort_keys=True, separators=(",", ":"))
        object.__setattr__(self, "fields", _freeze(fields))
        object.__setattr__(self, "layer_kinds", _layer_kinds(self))
        object.__setattr__(self, "fingerprint", hashlib.sha256(text.encode()).hexdigest())

    def as_config(self) -> dict[str, Any]:
        """Returns what a model is built from, ``model_type`` and fields, as fresh JSON values."""
        return {"model_type": self.model_type, **_thaw(self.fields)}

    @property
    def is_traced(self) -> bool:
        """Tells whether its type is known by dry runs alone, of transformers' own class.

        Of such a model there is no arithmetic: of what follows only its layers and its longest
        sequence are known, all else is as of a model that has nothing of it.
        """
        return not self.is_causal_lm or self.model_type not in ARCHITECTURES

    @property
    def is_named(self) -> bool:
        """Tells whether something is known of it; else it is :func:`unnamed_model`'s."""
        return self.fingerprint != unnamed_model().fingerprint

    @property
    def is_causal_lm(self) -> bool:
        return self.task is Task.CAUSAL_LM

    @property
    def has_capped_scores(self) -> bool:
        """True where scores of attention are capped (Gemma 2)."""
        return bool(self.fields.get("attn_logit_softcapping"))

    @property
    def has_biased_scores(self) -> bool:
        """True where scores get a bias for each distance, ALiBi (MPT)."""
        return self.model_type == "mpt"

    @property
    def type_and_task(self) -> str:
        """The type, such as ``bloom``, with a task that is not the default: ``bert masked_lm``."""
        return self.model_type if self.is_causal_lm else f"{self.model_type} {self.task}"

    @property
    def known_type(self) -> models.TaskType | None:
        """What the catalogue says of its type; nothing of causal language models."""
        return models.task_types(self.task).get(self.model_type)

    @property
    def layers(self) -> int:
        if self.is_traced:
            return int(text_of(self.fields)[first_of(self.fields, LAYER_NAMES)])
        return int(self.fields["num_hidden_layers"])

    @property
    def hidden_size(self) -> int:
        """Channels between the layers."""
        return int(self.fields["hidden_size"])

    @property
    def heads(self) -> int:
        return int(self.fields["num_attention_heads"])

    @property
    def kv_heads(self) -> int:
        shared = 1 if self.fields.get("multi_query") else self.heads
        return int(self.fields.get("num_key_value_heads", shared))

    @property
    def head_dim(self) -> int:
        return int(self.fields.get("head_dim", self.hidden_size // self.heads))

    @property
    def intermediate_size(self) -> int:
        """Inner channels of a dense MLP; in Mixtral, of one expert."""
        given = self.fields.get("intermediate_size") or self.fields.get("n_inner")
        return int(given or self.fields["expansion_ratio"] * self.hidden_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the token embedding."""
        if self.is_traced:
            return int(text_of(self.fields).get("vocab_size") or 0)
        return int(self.fields["vocab_size"])

    @property
    def experts(self) -> int:
        """Experts of a sparse layer that are chosen among; 0 in a dense model."""
        if self.is_traced:
            return 0
        return int(self.fields.get("num_experts") or self.fields.get("num_local_experts") or 0)

    @property
    def experts_per_token(self) -> int:
        """Experts that one token goes through; 0 in a dense model."""
        return int(self.fields.get("num_experts_per_tok", 0))

    @property
    def expert_intermediate_size(self) -> int:
        """Inner channels of one expert; 0 in a dense model."""
        if not self.experts:
            return 0
        return int(self.fields.get("moe_intermediate_size") or self.intermediate_size)

    @property
    def mlp_width(self) -> int:
        """Inner channels of the MLP that one token goes through; of all its experts together."""
        return self.experts_per_token * self.expert_intermediate_size or self.intermediate_size

    @property
    def tied_embeddings(self) -> bool:
        """Tells whether the output head is the token embedding."""
        return bool(self.fields["tie_word_embeddings"])

    @property
    def max_sequence_length(self) -> int:
        """Tokens of the longest sequence that the model is made for."""
        if self.is_traced:
            name, known = first_of(self.fields, LENGTH_NAMES), self.known_type
            longest = text_of(self.fields)[name] if name else (known and known.positions)
            if longest and known is not None and known.padding is not None:
                given = self.fields.get("pad_token_id")
                longest -= (known.padding if given is None else given) + 1
            return int(longest or POSITIONS)
        return int(self.fields.get("max_seq_len") or self.fields["max_position_embeddings"])

    @property
    def sparse_layers(self) -> int:
        """Layers with experts; the others have a dense MLP."""
        return sparse_layers(self.fields) if self.experts else 0


def known_types(task: Task) -> tuple[str, ...]:
    """The model types that can be trained for a task, those with arithmetic first."""
    traced = models.traced_types() if task is Task.CAUSAL_LM else models.task_types(task)
    return (*ARCHITECTURES, *traced) if task is Task.CAUSAL_LM else tuple(traced)


def read_model_config(
    data: bytes | Mapping[str, Any], name: str, task: Task = Task.CAUSAL_LM
) -> ModelConfig:
    """Read a ``config.json`` as data.

    Raises:
        ModelConfigError: it is not a configuration of a supported type, or holds something that
            is refused; the error names the field, what was given and what is allowed.
    """
    values = _parse(data, name) if isinstance(data, bytes) else data
    if not isinstance(values, Mapping):
        raise ModelConfigError("model", name, "must hold a JSON object")
    check_json(values)
    rest = dict(values)
    return ModelConfig(name=name, model_type=rest.pop("model_type", None), fields=rest, task=task)


def load_model(spec: str, task: Task = Task.CAUSAL_LM) -> ModelConfig:
    """The model that a user names: a catalogue name, or the path of a ``config.json``.

    A catalogue name wins over a file of the same name. This reads files: a service that
    answers others uses :func:`published_model`.

    Raises:
        UnknownNameError: no such name in the catalogue, and no such file.
        ModelConfigError: the file cannot be read as a configuration.
    """
    path = Path(os.path.expanduser(spec))  # noqa: PTH111  (Path's own raises for unknown users)
    if models.find(spec) is not None:
        return published_model(spec, task)
    if not (spec.endswith(".json") or spec.startswith((".", "~", os.sep))):
        try:
            is_there = path != Path() and path.exists()
        except (OSError, ValueError):  # too long, or with a zero byte
            is_there = False
        if not is_there:
            return published_model(spec, task)
    # Named after its folder for ``.../llama/config.json``, else after the file without its ending;
    # not resolved: a link is named as it was given.
    whole = Path(os.path.abspath(path))  # noqa: PTH100  (Path's own keeps "..")
    name = whole.parent.name if whole.name == "config.json" else whole.stem
    shown = "".join(c if c.isprintable() else "?" for c in name)
    data = _read_bounded(path, spec)
    try:
        return named(read_model_config(data, shown[:LONGEST_NAME] or "model", task))
    except ModelConfigError as error:  # of a field, or of the whole: say of which file
        is_whole = error.field == "model"
        given, where = (spec, "") if is_whole else (error.given, f", in {spec}")
        raise ModelConfigError(error.field, given, f"{error.allowed}{where}") from error


# A study's page has files of its model after every probe.
@lru_cache(maxsize=32)
def published_model(spec: str, task: Task = Task.CAUSAL_LM) -> ModelConfig:
    """Reads a published model from the catalogue, or one of the same shape by its name:
    ``llama-3.1-8b-instruct`` is ``llama-3.1-8b``.

    Raises:
        UnknownNameError: no such name; it holds the nearest ones.
    """
    name = models.find(spec) or models.alike(spec)
    if name is None:
        shown = spec if len(spec) <= 100 else f"{spec[:100]}..."
        raise UnknownNameError(
            "model", shown, models.names(), "(or give the path of a config.json)"
        )
    return read_model_config(models.entry(name)["config"], name=name, task=task)


# The name of a model of which nobody told one.
ANONYMOUS = "the model"


def published_as(model: ModelConfig) -> str:
    """The catalogue's name of a configuration; empty where it is not there."""
    return _published().get((model.model_type, model.fingerprint), "")


@cache
def _published() -> Mapping[tuple[str, str], str]:
    """Names by type and fingerprint; of two names of one configuration the first."""
    found: dict[tuple[str, str], str] = {}
    for name in models.names():
        model = published_model(name)
        found.setdefault((model.model_type, model.fingerprint), name)
    return found


def named(model: ModelConfig) -> ModelConfig:
    """The model by the catalogue's name, if it is there: names are no part of a question, so others
    may see whatever it is called by who asks first."""
    return replace(model, name=published_as(model) or model.name)


def _read_bounded(path: Path, spec: str) -> bytes:
    """Of a regular file as much as tells that it is too large, without ever waiting for a writer.
    Raises ModelConfigError: it cannot be read, is no regular file, or is larger already."""
    try:
        _check_regular(path.stat(), spec)
        # between the two looks it may have become a pipe: opening must not wait
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        with os.fdopen(descriptor, "rb") as file:
            _check_regular(os.fstat(descriptor), spec)
            return file.read(LARGEST_FILE_BYTES + 1)
    except ModelConfigError:
        raise
    except (OSError, ValueError) as error:
        raise ModelConfigError("model", spec, why_unreadable(error)) from error


def _check_regular(status: os.stat_result, spec: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise ModelConfigError("model", spec, "is a directory; give the path of its config.json")
    if not stat.S_ISREG(status.st_mode):
        raise ModelConfigError("model", spec, "must be a regular file")
    if status.st_size > LARGEST_FILE_BYTES:
        raise ModelConfigError("model", spec, "must be a config.json of 1 MiB at most")


def _parse(data: bytes, name: str) -> object:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    if len(data) > LARGEST_FILE_BYTES:
        raise ModelConfigError("model", name, "must be a config.json of 1 MiB at most")
    try:
        return json.loads(data.decode("utf-8-sig"), parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise ModelConfigError("model", name, "must be JSON in UTF-8") from error
    except RecursionError as error:
        raise ModelConfigError("model", name, "must not be nested so deeply") from error
    except ValueError as error:  # not JSON, or an integer of thousands of digits
        raise ModelConfigError("model", name, f"must be JSON ({error})") from error


def _freeze(value: Any) -> Any:
    if isinstance(value, Mapping):
        return MappingProxyType({key: _freeze(item) for key, item in value.items()})
    return tuple(_freeze(item) for item in value) if isinstance(value, list | tuple) else value


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    return [_thaw(item) for item in value] if isinstance(value, tuple | list) else value


# Fields by which every so many layers are of another kind, and by which the first few are:
# ``full_attention_interval``, ``attn_layer_period``, ``moe_layer_freq``; ``first_k_dense_replace``,
# ``num_dense_layers``.
_PERIODS = ("period", "interval", "pattern", "freq", "every", "step")
_LEADS = ("first_k", "num_dense", "dense_layers", "start_index")
# Of fields without "layer" in their name, those whose numbers are layers': ``full_attn_idxs``.
_INDICES = ("_idxs", "_indices", "_indexes")


def layer_indices(fields: Mapping[str, Any], layers: int) -> dict[str, frozenset[int]]:
    """The fields of a configuration that name some of its layers by their numbers, from 0:
    ``mlp_only_layers``, ``attn_layer_indices``, ``hybrid_layer_ids``."""
    return {
        name: frozenset(given)
        for name, given in fields.items()
        if isinstance(given, list | tuple) and ("layer" in name or name.endswith(_INDICES))
        if all(type(one) is int and 0 <= one < layers for one in given)
        if given and len(set(given)) == len(given)
    }


def is_of_each(name: str, value: object, layers: int) -> bool:
    """Tells whether a field says something of each layer: by a list, or by a letter for each as
    ``hybrid_override_pattern`` does."""
    spelled = isinstance(value, str) and name.endswith("pattern")
    return (spelled or isinstance(value, list | tuple)) and len(value) == layers  # type: ignore[arg-type]


def _layer_kinds(model: ModelConfig) -> tuple[LayerKind, ...]:
    """The rules are those of ``configuration_<model_type>.py`` and ``modeling_<model_type>.py`` in
    ``transformers/models``. A window slides also where it is longer than the sequence. A type that
    only dry runs know may say something of each layer by a list with an entry for each, by the
    numbers of some, by a period, or by a number of first ones.
    """
    if model.is_traced:
        own, count = text_of(model.fields), model.layers
        named = layer_indices(own, count)
        lists = [v for n, v in own.items() if is_of_each(n, v, count) and n not in named]
        whole = {n: v for n, v in own.items() if isinstance(v, int) and not isinstance(v, bool)}
        periods = [v for n, v in whole.items() if any(w in n for w in _PERIODS) and 1 < v <= count]
        leads = [v for n, v in whole.items() if any(w in n for w in _LEADS) and 0 < v < count]
        if not lists and isinstance(own.get("block_types"), tuple):
            periods.append(len(own["block_types"]))
        return tuple(
            LayerKind(
                told=(
                    *(repr(one[i]) for one in lists),
                    *(i in some for some in named.values()),
                    *(i % period for period in periods),
                    *(i < lead for lead in leads),
                )
            )
            for i in range(count)
        )
    fields, layers = model.fields, range(model.layers)
    step = int(fields.get("decoder_sparse_step") or 1)
    dense = fields.get("mlp_only_layers") or ()
    rotates = [True] * model.layers
    if model.model_type == "smollm3":  # 1 where there are rotary embeddings
        given = fields["no_rope_layers"] or [
            (i + 1) % fields["no_rope_layer_interval"] for i in layers
        ]
        rotates = [bool(one) for one in given]
    switch, window = bool(fields.get("use_sliding_window")), bool(fields.get("sliding_window"))
    # where ``layer_types`` is left out
    slides: Mapping[str, Callable[[int], bool]] = {
        **dict.fromkeys(("mistral", "mixtral", "phi3"), lambda i: window),
        "qwen3_moe": lambda i: switch,
        "gemma2": lambda i: bool((i + 1) % 2),
        "gemma3_text": lambda i: bool((i + 1) % fields["sliding_window_pattern"]),
        **dict.fromkeys(("qwen2", "qwen3"), lambda i: switch and i >= fields["max_window_layers"]),
        "qwen2_moe": lambda i: switch and i % 2 == 0 and i < fields["max_window_layers"],
        "smollm3": lambda i: switch and not rotates[i],
    }
    windowed = slides.get(model.model_type)
    sliding = [windowed is not None and windowed(i) for i in layers]
    types = fields.get("layer_types") or [SLIDING if one else FULL for one in sliding]
    return tuple(
        LayerKind(
            attention=str(types[i]),
            rotates=rotates[i],
            sparse=bool(model.experts) and (i + 1) % step == 0 and i not in dense,
        )
        for i in layers
    )


# What people see in the place of a model's name.
NAME = "a model that is not named"
# In the place of a configuration, such as no model has: its sizes rule out no parallel size up to
# ten, and no sequence length. No number comes from it.
FIELDS: Mapping[str, Any] = {
    "model_type": "llama",
    "vocab_size": 2,
    "hidden_size": 5040,
    "intermediate_size": 5040,
    "num_hidden_layers": 840,
    "num_attention_heads": 2520,
    "num_key_value_heads": 2520,
    "max_position_embeddings": 2**22,
}


@cache
def unnamed_model() -> ModelConfig:
    """Makes the model that stands for one that is not named."""
    return read_model_config(FIELDS, name=NAME)


def shown_workload(workload: Mapping[str, Any]) -> dict[str, Any]:
    """A workload's plain values as they are shown: of an unnamed model no configuration."""
    is_known = workload["model_name"] != NAME
    return dict(workload) if is_known else {**workload, "model": None}


def shown_question(question: Mapping[str, Any]) -> dict[str, Any]:
    """A question's plain values as they are shown, with its workload as above."""
    return {**question, "workload": shown_workload(question["workload"])}


class Linear(NamedTuple):
    """One linear layer, also where transformers has it as a ``Conv1D`` (GPT-2)."""

    name: str  # its module's own, such as q_proj
    inputs: int
    outputs: int


def end_names(model: ModelConfig) -> tuple[str, str]:
    """Names of the modules of the token embedding and of the output head."""
    return ARCHITECTURES.get(model.model_type, OTHER).embedding_name, "lm_head"


def attention_names(model: ModelConfig) -> tuple[str, ...]:
    return ARCHITECTURES.get(model.model_type, OTHER).attention_names


def mlp_names(model: ModelConfig) -> tuple[str, ...]:
    return ARCHITECTURES.get(model.model_type, OTHER).mlp_names


def linears(model: ModelConfig) -> tuple[Linear, ...]:
    """The linear layers of a dense decoder layer, in the order of its modules."""
    width, hidden = model.heads * model.head_dim, model.hidden_size
    kv, names = model.kv_heads * model.head_dim, attention_names(model)
    rows = (width, kv, kv) if len(names) == 4 else (width + 2 * kv,)
    columns = [Linear(name, hidden, size) for name, size in zip(names[:-1], rows, strict=True)]
    out = Linear(names[-1], width, hidden)
    own_order = [out, *columns] if model.model_type == "phi3" else [*columns, out]
    *into, last = mlp_names(model)
    inner = model.intermediate_size
    fused = ARCHITECTURES[model.model_type].gated and len(into) == 1
    both = [Linear(name, hidden, inner * (1 + fused)) for name in into]
    return (*own_order, *both, Linear(last, inner, hidden))
