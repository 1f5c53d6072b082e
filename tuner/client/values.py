"""Values as people and programs write them, and how errors in them pass through pydantic; the
names that there are.

Nothing of the planner is imported here: answering a file of cases needs none of it.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from difflib import SequenceMatcher, get_close_matches
from numbers import Integral, Real
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypedDict

from pydantic import BaseModel

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.catalog.models import Task
from tuner.core.cluster import Cluster
from tuner.core.framework import FrameworkName
from tuner.cost.memory.tensors import counts
from tuner.errors import REQUIRED, UsageError, all_of, did_you_mean
from tuner.model import ModelConfig, load_model, published_model, read_model_config
from tuner.model.fields import ARCHITECTURES
from tuner.model.shape import ANONYMOUS, known_types, named

# Is given a line to show; what it returns is not looked at.
Say = Callable[[str], object]


# A model: a name of the catalogue, the path of a ``config.json``, its fields, or as it was read.
ModelLike = str | os.PathLike[str] | Mapping[str, Any] | ModelConfig


# A cluster: as it is spelled, its fields, or as it was read.
ClusterLike = str | Mapping[str, Any] | Cluster


def read_model(value: ModelLike, task: Task = Task.CAUSAL_LM) -> ModelConfig:
    """The model of a name, a file, or a configuration's fields, for a task."""
    if isinstance(value, ModelConfig):
        same = value.task is task
        return value if same else read_model_config(value.as_config(), value.name, task)
    if isinstance(value, Mapping):
        name = str(value.get("_name_or_path") or ANONYMOUS)
        return named(read_model_config(value, name=name, task=task))
    if not isinstance(value, str | os.PathLike):
        raise UsageError("model", value, "must be a name, a path, or the fields of a config.json")
    return load_model(os.fspath(value), task)


def model_note(value: ModelLike, task: Task = Task.CAUSAL_LM, *, here: bool = True) -> str:
    """A sentence on what is taken for granted of a model: sizes that its configuration leaves out,
    or its shape, by its name; empty where there is nothing. Files are read only ``here``."""
    if isinstance(value, ModelConfig):
        return ""
    if isinstance(value, Mapping):
        return default_note(value)
    spec = os.fspath(value)
    if models.find(spec) is not None:
        return ""
    if not here:
        return as_large(spec, published_model(spec, task).name)
    name = load_model(spec, task).name
    try:  # a file, which was found to be small and readable
        note = default_note(json.loads(Path(os.path.expanduser(spec)).read_bytes()))  # noqa: PTH111
    except OSError:
        return as_large(spec, name)
    return note and f"{name}: {note}"


def as_large(spec: str, known: str) -> str:
    """A sentence on a model that is known by its name alone."""
    return f"{spec} is taken to have the shape of {known}"


