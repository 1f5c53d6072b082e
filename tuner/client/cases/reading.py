"""Kinds of values that a user writes in JSON: what is not of its kind is named with its path."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import SequenceMatcher, get_close_matches
from functools import cache, lru_cache
from typing import Any, TypeGuard, TypeVar

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Cluster, parse_cluster
from tuner.core.configuration import KNOBS, Settings, parse_settings
from tuner.core.framework import Framework, FrameworkName, framework, installed_versions
from tuner.core.study import HEADROOM, Question
from tuner.core.workload import (
    LARGEST_BATCH,
    LARGEST_SEQUENCE,
    Optimizer,
    Precision,
    ReduceDtype,
    Workload,
    choice,
)
from tuner.cost.prediction import uncovered
from tuner.cost.script import Script
from tuner.errors import TunerError, UnknownNameError, UsageError
from tuner.model import ModelConfig, published_model, read_model_config
from tuner.model.fields import ARCHITECTURES
from tuner.space import check_settings, settings_notes

# Characters of a name or of settings written as text.
LONGEST_TEXT = 1000
# Of a memory limit; more is a mistake in units.
LARGEST_GIB = 2**20


def read_headroom(value: object) -> float:
    """A share of a device's memory.

    Raises:
        UsageError: it is none.
    """
    return read_share("headroom", value, 0.05)


def read_share(path: str, value: object, such_as: float) -> float:
    """A number from 0 to below 1.

    Raises:
        UsageError: it is none.
    """
    if not is_number(value) or not 0 <= value < 1:
        raise UsageError(path, value, f"must be a number from 0 to below 1, such as {such_as}")
    return float(value)


def read_limit_gib(value: object) -> float | None:
    """GiB that one device may use; ``None`` for no limit.

    Raises:
        UsageError: it is no size.
    """
    if value is None:
        return None
    if not is_number(value) or not 2**-30 <= value <= LARGEST_GIB:
        allowed = f"must be a number of GiB above 0 and up to {LARGEST_GIB}"
        raise UsageError("memory_limit_gib", value, allowed)
    return float(value)


def is_number(value: object) -> TypeGuard[float]:
    """Tells whether it is a number; flags are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_whole(path: str, value: object, least: int, most: int) -> None:
    """Refuse what is no integer, or out of bounds."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(path, value, f"must be an integer from {least} to {most}")


def check_knob(name: str, value: object) -> None:
    """Refuse what the text form may have and JSON may not: numbers and flags as strings."""
    if name not in KNOBS:
        raise UsageError(f"settings.{name}", value, f"no such knob; there are {', '.join(KNOBS)}")
    if KNOBS[name].kind is bool and not isinstance(value, bool):
        raise UsageError(name, value, "must be true or false")
    if KNOBS[name].kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(name, value, "must be a positive integer")


def check_names(
    path: str, values: Mapping[str, Any], required: Collection[str], optional: Collection[str]
) -> None:
    """Refuse fields that there are not, and objects that lack one that is required.

    Args:
        path: what goes before the names, with its dot.
        values: the object.
        required: names that must have a value.
        optional: further names that there are.
    """
    for name in values:
        if name not in required and name not in optional:
            known = ", ".join(sorted({*required, *optional}))
            field = f"{path}{name[:80]}"
            raise UsageError(field, values[name], f"no such field; there are {known}")
    for name in required:
        if values.get(name) is None:
            raise UsageError(f"{path}{name}", None, "is required")


def as_mapping(path: str, value: object) -> Mapping[str, Any]:
    """The value, which must be an object.

    Raises:
        UsageError: it is none.
    """
    if not isinstance(value, Mapping):
        raise UsageError(path, value, "must be an object of fields")
    return value


def short(path: str, text: str) -> str:
    """The text, which must not be long.

    Raises:
        UsageError: it is.
    """
    if len(text) > LONGEST_TEXT:
        raise UsageError(path, text, f"must have {LONGEST_TEXT} characters at most")
    return text


def renamed(error: UsageError, field: str) -> UsageError:
    """The same error of a field's path."""
    return UsageError(field, error.given, error.allowed)


