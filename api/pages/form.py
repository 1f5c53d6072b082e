"""The form that starts a study: read into the JSON of ``POST /tune``, and shown again as typed.

Names of fields are the paths of that JSON; ``form.toml`` has their words, and the request's own
JSON schema and the table of knobs their kinds and choices. :mod:`tuner.client.request` alone
decides what is right: text that cannot be what a field wants is handed on as text, so that it is
refused there, in the same words as anywhere.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any, NamedTuple

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.client.request import TuneRequest, read_request
from tuner.core.cluster import Device, parse_cluster
from tuner.core.configuration import KNOBS
from tuner.core.framework import parse_stated_versions
from tuner.core.measurement import Fidelity
from tuner.core.study import HEADROOM, MOST_PROBES, SamplerName, Study
from tuner.core.workload import Workload
from tuner.errors import UsageError
from tuner.model import published_model
from tuner.text import DoubledNameError, read_duration, read_json, read_length, show, three_digits

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


# -- what was typed ---------------------------------------------------------------------------

# What was typed, by field; a field of flags may have several values.
Texts = Mapping[str, Sequence[str]]
# Fields whose names are no paths of the request.
WHOLE_PATHS = {CONFIG, CLUSTER, FRAMEWORK, VERSIONS}


class Wrong(NamedTuple):
    """An error in words, and the name of its field; empty for what is of none of them."""

    name: str
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TypedForm:
    """A form as it was read."""

    texts: Texts
    values: Mapping[str, Any]
    """JSON values of the fields that are filled in and could be read."""
    wrong: tuple[Wrong, ...]

    @property
    def request(self) -> dict[str, Any]:
        values = self.values
        request: dict[str, Any] = {"workload": {}, "cluster": {}}
        for name in values.keys() - WHOLE_PATHS:
            table = request
            *parents, last = name.split(".")
            for parent in parents:
                table = table.setdefault(parent, {})
            table[last] = values[name]
        if CONFIG in values and MODEL not in values:
            request["workload"]["model"] = values[CONFIG]
        if FRAMEWORK in values:
            request["framework"] = values[FRAMEWORK]
        if VERSIONS in values:
            request["framework"] = {"name": values.get(FRAMEWORK), "versions": values[VERSIONS]}
        counts = nodes, ranks = values.get(NODES), values.get(GPUS_PER_NODE)
        if CLUSTER in values:
            request["cluster"] = values[CLUSTER]
        elif str(values.get(GPU)).lower() == CPU:
            if all(isinstance(count, int) and 1 <= count < 10**6 for count in counts):
                request["cluster"] = f"cpu:{ranks}" if nodes == 1 else f"{nodes}x{ranks}xcpu"
            else:
                # The counts are wrong, which is said of any kind.
                request["cluster"]["gpu"] = next(iter(gpu_kinds()))
        return request

    def fills(self, name: str) -> bool:
        """True of a field that is filled in, rightly or not."""
        return name in self.values or any(one.name == name for one in self.wrong)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownField:
    """One field as it is shown."""

    spec: FieldSpec
    values: tuple[str, ...]
    errors: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return self.values[0] if self.values else ""

    @property
    def described_by(self) -> str:
        """Ids of what explains it, as ``aria-describedby`` has them."""
        ids = [f"{self.spec.id}-error"] if self.errors else []
        return " ".join([*ids, f"{self.spec.id}-hint"] if self.spec.hint else ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownGroup:
    """Fields under one heading, as they are shown."""

    group: FieldGroup
    controls: tuple[ShownField, ...]
    folded: tuple[ShownField, ...]

    @property
    def is_open(self) -> bool:
        """True where the further ones are shown without being asked for."""
        return any(one.errors or any(one.values) for one in self.folded)


class ShownForm(NamedTuple):
    """The whole form as it is shown."""

    sections: tuple[ShownGroup, ...]
    errors: tuple[tuple[str, str], ...] = ()
    """Errors in the fields' order: the id to go to, empty for none, and the words."""


# -- what was typed, read into a request --------------------------------------------------------


def texts_of(pairs: Iterable[tuple[str, object]]) -> dict[str, list[str]]:
    """The texts of a form's or a query's pairs; other fields than the form's are left out."""
    texts: dict[str, list[str]] = {}
    for name, value in pairs:
        if name in specs() and isinstance(value, str):
            texts.setdefault(name, []).append(value)
    return texts


def initial_texts() -> dict[str, list[str]]:
    return {name: [spec.initial] for name, spec in specs().items() if spec.initial}


