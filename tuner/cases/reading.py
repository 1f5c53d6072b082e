"""A case as a user writes it, read into a question, settings and a limit.

What is wrong is named with its path, such as ``workload.sequence_length``. Workloads, clusters and
frameworks are kept by their text: files of cases repeat them.
"""

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any, TypeVar

from tuner.cases.coverage import NotCoveredError, uncovered_gpu, uncovered_model_type
from tuner.cases.defaults import default_note, default_sizes
from tuner.cases.kinds import (
    as_mapping,
    check_knob,
    check_names,
    check_whole,
    read_headroom,
    read_limit_gib,
    renamed,
    short,
)
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
KEPT = 4096
"""Workloads, clusters and frameworks that are kept once read."""
LONGEST_KEPT = 16 * 1024
"""Characters of such a one; longer ones are read again."""


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
        raise renamed(error, rule_path(error.field)) from error
    return settings, tuple(note.why for note in notes)


def read_settings(value: object) -> tuple[Settings, frozenset[str]]:
    """Settings from an object of knobs, or from text such as ``sharding=ddp,tp_size=2``; and the
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
        text = json.dumps(value)
        read_now = outcome if len(text) <= LONGEST_KEPT else outcome.__wrapped__
        found = read_now(text)
        if isinstance(found, UsageError):
            raise renamed(found, found.field)
        return found

    return kept


@_kept
def read_workload(value: object) -> Workload:
    """What is trained; a model is a name of the catalogue or its configuration, never a path."""
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
        UsageError: as :func:`tuner.framework.framework`, with the field's path.
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
