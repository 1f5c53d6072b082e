"""The form that starts a study: read into the JSON of ``POST /tune``, and shown again as typed.

What is right is decided by :mod:`tuner.request` alone. Text that cannot be what a field wants is
handed on as text, so that it is refused there, in the same words as anywhere.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.pages.form_fields import (
    CLUSTER,
    CONFIG,
    CPU,
    FRAMEWORK,
    GPU,
    GPUS_PER_NODE,
    MODEL,
    MODEL_NAME,
    NODES,
    VERSIONS,
    Group,
    Spec,
    groups,
    specs,
)
from api.pages.form_text import number_of, value_of
from tuner.cases.kinds import renamed
from tuner.catalog.gpus import gpu_kinds
from tuner.errors import UsageError
from tuner.framework import FrameworkName
from tuner.request import read_request
from tuner.settings import knob_value
from tuner.workload import LARGEST_SEQUENCE, choice

Texts = Mapping[str, Sequence[str]]
"""What was typed, by field; a field of flags may have several values."""

MOST_ERRORS = 40
"""Errors that are looked for in one form."""
ANY_MODEL: Mapping[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 128,
    "max_position_embeddings": LARGEST_SEQUENCE,
}
"""Stands for a model that is wrong, so that the other fields are looked at too."""
RIGHT: Mapping[str, object] = {
    "workload.model": ANY_MODEL,
    "workload.sequence_length": 2,
    "workload.global_batch_size": 1,
    "cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": next(iter(gpu_kinds()))},
    "cluster.nodes": 1,
    "cluster.gpus_per_node": 1,
    "cluster.gpu": next(iter(gpu_kinds())),
    "framework": "torch",
}
"""What stands for further required fields that are wrong; others are left out then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """What is wrong with one field."""

    name: str
    """The field's; empty for what is of none of them."""
    said: str
    """In words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A form as it was read."""

    texts: Texts
    """What was typed."""
    request: Mapping[str, Any]
    """The JSON object that asks for it."""
    places: Mapping[str, str]
    """Which field a path of the request came from."""
    wrong: tuple[Wrong, ...] = ()
    """What could not even be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One field as it is shown."""

    spec: Spec
    """What it is."""
    values: tuple[str, ...]
    """What it holds."""
    errors: tuple[str, ...] = ()
    """What is wrong with it."""

    @property
    def text(self) -> str:
        """The one value that it holds."""
        return self.values[0] if self.values else ""

    @property
    def described_by(self) -> str:
        """Ids of what explains it, as ``aria-describedby`` has them."""
        ids = [f"{self.spec.id}-error"] if self.errors else []
        return " ".join([*ids, f"{self.spec.id}-hint"] if self.spec.hint else ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Fields under one heading, as they are shown."""

    group: Group
    """What they are."""
    controls: tuple[Control, ...]
    """Those that are always shown, in order."""
    folded: tuple[Control, ...]
    """Further ones, in order."""

    @property
    def is_open(self) -> bool:
        """Whether the further ones are shown without being asked for."""
        return any(one.errors or any(one.values) for one in self.folded)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The whole form as it is shown."""

    sections: tuple[Section, ...]
    """In order."""
    errors: tuple[tuple[str, str], ...] = ()
    """What is wrong, in the fields' order: the id to go to, empty for none, and the words."""


# -- what was typed, read into a request --------------------------------------------------------


def texts_of(pairs: Iterable[tuple[str, object]]) -> dict[str, list[str]]:
    """What was typed, of a form's or a query's pairs; other fields than the form's are left out."""
    texts: dict[str, list[str]] = {}
    for name, value in pairs:
        if name in specs() and isinstance(value, str):
            texts.setdefault(name, []).append(value)
    return texts


def initial_texts() -> dict[str, list[str]]:
    """What an empty form holds."""
    return {name: [spec.initial] for name, spec in specs().items() if spec.initial}


def read_form(texts: Texts) -> Asked:
    """The request that a form asks for. Empty fields are left out of it."""
    values, wrong = _values(texts)
    places = {path: path for path in specs()}
    request: dict[str, Any] = {}
    for name in values.keys() - {CONFIG, CLUSTER, FRAMEWORK, VERSIONS}:
        _put(request, name, values[name])
    _put_model(request, values, places, wrong)
    _put_cluster(request, values, places)
    _put_framework(request, values, places)
    return Asked(texts=texts, request=request, places=places, wrong=tuple(wrong))


def all_wrong(asked: Asked) -> tuple[Wrong, ...]:
    """Everything that :func:`tuner.request.read_request` finds wrong with a form's request.

    It stops at the first error; so what is wrong is replaced by what is right, or left out, and
    the request is read again.
    """
    wrong = list(asked.wrong)
    request = json.loads(json.dumps(asked.request))
    for one in asked.wrong:
        _mend(request, asked, one.name)
    seen = set()
    while len(wrong) < MOST_ERRORS:
        try:
            _check(request)
        except UsageError as error:
            found = place_of(asked, error)
            if (found.name, error.field) in seen:
                break  # putting it right did not help
            seen.add((found.name, error.field))
            wrong.append(found)
            _mend(request, asked, found.name)
        else:
            break
    return tuple(wrong)


def _check(request: Mapping[str, Any]) -> None:
    """What can be said of a request before it is known who answers it.

    Raises:
        UsageError: with the path of what is wrong first.
    """
    asked = read_request(request)
    stack = asked.framework
    choice(FRAMEWORK, FrameworkName, stack["name"] if isinstance(stack, Mapping) else stack)
    for name, values in asked.knobs.items():
        for value in values:
            try:
                knob_value(name, value)
            except UsageError as error:
                raise renamed(error, f"knobs.{name}") from error


def place_of(asked: Asked, error: UsageError) -> Wrong:
    """The field that an error is about, and what to say beside it."""
    path = error.field
    while path and path not in asked.places:
        path = path.rpartition(".")[0]
    name = asked.places.get(path, "")
    rest = error.field[len(path) :].lstrip(".")
    typed = " ".join(asked.texts.get(name, ())).strip()
    is_typed = error.given is None or error.given in (typed, number_of(typed))
    said = error.allowed if is_typed else error.detail
    return Wrong(name=name, said=f"{rest}: {said}" if rest else _sentence(said))


def _sentence(words: str) -> str:
    """With a capital, unless it begins with a name."""
    return words[:1].upper() + words[1:] if words.partition(" ")[0].isalpha() else words


def _values(texts: Texts) -> tuple[dict[str, Any], list[Wrong]]:
    """Values of the fields that are not empty, and what is wrong with those that have none."""
    values: dict[str, Any] = {}
    wrong = []
    for name, spec in specs().items():
        typed = [text.strip() for text in texts.get(name, ())]
        typed = [text for text in typed if text]
        if not typed:
            continue
        try:
            values[name] = value_of(spec, typed)
        except UsageError as error:
            wrong.append(Wrong(name=name, said=_sentence(error.allowed)))
    return values, wrong


def _put(request: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        request = request.setdefault(parent, {})
    request[last] = value


def _put_model(
    request: dict[str, Any], values: dict[str, Any], places: dict[str, str], wrong: list[Wrong]
) -> None:
    """The model's name, or its configuration; not both."""
    workload = request.setdefault("workload", {})
    is_pasted = CONFIG in values or any(one.name == CONFIG for one in wrong)
    if is_pasted and MODEL in values:
        said = "A configuration is pasted too: empty one of the two"
        wrong.append(Wrong(name=MODEL, said=said))
    elif is_pasted:
        workload["model"] = values.get(CONFIG)
        places |= {"workload.model": CONFIG, "body": CONFIG}
    elif MODEL_NAME in values:
        del workload["model_name"]  # what a browser kept, of a configuration that is gone
    places["workload"] = places["workload.model"]


def _put_cluster(request: dict[str, Any], values: dict[str, Any], places: dict[str, str]) -> None:
    """The cluster of its three fields, or as it is written out."""
    if CLUSTER in values:
        request["cluster"] = values[CLUSTER]
        for name in (GPU, NODES, GPUS_PER_NODE):
            del places[name]
        return
    places["cluster"] = GPU
    parts = request.setdefault("cluster", {})
    nodes, ranks = values.get(NODES), values.get(GPUS_PER_NODE)
    if str(values.get(GPU)).lower() != CPU:
        return
    if _is_count(nodes) and _is_count(ranks):
        request["cluster"] = f"cpu:{ranks}" if nodes == 1 else f"{nodes}x{ranks}xcpu"
    else:
        parts["gpu"] = RIGHT[GPU]  # the counts are wrong, which is said of any kind


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 1 <= value < 10**6


def _put_framework(request: dict[str, Any], values: dict[str, Any], places: dict[str, str]) -> None:
    request["framework"] = values.get(FRAMEWORK)
    if VERSIONS in values:
        request["framework"] = {"name": values.get(FRAMEWORK), "versions": values[VERSIONS]}
    places |= {"framework": FRAMEWORK, "framework_version": VERSIONS}


def _mend(request: dict[str, Any], asked: Asked, name: str) -> None:
    """Put what is right in the place of a field, or nothing where it can be left out."""
    for path in [path for path, place in asked.places.items() if place == name]:
        *parents, last = path.split(".")
        if path == "workload" or (name == GPU and isinstance(request.get(path), dict)):
            continue  # of which but one field is wrong
        table: Any = request
        for parent in parents:
            table = table.get(parent) if isinstance(table, dict) else None
        if path in RIGHT and isinstance(table, dict):
            table[last] = RIGHT[path]
        elif isinstance(table, dict):
            table.pop(last, None)


# -- the form, shown ----------------------------------------------------------------------------


def form_of(texts: Texts | None, wrong: Sequence[Wrong] = ()) -> Form:
    """The form with what was typed, or as it begins, and what is wrong beside the fields."""
    sections = tuple(_section(group, texts, wrong) for group in groups())
    found = [
        (control.spec.id, f"{control.spec.label}: {said}")
        for section in sections
        for control in (*section.controls, *section.folded)
        for said in control.errors
    ]
    loose = [("", _sentence(one.said)) for one in wrong if one.name not in specs()]
    return Form(sections=sections, errors=(*loose, *found))


def _section(group: Group, texts: Texts | None, wrong: Sequence[Wrong]) -> Section:
    def controls(fields: Iterable[Spec]) -> tuple[Control, ...]:
        return tuple(_control(spec, texts, wrong) for spec in fields)

    return Section(group=group, controls=controls(group.fields), folded=controls(group.folded))


def _control(spec: Spec, texts: Texts | None, wrong: Sequence[Wrong]) -> Control:
    typed = [spec.initial] if texts is None else texts.get(spec.name, ())
    errors = dict.fromkeys(one.said for one in wrong if one.name == spec.name)
    return Control(spec=spec, values=tuple(typed), errors=tuple(errors))