def plain(value: object) -> Any:
    """The value with numbers as Python has them: a notebook's are often NumPy's."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


class SharedArguments(TypedDict, total=False):
    """Keyword arguments of :func:`tuner.suggest` that others take too, with the same defaults."""

    optimizer: str
    precision: str | None
    reduce_dtype: str | None
    loss: str
    tensor_parallel: str
    adapter: str | Mapping[str, Any] | None
    frozen: str | Sequence[str] | None
    packing: str | Mapping[str, Any] | None
    task: str
    image_tokens: int
    framework: str
    framework_versions: Mapping[str, str] | None
    headroom: float | None
    memory_limit_gib: float | None


# Arguments that say what is asked of a file's case, where it does not; all else are limits.
BESIDE_A_FILE = frozenset({
    "model", "cluster", "global_batch_size", "sequence_length",
    *SharedArguments.__annotations__,
}) - {"headroom", "memory_limit_gib"}  # fmt: skip


def plain_arguments(shared: Mapping[str, Any] | None = None, /, **given: Any) -> dict[str, Any]:
    """The arguments that are given, with numbers as Python has them.

    Raises:
        TypeError: one of ``shared`` is none of :class:`SharedArguments`.
    """
    for name in shared or ():
        if name not in SharedArguments.__annotations__:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
    every = {**given, **(shared or {})}
    return {name: plain(value) for name, value in every.items() if value is not None}


def silent(text: str) -> None:
    """Shows nothing."""


# Arguments of Python whose options have other names.
ARGUMENTS = {
    "framework_version": "framework_versions",
    "label": "labels",
    "probe_deadline": "probe_deadline_s",
}


@contextmanager
def naming_arguments() -> Iterator[None]:
    """Names usage errors as the arguments of Python are."""
    try:
        yield
    except UsageError as error:
        if not any(one.field in ARGUMENTS for one in error.errors):
            raise
        named = (one.at(ARGUMENTS.get(one.field, one.field)) for one in error.errors)
        raise all_of(named) from error


# Fields that decide what a model needs, and that hardly anybody leaves to their default.
SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "max_position_embeddings", "num_local_experts", "num_experts", "num_experts_per_tok",
    "moe_intermediate_size",
)  # fmt: skip


def default_sizes(model: object) -> Mapping[str, Any]:
    """The sizes that a configuration leaves out, with what transformers takes."""
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


# Similarity from which a name is taken for a misspelled one.
TYPO = 0.8


class NotCoveredError(UsageError):
    """A model type or a GPU that nothing is known of: its ``allowed`` says why.

    A prediction answers it with that reason; a question is refused for it.
    """

    nearest: Sequence[str] | None = None
    """Names of the catalogue that are like that of a GPU."""


def uncovered_model_type(model_type: object, task: Task = Task.CAUSAL_LM) -> str:
    """Why a type is not covered; empty for one that is, or that is no type at all."""
    types = known_types(task)
    if not isinstance(model_type, str) or not model_type or model_type in types:
        return ""
    shown, is_causal = model_type[:80], task is Task.CAUSAL_LM
    near = get_close_matches(shown, ARCHITECTURES if is_causal else types, n=1, cutoff=0.75)
    hint = f" (did you mean {near[0]}?)" if near else ""
    if not is_causal:
        return f"model type {shown!r} is not covered for {task}{hint}; covered are {len(types)}"
    covered = ", ".join(ARCHITECTURES)
    others = f"{len(models.traced_types())} more of transformers by dry run"
    return f"model type {shown!r} is not covered{hint}; covered are {covered}, and {others}"


def is_misspelled(name: str, known: Iterable[str]) -> bool:
    """Tells a misspelled name of a GPU of the catalogue from one that has no figures.

    A name is misspelled when it is like a known one and has the same numbers: ``h100-80bg`` is,
    ``h300`` and ``b300`` are other products.
    """
    shown = name[:80]
    for one in known:
        same_numbers = re.sub(r"[^0-9]", "", shown) == re.sub(r"[^0-9]", "", one)
        if same_numbers and SequenceMatcher(None, shown.lower(), one).ratio() >= TYPO:
            return True
    return False


# Values of a knob that may be allowed.
MOST_VALUES = 100
A_LIST = f"must be a list of 1 to {MOST_VALUES} values that are allowed"
# Words for pydantic's kinds of errors; others have words of their own.
ALLOWED: Mapping[str, str] = {
    "missing": REQUIRED,
    "model_type": "must be an object of fields",
    "model_attributes_type": "must be an object of fields",
    "dataclass_type": "must be a table of fields",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "enum": "must be one of {expected}",
    "tuple_type": A_LIST,
    "too_short": A_LIST,
    "too_long": A_LIST,
    "string_type": "must be a text",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or fewer",
    "string_pattern_mismatch": "must match {pattern}",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of 64 bits",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
}


def errors_of(
    lines: Iterable[Mapping[str, Any]], models: Mapping[str, type[Any]] = MappingProxyType({})
) -> Iterator[UsageError]:
    """pydantic's errors as ours, each with its path."""
    for line in lines:
        names = [one for one in line["loc"] if isinstance(one, str)]
        context, kind = line.get("ctx", {}), line["type"]
        if isinstance(error := context.get("error"), UsageError):
            for one in error.errors:
                yield one.at(_placed(names, one.field))
            continue
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            path, name = ".".join(names[:-1]), names[-1][:80]
            kind = models.get(path)
            if kind is not None and issubclass(kind, BaseModel):
                known = sorted(one.alias or own for own, one in kind.model_fields.items())
            else:
                known = sorted(one.name for one in fields(kind)) if kind else []
            field = f"{path}.{name}" if path else name
            there = f"; there are {', '.join(known)}" if known else ""
            said = f"no such field{did_you_mean(name, known)}{there}"
            yield UsageError(field, line["input"], said)
            continue
        if "expected" in context:
            known = context["expected"].replace("'", "").replace(" or ", ", ").split(", ")
            near = did_you_mean(line.get("input"), known)
            context = {"expected": f"{', '.join(known)}{near}"}
        allowed = ALLOWED.get(kind, "").format_map(context) or line["msg"]
        given = None if kind == "missing" else line.get("input")
        yield UsageError(".".join(names) or "body", given, allowed)