# Fields that decide what a model needs, and that hardly anybody leaves to their default.
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


# Similarity from which a name is taken for a misspelled one.
TYPO = 0.8


class NotCoveredError(TunerError):
    """A model type or a GPU that nothing is known of. Not a mistake, but no ground to predict."""


def uncovered_model_type(model_type: object) -> str:
    """Why a type is not covered; empty for one that is, or that is no type at all."""
    if not isinstance(model_type, str) or not model_type or model_type in ARCHITECTURES:
        return ""
    shown = model_type[:80]
    near = get_close_matches(shown, ARCHITECTURES, n=1, cutoff=0.75)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"model type {shown!r} is not covered{hint}; covered are {', '.join(ARCHITECTURES)}"


def uncovered_gpu(name: str, known: Iterable[str]) -> str:
    """Why a GPU that has no figures is not covered; empty for a misspelled name of the catalogue.

    A name is misspelled when it is like a known one and has the same numbers: ``h100-80bg`` is,
    ``h300`` and ``b300`` are other products.
    """
    shown = name[:80]
    if any(_misspelled(shown.lower(), one) for one in known):
        return ""
    return (
        f"GPU {shown!r} is not in the catalogue and comes without figures; give it as an object"
        " with name, memory_bytes and rates"
    )


def _misspelled(name: str, known: str) -> bool:
    same_numbers = re.sub(r"[^0-9]", "", name) == re.sub(r"[^0-9]", "", known)
    return same_numbers and SequenceMatcher(None, name, known).ratio() >= TYPO


T = TypeVar("T")

REQUIRED = ("workload", "cluster", "settings")
# Fields of a case. ``id`` may hold anything, and is only echoed.
OPTIONAL = frozenset({"id", "framework", "headroom", "memory_limit_gib", "script"})

# What a model is called whose configuration is given without ``model_name``.
INLINE_MODEL = "the model"
# Workloads, clusters and frameworks that are kept once read.
KEPT = 4096
# Characters of such a one; longer ones are read again.
LONGEST_KEPT = 16 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One settings of one question, to be predicted."""

    question: Question
    """Workload, cluster and framework; without restrictions of knobs."""
    settings: Settings
    """In canonical form."""
    headroom: float = HEADROOM
    """Share of the device's memory to leave free; not applied to ``memory_limit_gib``."""
    memory_limit_gib: float | None = None
    """Memory that one device may use, taken as it is."""
    script: Script = field(default_factory=Script)
    """What the user's training loop keeps beside the step."""
    notes: tuple[str, ...] = ()
    """What was written and is not used, or was left out and matters, and why."""

    @property
    def limit_bytes(self) -> int | None:
        """The limit in bytes."""
        return None if self.memory_limit_gib is None else round(self.memory_limit_gib * 2**30)


def read_case(values: Mapping[str, Any]) -> Case:
    """The case in a JSON object: ``workload``, ``cluster``, ``settings``, and if wanted
    ``framework``, ``headroom``, ``memory_limit_gib``, ``script`` and ``id``.

    Raises:
        UsageError: a field is wrong or missing, or the settings break a rule; with its path.
        NotCoveredError: all is in order, but nothing is known of the model type, of the GPU, or
            of the workload under the framework.
    """
    check_names("", values, REQUIRED, OPTIONAL)
    values = {name: value for name, value in values.items() if value is not None}
    workload = read_workload(values["workload"])
    cluster = read_cluster(values["cluster"])
    stack = _framework_here(values.get("framework", str(FrameworkName.TORCH)))
    written, given = read_settings(values["settings"])
    headroom = read_headroom(values.get("headroom", HEADROOM))
    limit_gib = read_limit_gib(values.get("memory_limit_gib"))
    script = Script.from_dict(values.get("script", {}))
    missing = [str(one) for one in (workload, cluster) if isinstance(one, NotCoveredError)]
    if isinstance(workload, NotCoveredError) or isinstance(cluster, NotCoveredError):
        raise NotCoveredError("; ".join(missing))
    assert not isinstance(stack, NotCoveredError)
    if reason := uncovered(workload, stack):
        raise NotCoveredError(reason)
    question = Question(workload=workload, cluster=cluster, framework=stack)
    settings, changed = canonical(question, written, given)
    return Case(
        question=question,
        settings=settings,
        headroom=headroom,
        memory_limit_gib=limit_gib,
        script=script,
        notes=(*changed, *_notes(values)),
    )