def read_form(texts: Texts) -> TypedForm:
    """The values of a form's fields, and what is wrong with those that have none."""
    values: dict[str, Any] = {}
    wrong = []
    for name, spec in specs().items():
        typed = [text.strip() for text in texts.get(name, ()) if text.strip()]
        if typed:
            try:
                values[name] = _value_of(spec, typed)
            except UsageError as error:
                wrong.append(Wrong(name=name, said=_sentence(error.allowed)))
    is_pasted = CONFIG in values or any(one.name == CONFIG for one in wrong)
    if is_pasted and MODEL in values:
        said = "A configuration is pasted too: empty one of the two"
        wrong.append(Wrong(name=MODEL, said=said))
        values.pop(CONFIG, None)
    if not is_pasted:
        values.pop(MODEL_NAME, None)  # what a browser kept, of a configuration that is gone
    return TypedForm(texts=texts, values=values, wrong=tuple(wrong))


def all_wrong(form: TypedForm) -> tuple[Wrong, ...]:
    """Everything that is wrong with a form, as far as it is seen before it is known who answers."""
    wrong = {one.name: one for one in form.wrong}
    try:
        read_request({name: value for name, value in form.request.items() if value is not None})
    except UsageError as error:
        for one in error.errors:
            placed = place_of(form, one)
            wrong.setdefault(placed.name, placed)
    return tuple(wrong.values())


def place_of(form: TypedForm, error: UsageError) -> Wrong:
    """The field that an error is about, and what to say beside it."""
    places = {name: name for name in specs()}
    places |= {"workload": MODEL, CLUSTER: GPU}
    places |= {"framework": FRAMEWORK, "framework_version": VERSIONS}
    if form.fills(CONFIG) and MODEL not in form.values:
        places |= dict.fromkeys((MODEL, "workload", "body"), CONFIG)
    if CLUSTER in form.values:
        places[CLUSTER] = CLUSTER
        for name in (GPU, NODES, GPUS_PER_NODE):
            del places[name]
    path = error.field
    while path and path not in places:
        path = path.rpartition(".")[0]
    name = places.get(path, "")
    rest = error.field[len(path) :].lstrip(".")
    typed = " ".join(form.texts.get(name, ())).strip()
    is_typed = error.given is None or error.given in (typed, _number(typed))
    said = error.allowed if is_typed else error.detail
    return Wrong(name=name, said=f"{rest}: {said}" if rest else _sentence(said))


def _sentence(words: str) -> str:
    """With a capital, unless it begins with a name."""
    return words[:1].upper() + words[1:] if words.partition(" ")[0].isalpha() else words


# -- texts as values --------------------------------------------------------------------------


def _value_of(spec: FieldSpec, typed: Sequence[str]) -> Any:
    text = typed[0]
    match spec.kind:
        case Kind.WHOLE:
            is_length = spec.name == "workload.sequence_length" and text[-1:] in "kK"
            return read_length(spec.name, text) if is_length else _whole(text)
        case Kind.NUMBER:
            return _number(text)
        case Kind.DURATION:
            return read_duration(spec.name, text)
        case Kind.FLAGS:
            return [{"true": True, "false": False}.get(one, one) for one in typed]
        case Kind.WHOLES:
            return [_whole(one) for one in re.split(r"[\s,]+", text) if one]
        case Kind.OBJECT:
            value = _json(spec.name, text)
            if not isinstance(value, Mapping):
                raise UsageError(spec.name, value, "must be an object of fields")
            return value
        case Kind.CLUSTER:
            return _json(spec.name, text) if text.startswith("{") else text
        case Kind.VERSIONS:
            return parse_stated_versions(one for one in re.split(r"[\s,]+", text) if one)
        case Kind.TEXT | Kind.CHOICE:
            return text