def _placed(names: Sequence[str], field: str) -> str:
    """The path of what a reader of the part at ``names`` calls ``field``."""
    path = ".".join(names)
    if field == "model name":
        return f"{'.'.join(names[:-1])}.model_name"
    if not path or field in (path, "", "framework", "framework_version", names[-1]):
        return path or field or "body"
    return field if field.startswith(f"{path}.") else f"{path}.{field}"


def listed_models(begun: str = "") -> list[dict[str, Any]]:
    """The models of the catalogue whose names hold ``begun``; of those that only dry runs know,
    nobody has counted the active parameters."""
    found = [published_model(name) for name in models.names() if begun.lower() in name]
    return [
        {"name": one.name, "model_type": one.model_type,
         "parameters": models.entry(one.name)["parameters"],
         "active_parameters": None if one.is_traced else counts(one).active_parameters,
         "layers": one.layers,
         "longest_sequence": one.max_sequence_length}
        for one in found
    ]  # fmt: skip


def listed_gpus(begun: str = "") -> list[dict[str, Any]]:
    """The kinds of GPUs whose names hold ``begun``."""
    return [
        {"name": one.name, "title": one.title, "memory_bytes": one.memory_bytes,
         "bf16_flops_per_s": one.bf16_flops_per_s,
         "memory_bytes_per_s": one.memory_bytes_per_s,
         "intra_node_bytes_per_s": one.intra_node.bytes_per_s,
         "inter_node_bytes_per_s": one.inter_node.bytes_per_s}
        for one in gpu_kinds().values()
        if begun.lower() in one.name
    ]  # fmt: skip


# Formats of each framework's own files; the first that can express the answer is shown with it.
FILES_OF_FRAMEWORK: Mapping[FrameworkName, tuple[str, ...]] = {
    FrameworkName.TORCH: (),  # a script of the user's own
    FrameworkName.ACCELERATE: ("accelerate",),
    FrameworkName.TRAINER: ("trainer", "accelerate"),
    FrameworkName.NANOTRON: ("nanotron",),
    FrameworkName.DEEPSPEED: ("deepspeed",),
}


def framework_of_files(wanted: Iterable[str]) -> FrameworkName | None:
    """The framework that is meant by whoever wants such files, each ``FORMAT=PATH``: accelerate or
    the Trainer, which are probed as torch is; ``None`` where they are of neither, or of both."""
    names = {one.partition("=")[0] for one in wanted}
    meant = (FrameworkName.ACCELERATE, FrameworkName.TRAINER)
    found = [one for one in meant if FILES_OF_FRAMEWORK[one][0] in names]
    return found[0] if len(found) == 1 else None