def _notes(values: Mapping[str, Any]) -> Iterator[str]:
    """Lists what was written and is not used, and what was left out and matters."""
    if "headroom" in values and values.get("memory_limit_gib") is not None:
        yield "headroom is not applied: memory_limit_gib is taken as it is"
    if note := default_note(values["workload"]["model"]):
        yield note


def canonical(
    question: Question, written: Settings, given: Collection[str]
) -> tuple[Settings, tuple[str, ...]]:
    """Legal settings with dead knobs collapsed, and a sentence for each that was written otherwise
    or whose default is refused.

    Raises:
        UsageError: they break a rule; the field is a path in the case.
    """
    try:
        settings = check_settings(question, written, given=given)
        kept = all(getattr(settings, name) == getattr(written, name) for name in given)
        if kept and settings.sync_each_batch == written.sync_each_batch:
            return settings, ()
        notes = settings_notes(question, written, given=given)
    except UsageError as error:
        raise renamed(error, rule_path(error.field)) from error
    return settings, tuple(note.why for note in notes)


def read_settings(value: object) -> tuple[Settings, frozenset[str]]:
    """Settings from an object of knobs, or from text such as ``sharding=ddp``; and the
    names of the knobs that were given.

    Raises:
        UsageError: no such knob, or a value that it cannot have.
    """
    try:
        if isinstance(value, str):
            text = short("settings", value)
            names = {part.partition("=")[0].strip() for part in text.split(",")}
            return parse_settings(text), frozenset(names & KNOBS.keys())
        knobs = as_mapping("settings", value)
        for name in knobs:
            check_knob(name, knobs[name])
        return Settings.from_dict(knobs), frozenset(knobs)
    except UsageError as error:
        field = error.field if error.field.startswith("settings") else f"settings.{error.field}"
        raise renamed(error, field) from error


def rule_path(field: str) -> str:
    """The path in a case of what a rule of the space names."""
    first = field.partition(" x ")[0]  # of a product of sizes
    if first in KNOBS:
        return f"settings.{first}"
    return "workload.global_batch_size" if field == "global_batch_size" else field


# --------------------------------------------------------------------------------------------
# The parts, each from its own JSON text
# --------------------------------------------------------------------------------------------


def _kept(read: Callable[[Any], T]) -> Callable[[object], T | NotCoveredError]:
    """``read``, once for each JSON value, its errors too.

    What is not covered is returned, so that the rest of a case is still looked at.
    """

    @lru_cache(maxsize=KEPT)
    def outcome(text: str) -> T | NotCoveredError | UsageError:
        try:
            return read(json.loads(text))
        except (NotCoveredError, UsageError) as error:
            return error

    def kept(value: object) -> T | NotCoveredError:
        text = json.dumps(value)
        read_now = outcome if len(text) <= LONGEST_KEPT else outcome.__wrapped__
        found = read_now(text)
        if isinstance(found, UsageError):
            raise renamed(found, found.field)
        return found

    return kept


