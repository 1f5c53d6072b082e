"""The form's fields: their names are the paths of the JSON request that ``POST /tune`` takes.

``form.toml`` has their words. Their kinds and choices come from the request's own JSON schema, and
from the table of knobs.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.client.request import TuneRequest
from tuner.core.configuration import KNOBS
from tuner.core.measurement import Fidelity
from tuner.core.study import HEADROOM, MOST_PROBES, SamplerName
from tuner.text import three_digits

# What is chosen as GPU kind for ranks on the workers' processors.
CPU = "cpu"
MODEL, CONFIG, MODEL_NAME = "workload.model", "config", "workload.model_name"
GPU, NODES, GPUS_PER_NODE = "cluster.gpu", "cluster.nodes", "cluster.gpus_per_node"
CLUSTER = "cluster"
FRAMEWORK, VERSIONS = "framework.name", "framework.versions"
# A choice that is the default, and sent as nothing.
UNSAID = ("sampler", SamplerName.COST_MODEL)


class Kind(StrEnum):
    """The ways to read a field's text."""

    TEXT = "text"  # as it is
    WHOLE = "whole"  # an integer
    NUMBER = "number"  # a number
    DURATION = "duration"  # seconds, or such as 10m
    CHOICE = "choice"  # one of its options
    FLAGS = "flags"  # any of its options
    WHOLES = "wholes"  # several integers
    OBJECT = "object"  # a JSON object
    CLUSTER = "cluster"  # a JSON object, or a cluster's short spelling
    VERSIONS = "versions"  # such as torch=2.13.0, accelerate=1.15.0


class Choice(NamedTuple):
    """One value that can be chosen, and the words that are read."""

    value: str
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """One field of the form: its control, and what it says of itself."""

    name: str
    """Of its control, and in most cases the path in the request."""
    label: str
    kind: Kind = Kind.TEXT
    hint: str = ""
    options: tuple[Choice, ...] = ()
    initial: str = ""
    example: str = ""

    @property
    def id(self) -> str:
        return f"f-{self.name.replace('.', '-').replace('_', '-')}"

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(option.value for option in self.options)

    @property
    def is_offered(self) -> bool:
        """True where other text than its options is taken too."""
        return self.kind is Kind.TEXT and bool(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldGroup:
    """Fields under one heading: some are always shown, others when somebody opens ``fold``."""

    title: str
    fields: tuple[FieldSpec, ...] = ()
    folded: tuple[FieldSpec, ...] = ()
    fold: str = ""
    note: str = ""


def _at(path: str) -> Mapping[str, Any]:
    """The schema of what is at a path of the request: of several forms that of an object, or the
    first that is not null."""
    found = schema = _schema()
    for name in (*path.split("."), None):
        while "$ref" in found or "anyOf" in found:
            forms = [
                schema["$defs"][one["$ref"].rpartition("/")[2]] if "$ref" in one else one
                for one in found.get("anyOf", [found])
            ]
            forms = [one for one in forms if one.get("type") != "null"]
            found = next((one for one in forms if "properties" in one), forms[0])
        if name is not None:
            found = found["properties"][name]
    return found


@cache
def form_table() -> dict[str, Any]:
    """The words of the form, as they are written down."""
    return tomllib.loads((files("api.pages") / "form.toml").read_text("utf-8"))


@cache
def _schema() -> Mapping[str, Any]:
    return TuneRequest.model_json_schema()


def _knob(name: str) -> FieldSpec:
    knob, path = KNOBS[name], f"knobs.{name}"
    options = tuple(Choice(str(value), label) for value, label in knob.values.items())
    if knob.kind is bool:
        options = (Choice("true", "true"), Choice("false", "false"))
    # One name everywhere, the command line's; beside it what it is.
    said: dict[str, Any] = {"name": path, "label": name, "hint": knob.label}
    if options:
        return FieldSpec(**said, kind=Kind.FLAGS, options=options)
    return FieldSpec(**said, kind=Kind.WHOLES, example="any, or such as 1, 2, 4")


@cache
def specs() -> Mapping[str, FieldSpec]:
    """All fields by name, in order."""
    return {spec.name: spec for group in groups() for spec in (*group.fields, *group.folded)}


@cache
def groups() -> tuple[FieldGroup, ...]:
    """The whole form. The catalogues are read once."""
    table = form_table()
    defaults = {
        "most": MOST_PROBES[Fidelity.MEASURED],
        "most_predicted": MOST_PROBES[Fidelity.PREDICTED],
        "headroom": f"{HEADROOM:g}",
    }
    counts = {name: models.entry(name)["parameters"] for name in models.names()}
    offered = {
        MODEL: tuple(
            Choice(name, f"{three_digits(n / unit)} {letter} parameters")
            for name, n in counts.items()
            for unit, letter in [(1e9, "B") if n >= 1e9 else (1e6, "M")]
        ),
        GPU: (
            *(
                Choice(name, f"{kind.title}, {kind.memory_bytes / 2**30:.1f} GiB")
                for name, kind in gpu_kinds().items()
            ),
            Choice(CPU, "CPU ranks"),
        ),
    }

    def field(given: Mapping[str, str]) -> FieldSpec:
        path = given["name"]
        said: dict[str, Any] = {
            name: Template(text).substitute(defaults) for name, text in given.items()
        }
        said["options"] = offered.get(path, ())
        if "kind" not in given:
            found = _at(path)
            kinds = {"integer": Kind.WHOLE, "number": Kind.NUMBER}
            said["kind"] = kinds.get(found.get("type", ""), Kind.TEXT)
            if "enum" in found:
                words = table["words"].get(path, {})
                values = [one for one in found["enum"] if (path, one) != UNSAID]
                values = ["", *values] if "" in words else values
                said["kind"] = Kind.CHOICE
                said["options"] = tuple(Choice(one, words.get(one, one)) for one in values)
        return FieldSpec(**{**said, "kind": Kind(said["kind"])})

    return tuple(
        FieldGroup(
            title=group["title"],
            fold=group.get("fold", ""),
            note=group.get("note", ""),
            fields=tuple(map(field, group.get("fields", ()))),
            folded=(
                *(map(_knob, KNOBS) if group.get("has_knobs") else ()),
                *map(field, group.get("folded", ())),
            ),
        )
        for group in table["groups"]
    )
