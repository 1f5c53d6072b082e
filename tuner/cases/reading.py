"""A case as a user writes it, read into a question, settings and a limit.

What is wrong is named with its path, such as ``workload.sequence_length``. Workloads, clusters and
frameworks are kept by their text: files of cases repeat them.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeGuard, TypeVar

from tuner.cases.coverage import NotCoveredError, uncovered_gpu, uncovered_model_type
from tuner.cases.defaults import default_note, default_sizes
from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.cluster import Cluster, parse_cluster
from tuner.cost.coverage import uncovered
from tuner.cost.script import Script
from tuner.errors import UnknownNameError, UsageError
from tuner.framework import Framework, FrameworkName, framework, installed_versions
from tuner.model import ModelConfig, read_model_config
from tuner.settings import KNOBS, Settings, parse_settings
from tuner.space import check_settings, settings_notes
from tuner.study import HEADROOM, Question
from tuner.workload import (
    LARGEST_BATCH,
    LARGEST_SEQUENCE,
    Optimizer,
    Precision,
    ReduceDtype,
    Workload,
    choice,
)

T = TypeVar("T")

REQUIRED = ("workload", "cluster", "settings")
OPTIONAL = frozenset({"id", "framework", "headroom", "memory_limit_gib", "script"})
"""Fields of a case. ``id`` may hold anything, and is only echoed."""

INLINE_MODEL = "the model"
"""What a model is called whose configuration is given without ``model_name``."""
LONGEST_TEXT = 1000
"""Characters of a name or of settings written as text."""
LARGEST_GIB = 2**20
"""Of a memory limit; more is a mistake in units."""
KEPT = 4096
"""Workloads, clusters and frameworks that are kept once read."""


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
    _check_names("", values, REQUIRED, OPTIONAL)
    values = {name: value for name, value in values.items() if value is not None}
    workload = _workload_of(values["workload"])
    cluster = _cluster_of(values["cluster"])
    stack = _framework_of(values.get("framework", str(FrameworkName.TORCH)))
    written, given = read_settings(values["settings"])
    headroom = _headroom(values.get("headroom", HEADROOM))
    limit_gib = _limit_gib(values.get("memory_limit_gib"))
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
    """What was written and is not used, and what was left out and matters."""
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
        raise _renamed(error, _rule_path(error.field)) from error
    return settings, tuple(note.why for note in notes)


def read_settings(value: object) -> tuple[Settings, frozenset[str]]:
    """Settings from an object of knobs, or from text such as ``sharding=ddp,tp_size=2``; and the
    names of the knobs that were given.

    Raises:
        UsageError: no such knob, or a value that it cannot have.
    """
    try:
        if isinstance(value, str):
            text = _short("settings", value)
            names = {part.partition("=")[0].strip() for part in text.split(",")}
            return parse_settings(text), frozenset(names & KNOBS.keys())
        knobs = _mapping("settings", value)
        for name in knobs:
            _check_kind(name, knobs[name])
        return Settings.from_dict(knobs), frozenset(knobs)
    except UsageError as error:
        field = error.field if error.field.startswith("settings") else f"settings.{error.field}"
        raise _renamed(error, field) from error


def _check_kind(name: str, value: object) -> None:
    """Refuse what the text form may have and JSON may not: numbers and flags as strings."""
    if name not in KNOBS:
        raise UsageError(f"settings.{name}", value, f"no such knob; there are {', '.join(KNOBS)}")
    if KNOBS[name] is bool and not isinstance(value, bool):
        raise UsageError(name, value, "must be true or false")
    if KNOBS[name] is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(name, value, "must be a positive integer")


def _rule_path(field: str) -> str:
    """The path in a case of what a rule of the space names."""
    if field in KNOBS:
        return f"settings.{field}"
    return {
        "global_batch_size": "workload.global_batch_size",
        "tp_size x pp_size": "settings.tp_size",
    }.get(field, field)


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
        found = outcome(json.dumps(value))
        if isinstance(found, UsageError):
            raise _renamed(found, found.field)
        return found

    return kept


@_kept
def _workload_of(value: object) -> Workload:
    fields = _mapping("workload", value)
    needed = ("model", "sequence_length", "global_batch_size")
    free = {"model_name", "optimizer", "precision", "reduce_dtype"}
    _check_names("workload.", fields, needed, free)
    sequence, batch = fields["sequence_length"], fields["global_batch_size"]
    _check_whole("workload.sequence_length", sequence, 2, LARGEST_SEQUENCE)
    _check_whole("workload.global_batch_size", batch, 1, LARGEST_BATCH)
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
    """That the longest sequence is not the user's own figure; empty where it is."""
    longest = default_sizes(model).get("max_position_embeddings")
    if field != "sequence_length" or longest is None:
        return ""
    return f": without max_position_embeddings it has transformers' default, {longest}"


