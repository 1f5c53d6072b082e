"""The form's fields: their names are the paths of the JSON request that ``POST /tune`` takes.

Their kinds and choices come from the request's own JSON schema, and from the table of knobs.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.client.request import AUTO, TuneRequest
from tuner.core.configuration import KNOBS
from tuner.core.framework import FrameworkName
from tuner.core.measurement import Fidelity
from tuner.core.study import HEADROOM, MOST_PROBES, SamplerName
from tuner.core.workload import Optimizer, Precision

# What is chosen as GPU kind for ranks on the workers' processors.
CPU = "cpu"
MODEL, CONFIG, MODEL_NAME = "workload.model", "config", "workload.model_name"
GPU, NODES, GPUS_PER_NODE = "cluster.gpu", "cluster.nodes", "cluster.gpus_per_node"
CLUSTER = "cluster"
FRAMEWORK, VERSIONS = "framework.name", "framework.versions"


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


@dataclass(frozen=True, slots=True)
class Choice:
    """One value that can be chosen."""

    value: str
    """What is sent."""
    label: str
    """What is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldSpec:
    """One field of the form."""

    name: str
    """Of its control, and in most cases the path in the request."""
    label: str
    """What it is called."""
    kind: Kind = Kind.TEXT
    """How its text is read."""
    hint: str = ""
    """What helps to fill it in."""
    options: tuple[Choice, ...] = ()
    """What can be chosen, or is offered."""
    initial: str = ""
    """What an empty form holds."""
    example: str = ""
    """What stands in it while it is empty."""

    @property
    def id(self) -> str:
        """The id of its control in the page."""
        return f"f-{self.name.replace('.', '-').replace('_', '-')}"

    @property
    def values(self) -> tuple[str, ...]:
        """The values that its options send."""
        return tuple(option.value for option in self.options)

    @property
    def is_offered(self) -> bool:
        """True where other text than its options is taken too."""
        return self.kind is Kind.TEXT and bool(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldGroup:
    """Fields under one heading."""

    title: str
    """The heading."""
    fields: tuple[FieldSpec, ...] = ()
    """Those that are always shown, in order."""
    folded: tuple[FieldSpec, ...] = ()
    """Further ones, shown when somebody opens them, or one of them was filled in."""
    fold: str = ""
    """What is opened then."""
    note: str = ""
    """What is to be known of all of them."""


# Words for values that do not say by themselves what they are.
WORDS: Mapping[str, Mapping[str, str]] = {
    "workload.optimizer": {
        Optimizer.ADAMW: "AdamW",
        Optimizer.ADAMW_8BIT: "AdamW, state in 8 bits",
        Optimizer.SGD: "SGD without momentum",
    },
    "workload.precision": {Precision.BF16_MIXED: "bf16 mixed, weights in fp32"},
    "workload.reduce_dtype": {"": "the precision's own format"},
    FRAMEWORK: {
        FrameworkName.TORCH: "torch, with a script of yours",
        FrameworkName.TRAINER: "transformers' Trainer",
    },
    "fidelity": {
        AUTO: "as strongly as workers can",
        Fidelity.MEASURED: "measured: real steps on the cluster",
        Fidelity.EMULATED: "emulated: real steps of one rank",
        Fidelity.PREDICTED: "predicted: no device needed",
    },
    "sampler": {"": "cost model"},
}
# Choices that are the default, and sent as nothing.
UNSAID = {"sampler": (SamplerName.COST_MODEL,)}


@cache
def _schema() -> Mapping[str, Any]:
    return TuneRequest.model_json_schema()


def _at(path: str) -> Mapping[str, Any]:
    """The schema of what is at a path of the request: of several forms that of an object, or the
    first that is not null."""
    kinds, found = _schema()["$defs"], _schema()
    for name in (*path.split("."), None):
        while "$ref" in found or "anyOf" in found:
            forms = [
                kinds[one["$ref"].rpartition("/")[2]] if "$ref" in one else one
                for one in found.get("anyOf", [found])
            ]
            forms = [one for one in forms if one.get("type") != "null"]
            found = next((one for one in forms if "properties" in one), forms[0])
        if name is not None:
            found = found["properties"][name]
    return found


def _field(path: str, label: str, hint: str = "", **more: Any) -> FieldSpec:
    """A field of the request; its kind follows from the request's schema."""
    found = _at(path)
    if "enum" in found:
        words = WORDS.get(path, {})
        values = [one for one in found["enum"] if one not in UNSAID.get(path, ())]
        values = ["", *values] if "" in words else values
        options = tuple(Choice(one, words.get(one, one)) for one in values)
        return FieldSpec(name=path, label=label, kind=Kind.CHOICE, hint=hint, options=options)
    kind = {"integer": Kind.WHOLE, "number": Kind.NUMBER}.get(found.get("type", ""), Kind.TEXT)
    kind = Kind.DURATION if path.endswith("_s") else kind
    return FieldSpec(name=path, label=label, kind=kind, hint=hint, **more)


def _knob(name: str) -> FieldSpec:
    knob, path = KNOBS[name], f"knobs.{name}"
    options = tuple(Choice(str(value), label) for value, label in knob.values.items())
    if knob.kind is bool:
        options = (Choice("true", "on"), Choice("false", "off"))
    if options:
        return FieldSpec(name=path, label=knob.label, kind=Kind.FLAGS, options=options)
    example = "any, or such as 1, 2, 4"
    return FieldSpec(name=path, label=knob.label, kind=Kind.WHOLES, example=example)


def _parameters(name: str) -> str:
    count = models.entry(name)["parameters"]
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


@cache
def specs() -> Mapping[str, FieldSpec]:
    """All fields by name, in order."""
    return {spec.name: spec for group in groups() for spec in (*group.fields, *group.folded)}


@cache
def groups() -> tuple[FieldGroup, ...]:
    """The whole form. The catalogues are read once."""
    most = MOST_PROBES[Fidelity.MEASURED]
    named = tuple(Choice(name, f"{_parameters(name)} parameters") for name in models.names())
    gpus = (
        Choice(name, f"{kind.title}, {kind.memory_bytes / 2**30:.1f} GiB")
        for name, kind in gpu_kinds().items()
    )
    return (
        FieldGroup(
            title="Model",
            fields=(
                FieldSpec(
                    name=MODEL,
                    label="Model",
                    hint="A name of the catalogue, or a repository such as"
                    " meta-llama/Llama-3.1-8B.",
                    options=named,
                    example="such as llama-3.1-8b",
                ),
            ),
            folded=(
                FieldSpec(
                    name=CONFIG,
                    label="config.json",
                    kind=Kind.OBJECT,
                    hint="Paste the file of any supported model. It is read as data; nothing is"
                    " downloaded.",
                    example='{"model_type": "llama", "hidden_size": 4096, ...}',
                ),
                _field(
                    MODEL_NAME,
                    "What to call it",
                    "Optional; of a pasted configuration.",
                    example="such as our-7b",
                ),
            ),
            fold="Or paste its config.json",
        ),
        FieldGroup(
            title="Cluster",
            fields=(
                FieldSpec(
                    name=GPU,
                    label="GPU",
                    hint="A kind of the catalogue, or cpu for ranks on processors. Others: under"
                    " More.",
                    options=(*gpus, Choice(CPU, "CPU ranks")),
                    example="such as h100-80gb",
                ),
                _field(NODES, "Nodes", initial="1"),
                _field(GPUS_PER_NODE, "GPUs per node", initial="8"),
            ),
        ),
        FieldGroup(
            title="Training",
            fields=(
                _field(
                    "workload.sequence_length",
                    "Sequence length",
                    "Tokens of one sequence.",
                    example="such as 4096",
                ),
                _field(
                    "workload.global_batch_size",
                    "Global batch size",
                    "Sequences of one optimizer step, over all GPUs. No answer changes it.",
                    example="such as 256",
                ),
                _field("workload.optimizer", "Optimizer"),
                _field("workload.precision", "Precision"),
                _field(FRAMEWORK, "Framework"),
            ),
        ),
        FieldGroup(
            title="How long to look",
            fields=(
                _field("fidelity", "How probes are run"),
                _field(
                    "budget.max_probes",
                    "Probes at most",
                    f"By default {most}; of predicted ones {MOST_PROBES[Fidelity.PREDICTED]}.",
                    example=str(most),
                ),
                _field(
                    "budget.wall_s",
                    "Time at most",
                    "Such as 10m, 1.5h or 90s.",
                    example="no limit",
                ),
                _field(
                    "budget.gpu_s",
                    "GPU time at most",
                    "Over all GPUs together.",
                    example="no limit",
                ),
            ),
        ),
        FieldGroup(
            title="More",
            note="Leave all of this empty to let every legal setting compete.",
            fold="Restrict knobs, limits and versions",
            folded=(
                *map(_knob, KNOBS),
                _field(
                    "headroom",
                    "Headroom",
                    f"Share of a GPU's memory to leave free; by default {HEADROOM:g}.",
                    example=f"{HEADROOM:g}",
                ),
                _field(
                    "memory_limit_gib",
                    "Memory limit in GiB",
                    "What one GPU may use, taken as it is: headroom is not applied then.",
                ),
                _field(
                    "tolerance",
                    "Tolerance",
                    "Gain in speed that is not worth another probe; by default 0.01.",
                    example="0.01",
                ),
                _field("workload.reduce_dtype", "Gradients are reduced in"),
                FieldSpec(
                    name=VERSIONS,
                    label="Versions",
                    kind=Kind.VERSIONS,
                    hint="By default those of the workers.",
                    example="such as torch=2.13.0",
                ),
                _field("pool", "Pool of workers", "Empty for any."),
                _field("sampler", "Sampler"),
                FieldSpec(
                    name=CLUSTER,
                    label="Another cluster",
                    kind=Kind.CLUSTER,
                    hint="In place of the above: its fields as JSON, for GPUs that are not in the"
                    " catalogue or links of your own; or its spelling, such as 4x8xh100-80gb.",
                    example='{"nodes": 4, "gpus_per_node": 8, "gpu": {"name": ...,'
                    ' "memory_bytes": ...}}',
                ),
            ),
        ),
    )