@_kept
def read_workload(value: object) -> Workload:
    """Reads a workload; a model is a name of the catalogue or its configuration, never a path."""
    fields = as_mapping("workload", value)
    needed = ("model", "sequence_length", "global_batch_size")
    free = {"model_name", "optimizer", "precision", "reduce_dtype"}
    check_names("workload.", fields, needed, free)
    sequence, batch = fields["sequence_length"], fields["global_batch_size"]
    check_whole("workload.sequence_length", sequence, 2, LARGEST_SEQUENCE)
    check_whole("workload.global_batch_size", batch, 1, LARGEST_BATCH)
    reduced = fields.get("reduce_dtype")
    try:
        kinds: dict[str, Any] = {
            "optimizer": choice("optimizer", Optimizer, fields.get("optimizer", "adamw")),
            "precision": choice("precision", Precision, fields.get("precision", "bf16")),
            "reduce_dtype": None
            if reduced is None
            else choice("reduce_dtype", ReduceDtype, reduced),
        }
        model = _model_of(fields["model"], fields.get("model_name", INLINE_MODEL))
        return Workload(model=model, sequence_length=sequence, global_batch_size=batch, **kinds)
    except UsageError as error:
        inside = error.field.startswith("workload.")
        field = error.field if inside else f"workload.{error.field}"
        allowed = error.allowed + _by_default(fields["model"], error.field)
        raise UsageError(field, error.given, allowed) from error


def _by_default(model: object, field: str) -> str:
    """Says that the longest sequence is not the user's own figure; empty where it is."""
    longest = default_sizes(model).get("max_position_embeddings")
    if field != "sequence_length" or longest is None:
        return ""
    return f": without max_position_embeddings it has transformers' default, {longest}"


def _model_of(value: object, name: object) -> ModelConfig:
    if isinstance(value, str):
        if models.find(value) is not None:
            return published_model(value)
        also = "(or give the fields of its config.json)"
        raise UnknownNameError("model", value[:100], models.names(), also)
    config = as_mapping("model", value)
    if reason := uncovered_model_type(config.get("model_type")):
        raise NotCoveredError(reason)
    try:
        return read_model_config(config, name=str(name) if name is not None else INLINE_MODEL)
    except UsageError as error:
        path = {"model": "model", "model name": "model_name"}
        raise renamed(error, path.get(error.field, f"model.{error.field}")) from error


@_kept
def read_cluster(value: object) -> Cluster:
    """The cluster in a short spelling or an object of its fields, never in a file."""
    if not isinstance(value, str):
        fields = dict(as_mapping("cluster", value))
        gpu = fields.get("gpu")
        if isinstance(gpu, Mapping) and set(gpu) == {"name"}:
            gpu = fields["gpu"] = gpu["name"]  # without figures, it is just a name
        if isinstance(gpu, str):
            short("cluster.gpu", gpu)
        return _covered(lambda: Cluster.from_dict(fields))
    text = short("cluster", value)
    if text.strip().lower().endswith((".toml", ".json")):
        raise UsageError("cluster", text, "no file is read here: give the cluster's fields")
    return _covered(lambda: parse_cluster(text, allow_files=False))


def _covered(read: Callable[[], Cluster]) -> Cluster:
    try:
        return read()
    except UnknownNameError as error:
        if reason := uncovered_gpu(str(error.given), gpu_kinds()):
            raise NotCoveredError(reason) from error
        raise


@_kept
def _framework_here(value: object) -> Framework:
    return read_framework(value, _installed())


def read_framework(value: object, installed: Mapping[str, str]) -> Framework:
    """The framework in a name, or in an object of ``name`` and stated ``versions``.

    Args:
        value: as it is written.
        installed: versions of packages for which none is stated.

    Raises:
        UsageError: as :func:`tuner.core.framework.framework`, with the field's path.
    """
    if isinstance(value, str):
        return framework(short("framework", value), None, installed)
    fields = as_mapping("framework", value)
    check_names("framework.", fields, ("name",), {"versions"})
    if not isinstance(fields["name"], str):
        allowed = f"must be one of {', '.join(FrameworkName)}"
        raise UsageError("framework.name", fields["name"], allowed)
    versions = as_mapping("framework.versions", fields.get("versions", {}))
    try:
        return framework(short("framework.name", fields["name"]), versions, installed)
    except UsageError as error:
        path = {"framework": "framework.name", "framework_version": "framework.versions"}
        raise renamed(error, path.get(error.field, error.field)) from error


@cache
def _installed() -> Mapping[str, str]:
    return installed_versions()