def _model_of(value: object, name: object) -> ModelConfig:
    if isinstance(value, str):
        if models.find(value) is not None:
            return models.read(value)
        also = "(or give the fields of its config.json)"
        raise UnknownNameError("model", value[:100], models.names(), also)
    config = _mapping("model", value)
    if reason := uncovered_model_type(config.get("model_type")):
        raise NotCoveredError(reason)
    try:
        return read_model_config(config, name=str(name) if name is not None else INLINE_MODEL)
    except UsageError as error:
        path = {"model": "model", "model name": "model_name"}
        raise _renamed(error, path.get(error.field, f"model.{error.field}")) from error


@_kept
def _cluster_of(value: object) -> Cluster:
    if not isinstance(value, str):
        fields = dict(_mapping("cluster", value))
        gpu = fields.get("gpu")
        if isinstance(gpu, Mapping) and set(gpu) == {"name"}:
            gpu = fields["gpu"] = gpu["name"]  # without figures, it is just a name
        if isinstance(gpu, str):
            _short("cluster.gpu", gpu)
        return _covered(lambda: Cluster.from_dict(fields))
    text = _short("cluster", value)
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
def _framework_of(value: object) -> Framework:
    if isinstance(value, str):
        return framework(_short("framework", value), None, _installed())
    fields = _mapping("framework", value)
    _check_names("framework.", fields, ("name",), {"versions"})
    if not isinstance(fields["name"], str):
        allowed = f"must be one of {', '.join(FrameworkName)}"
        raise UsageError("framework.name", fields["name"], allowed)
    versions = _mapping("framework.versions", fields.get("versions", {}))
    try:
        return framework(_short("framework.name", fields["name"]), versions, _installed())
    except UsageError as error:
        path = {"framework": "framework.name", "framework_version": "framework.versions"}
        raise _renamed(error, path.get(error.field, error.field)) from error


@cache
def _installed() -> Mapping[str, str]:
    return installed_versions()


# --------------------------------------------------------------------------------------------
# Kinds of values
# --------------------------------------------------------------------------------------------


def _headroom(value: object) -> float:
    if not _is_number(value) or not 0 <= value < 1:
        raise UsageError("headroom", value, "must be a number from 0 to below 1, such as 0.05")
    return float(value)


def _limit_gib(value: object) -> float | None:
    if value is None:
        return None
    if not _is_number(value) or not 2**-30 <= value <= LARGEST_GIB:
        allowed = f"must be a number of GiB above 0 and up to {LARGEST_GIB}"
        raise UsageError("memory_limit_gib", value, allowed)
    return float(value)


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_whole(path: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise UsageError(path, value, f"must be an integer from {least} to {most}")


def _check_names(
    path: str, values: Mapping[str, Any], required: Collection[str], optional: Collection[str]
) -> None:
    for name in values:
        if name not in required and name not in optional:
            known = ", ".join(sorted({*required, *optional}))
            raise UsageError(f"{path}{name}", values[name], f"no such field; there are {known}")
    for name in required:
        if values.get(name) is None:
            raise UsageError(f"{path}{name}", None, "is required")


def _mapping(path: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(path, value, "must be an object of fields")
    return value


def _short(path: str, text: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise UsageError(path, text, f"must have {LONGEST_TEXT} characters at most")
    return text


def _renamed(error: UsageError, field: str) -> UsageError:
    return UsageError(field, error.given, error.allowed)
