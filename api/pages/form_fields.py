"""The form's fields: their names are the paths of the JSON request that ``POST /tune`` takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.client.tune_request import AUTO, MOST_PROBES
from tuner.core.configuration import KNOBS
from tuner.core.framework import FrameworkName
from tuner.core.measurement import Fidelity
from tuner.core.study import HEADROOM, SamplerName
from tuner.core.workload import Optimizer, Precision, ReduceDtype

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


OPTIMIZERS: Mapping[Optimizer, str] = {
    Optimizer.ADAMW: "AdamW",
    Optimizer.ADAMW_8BIT: "AdamW, state in 8 bits",
    Optimizer.SGD: "SGD without momentum",
}
PRECISIONS: Mapping[Precision, str] = {
    Precision.BF16: "bf16",
    Precision.BF16_MIXED: "bf16 mixed, weights in fp32",
    Precision.FP32: "fp32",
}
FRAMEWORKS: Mapping[FrameworkName, str] = {
    FrameworkName.TORCH: "torch, with a script of yours",
    FrameworkName.ACCELERATE: "accelerate",
    FrameworkName.TRAINER: "transformers' Trainer",
    FrameworkName.NANOTRON: "nanotron",
}
FIDELITIES: Mapping[str, str] = {
    AUTO: "as strongly as workers can",
    Fidelity.MEASURED: "measured: real steps on the cluster",
    Fidelity.EMULATED: "emulated: real steps of one rank",
    Fidelity.PREDICTED: "predicted: no device needed",
}


def _options(labels: Mapping[Any, str]) -> tuple[Choice, ...]:
    return tuple(Choice(str(value), label) for value, label in labels.items())


@cache
def groups() -> tuple[FieldGroup, ...]:
    """The whole form. The catalogues are read once."""
    return (_model(), _cluster(), _training(), _looking(), _knobs())


@cache
def specs() -> Mapping[str, FieldSpec]:
    """All fields by name, in order."""
    return {spec.name: spec for group in groups() for spec in (*group.fields, *group.folded)}


def _model() -> FieldGroup:
    name = FieldSpec(
        name=MODEL,
        label="Model",
        hint="A name of the catalogue, or a repository such as meta-llama/Llama-3.1-8B.",
        options=_model_options(),
        example="such as llama-3.1-8b",
    )
    config = FieldSpec(
        name=CONFIG,
        label="config.json",
        kind=Kind.OBJECT,
        hint="Paste the file of any supported model. It is read as data; nothing is downloaded.",
        example='{"model_type": "llama", "hidden_size": 4096, ...}',
    )
    called = FieldSpec(
        name=MODEL_NAME,
        label="What to call it",
        hint="Optional; of a pasted configuration.",
        example="such as our-7b",
    )
    fold = "Or paste its config.json"
    return FieldGroup(title="Model", fields=(name,), folded=(config, called), fold=fold)


def _model_options() -> tuple[Choice, ...]:
    sizes = ((name, models.entry(name)["parameters"]) for name in models.names())
    return tuple(Choice(name, f"{_parameters(count)} parameters") for name, count in sizes)


def _parameters(count: int) -> str:
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def _cluster() -> FieldGroup:
    kinds = (
        Choice(name, f"{kind.title}, {kind.memory_bytes / 2**30:.1f} GiB")
        for name, kind in gpu_kinds().items()
    )
    gpu = FieldSpec(
        name=GPU,
        label="GPU",
        hint="A kind of the catalogue, or cpu for ranks on processors. Others: under More.",
        options=(*kinds, Choice(CPU, "CPU ranks")),
        example="such as h100-80gb",
    )
    per_node = FieldSpec(name=GPUS_PER_NODE, label="GPUs per node", kind=Kind.WHOLE, initial="8")
    nodes = FieldSpec(name=NODES, label="Nodes", kind=Kind.WHOLE, initial="1")
    return FieldGroup(title="Cluster", fields=(gpu, nodes, per_node))


def _training() -> FieldGroup:
    fields = (
        FieldSpec(
            name="workload.sequence_length",
            label="Sequence length",
            kind=Kind.WHOLE,
            hint="Tokens of one sequence.",
            example="such as 4096",
        ),
        FieldSpec(
            name="workload.global_batch_size",
            label="Global batch size",
            kind=Kind.WHOLE,
            hint="Sequences of one optimizer step, over all GPUs. No answer changes it.",
            example="such as 256",
        ),
        FieldSpec(
            name="workload.optimizer",
            label="Optimizer",
            kind=Kind.CHOICE,
            options=_options(OPTIMIZERS),
        ),
        FieldSpec(
            name="workload.precision",
            label="Precision",
            kind=Kind.CHOICE,
            options=_options(PRECISIONS),
        ),
        FieldSpec(
            name=FRAMEWORK,
            label="Framework",
            kind=Kind.CHOICE,
            options=_options(FRAMEWORKS),
        ),
    )
    return FieldGroup(title="Training", fields=fields)


def _looking() -> FieldGroup:
    most = MOST_PROBES[Fidelity.MEASURED]
    fields = (
        FieldSpec(
            name="fidelity",
            label="How probes are run",
            kind=Kind.CHOICE,
            options=_options(FIDELITIES),
        ),
        FieldSpec(
            name="budget.max_probes",
            label="Probes at most",
            kind=Kind.WHOLE,
            hint=f"By default {most}; of predicted ones {MOST_PROBES[Fidelity.PREDICTED]}.",
            example=str(most),
        ),
        FieldSpec(
            name="budget.wall_s",
            label="Time at most",
            kind=Kind.DURATION,
            hint="Such as 10m, 1.5h or 90s.",
            example="no limit",
        ),
        FieldSpec(
            name="budget.gpu_s",
            label="GPU time at most",
            kind=Kind.DURATION,
            hint="Over all GPUs together.",
            example="no limit",
        ),
    )
    return FieldGroup(title="How long to look", fields=fields)


def _knobs() -> FieldGroup:
    return FieldGroup(
        title="More",
        note="Leave all of this empty to let every legal setting compete.",
        folded=(*map(_knob, KNOBS), *_further()),
        fold="Restrict knobs, limits and versions",
    )


def _knob(name: str) -> FieldSpec:
    knob = KNOBS[name]
    path, label = f"knobs.{name}", knob.label
    if knob.values:
        return FieldSpec(name=path, label=label, kind=Kind.FLAGS, options=_options(knob.values))
    if knob.kind is bool:
        options = (Choice("true", "on"), Choice("false", "off"))
        return FieldSpec(name=path, label=label, kind=Kind.FLAGS, options=options)
    return FieldSpec(name=path, label=label, kind=Kind.WHOLES, example="any, or such as 1, 2, 4")


def _further() -> tuple[FieldSpec, ...]:
    return (
        FieldSpec(
            name="headroom",
            label="Headroom",
            kind=Kind.NUMBER,
            hint=f"Share of a GPU's memory to leave free; by default {HEADROOM:g}.",
            example=f"{HEADROOM:g}",
        ),
        FieldSpec(
            name="memory_limit_gib",
            label="Memory limit in GiB",
            kind=Kind.NUMBER,
            hint="What one GPU may use, taken as it is: headroom is not applied then.",
        ),
        FieldSpec(
            name="tolerance",
            label="Tolerance",
            kind=Kind.NUMBER,
            hint="Gain in speed that is not worth another probe; by default 0.01.",
            example="0.01",
        ),
        FieldSpec(
            name="workload.reduce_dtype",
            label="Gradients are reduced in",
            kind=Kind.CHOICE,
            options=(
                Choice("", "the precision's own format"),
                *(Choice(str(value), str(value)) for value in ReduceDtype),
            ),
        ),
        FieldSpec(
            name=VERSIONS,
            label="Versions",
            kind=Kind.VERSIONS,
            hint="By default those of the workers.",
            example="such as torch=2.13.0",
        ),
        FieldSpec(
            name="pool",
            label="Pool of workers",
            hint="Empty for any.",
        ),
        FieldSpec(
            name="sampler",
            label="Sampler",
            kind=Kind.CHOICE,
            options=(
                Choice("", "cost model"),
                *(Choice(str(one), str(one)) for one in SamplerName if one != "cost-model"),
            ),
        ),
        FieldSpec(
            name=CLUSTER,
            label="Another cluster",
            kind=Kind.CLUSTER,
            hint="In place of the above: its fields as JSON, for GPUs that are not in the"
            " catalogue or links of your own; or its spelling, such as 4x8xh100-80gb.",
            example='{"nodes": 4, "gpus_per_node": 8, "gpu": {"name": ..., "memory_bytes": ...}}',
        ),
    )