def _whole(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text


def _number(text: str) -> float | str:
    return float(text) if re.fullmatch(r"[+-]?(?=.*[0-9])[0-9]{0,18}\.?[0-9]{0,18}", text) else text


def _json(name: str, text: str) -> Any:
    try:
        return read_json(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise UsageError(name, text, f"is not JSON: {error.msg.lower()} ({place})") from error
    except DoubledNameError as error:
        raise UsageError(name, text, f"{error.path[:80]} is there twice") from error
    except (ValueError, RecursionError) as error:
        why = str(error)[:80] or "it is too deep"
        raise UsageError(name, text, f"is not JSON that can be read: {why}") from error


# -- the form, shown ----------------------------------------------------------------------------


def form_of(texts: Texts | None, wrong: Sequence[Wrong] = ()) -> ShownForm:
    """The form with what was typed, or as it begins, and what is wrong beside the fields."""

    def shown(fields: Iterable[FieldSpec]) -> tuple[ShownField, ...]:
        return tuple(
            ShownField(
                spec=spec,
                values=tuple([spec.initial] if texts is None else texts.get(spec.name, ())),
                errors=tuple(dict.fromkeys(one.said for one in wrong if one.name == spec.name)),
            )
            for spec in fields
        )

    sections = tuple(
        ShownGroup(group=group, controls=shown(group.fields), folded=shown(group.folded))
        for group in groups()
    )
    errors = [("", _sentence(one.said)) for one in wrong if one.name not in specs()]
    for section in sections:
        for field in (*section.controls, *section.folded):
            errors += [(field.spec.id, f"{field.spec.label}: {said}") for said in field.errors]
    return ShownForm(sections=sections, errors=tuple(errors))


# -- a study, as it would be typed --------------------------------------------------------------


def _parts_of(workload: Workload) -> dict[str, str]:
    """The texts of an adapter, of frozen parts and of packing, where there are any."""
    texts: dict[str, str] = {}
    if workload.adapter is not None:
        adapter = workload.adapter.as_dict()
        names = {name: ",".join(v) for name, v in adapter.items() if isinstance(v, list)}
        adapter |= names
        texts |= {f"workload.adapter.{name}": show(value) for name, value in adapter.items()}
    if workload.image_tokens:
        texts["workload.image_tokens"] = str(workload.image_tokens)
    if workload.frozen:
        texts["workload.frozen"] = ",".join(workload.frozen)
    if workload.packing is not None:
        texts["workload.packing.variant"] = str(workload.packing.variant)
        if documents := workload.packing.as_dict().get("documents"):
            texts["workload.packing.documents"] = json.dumps(documents)
    return texts


def texts_of_study(study: Study) -> dict[str, list[str]]:
    """The form as it would ask a study's question again, within its limits."""
    question, limits = study.question, study.limits
    workload, cluster, model = question.workload, question.cluster, question.workload.model
    texts: dict[str, Any] = {
        f"workload.{name}": str(getattr(workload, name))
        for name in (
            "sequence_length", "global_batch_size", "optimizer", "precision", "reduce_dtype",
            "loss", "tensor_parallel",
        )
    }  # fmt: skip
    texts |= _parts_of(workload)
    texts["workload.task"] = str(model.task)
    texts[FRAMEWORK] = str(question.framework.name)
    known = models.find(model.name) if model.is_causal_lm else None
    if known and published_model(known).as_config() == model.as_config():
        texts[MODEL] = model.name
    else:
        texts |= {CONFIG: json.dumps(model.as_config(), indent=2), MODEL_NAME: model.name}
    # CPU ranks are of whichever worker takes them, so their short spelling says all.
    is_cpu = cluster.gpu.device is Device.CPU
    if is_cpu or (cluster.gpu.name in gpu_kinds() and parse_cluster(cluster.name) == cluster):
        texts[GPU] = CPU if is_cpu else cluster.gpu.name
        texts |= {NODES: str(cluster.nodes), GPUS_PER_NODE: str(cluster.gpus_per_node)}
    else:
        texts[CLUSTER] = json.dumps(cluster.as_dict(), indent=2)
    texts |= {"fidelity": str(limits.fidelity), "tolerance": f"{limits.tolerance:g}"}
    texts["pool"] = limits.pool
    if limits.sampler is not SamplerName.COST_MODEL:
        texts["sampler"] = str(limits.sampler)
    if limits.max_probes != MOST_PROBES[limits.fidelity]:  # a default has further ones with it
        texts["budget.max_probes"] = str(limits.max_probes)
    for name, seconds in (("budget.wall_s", limits.wall_s), ("budget.gpu_s", limits.device_s)):
        if seconds is not None:
            texts[name] = f"{seconds:g}s"
    if limits.memory_limit_bytes is not None:
        texts["memory_limit_gib"] = f"{limits.memory_limit_bytes / 2**30:.10g}"
    elif limits.headroom != HEADROOM:
        texts["headroom"] = f"{limits.headroom:g}"
    for name, values in question.knobs.items():
        shown = [show(value) for value in values]
        is_list = specs()[f"knobs.{name}"].kind is Kind.WHOLES
        texts[f"knobs.{name}"] = ", ".join(shown) if is_list else shown
    return {name: value if isinstance(value, list) else [value] for name, value in texts.items()}
