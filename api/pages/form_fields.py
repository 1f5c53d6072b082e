"""The form's fields: their names are the paths of the JSON request that ``POST /tune`` takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.framework import FrameworkName
from tuner.measurement import Fidelity
from tuner.request import AUTO, MOST_PROBES
from tuner.settings import KNOBS, Checkpointing, Sharding
from tuner.study import HEADROOM
from tuner.workload import Optimizer, Precision, ReduceDtype

CPU = "cpu"
"""What is chosen as GPU kind for ranks on the workers' processors."""
MODEL, CONFIG, MODEL_NAME = "workload.model", "config", "workload.model_name"
GPU, NODES, GPUS_PER_NODE = "cluster.gpu", "cluster.nodes", "cluster.gpus_per_node"
CLUSTER = "cluster"
FRAMEWORK, VERSIONS = "framework.name", "framework.versions"


class Kind(StrEnum):
    """What a field's text is read as."""

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
class Option:
    """One value that can be chosen."""

    value: str
    """What is sent."""
    label: str
    """What is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One field of the form."""

    name: str
    """Of its control, and in most cases the path in the request."""
    label: str
    """What it is called."""
    kind: Kind = Kind.TEXT
    """How its text is read."""
    hint: str = ""
    """What helps to fill it in."""
    options: tuple[Option, ...] = ()
    """What can be chosen, or is offered."""
    initial: str = ""
    """What an empty form holds."""
    example: str = ""
    """What stands in it while it is empty."""

    @property
    def id(self) -> str:
        """Of its control in the page."""
        return f"f-{self.name.replace('.', '-').replace('_', '-')}"

    @property
    def values(self) -> tuple[str, ...]:
        """What its options send."""
        return tuple(option.value for option in self.options)

    @property
    def is_offered(self) -> bool:
        """Whether its options are only offered, and other text is taken too."""
        return self.kind is Kind.TEXT and bool(self.options)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Fields under one heading."""

    title: str
    """The heading."""
    fields: tuple[Spec, ...] = ()
    """Those that are always shown, in order."""
    folded: tuple[Spec, ...] = ()
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
KNOB_LABELS: Mapping[str, str] = {
    "sharding": "Sharding",
    "tp_size": "Tensor-parallel size",
    "tp_recompute_allgather": "Gather activations again in backward",
    "pp_size": "Pipeline stages",
    "micro_batch_size": "Micro-batch size",
    "gradient_accumulation_steps": "Accumulation steps",
    "sync_each_batch": "Sync gradients after each micro-batch",
    "activation_checkpointing": "Activation checkpointing",
    "cpu_offload": "Offload to host memory",
}
"""Knobs as people call them."""
SHARDINGS: Mapping[Sharding, str] = {
    Sharding.DDP: "ddp: nothing is split",
    Sharding.ZERO1: "zero1: optimizer state (nanotron)",
    Sharding.SHARD_GRAD_OP: "shard_grad_op: gradients and state",
    Sharding.FULL_SHARD: "full_shard: parameters too",
    Sharding.HYBRID_SHARD: "hybrid_shard: full within a node",
}


def _options(labels: Mapping[Any, str]) -> tuple[Option, ...]:
    return tuple(Option(str(value), label) for value, label in labels.items())


@cache
def groups() -> tuple[Group, ...]:
    """The whole form. The catalogues are read once."""
    return (_model(), _cluster(), _training(), _looking(), _knobs())


@cache
def specs() -> Mapping[str, Spec]:
    """All fields by name, in order."""
    return {spec.name: spec for group in groups() for spec in (*group.fields, *group.folded)}


def _model() -> Group:
    name = Spec(
        name=MODEL,
        label="Model",
        hint="A name of the catalogue, or a repository such as meta-llama/Llama-3.1-8B.",
        options=_model_options(),
        example="such as llama-3.1-8b",
    )
    config = Spec(
        name=CONFIG,
        label="config.json",
        kind=Kind.OBJECT,
        hint="Paste the file of any supported model. It is read as data; nothing is downloaded.",
        example='{"model_type": "llama", "hidden_size": 4096, ...}',
    )
    called = Spec(
        name=MODEL_NAME,
        label="What to call it",
        hint="Optional; of a pasted configuration.",
        example="such as our-7b",
    )
    fold = "Or paste its config.json"
    return Group(title="Model", fields=(name,), folded=(config, called), fold=fold)


def _model_options() -> tuple[Option, ...]:
    sizes = ((name, models.entry(name)["parameters"]) for name in models.names())
    return tuple(Option(name, f"{_parameters(count)} parameters") for name, count in sizes)


def _parameters(count: int) -> str:
    return f"{count / 1e9:.3g} B" if count >= 1e9 else f"{count / 1e6:.3g} M"


def _cluster() -> Group:
    kinds = (
        Option(name, f"{kind.title}, {kind.memory_bytes / 2**30:.1f} GiB")
        for name, kind in gpu_kinds().items()
    )
    gpu = Spec(
        name=GPU,
        label="GPU",
        hint="A kind of the catalogue, or cpu for ranks on processors. Others: under More.",
        options=(*kinds, Option(CPU, "CPU ranks")),
        example="such as h100-80gb",
    )
    per_node = Spec(name=GPUS_PER_NODE, label="GPUs per node", kind=Kind.WHOLE, initial="8")
    nodes = Spec(name=NODES, label="Nodes", kind=Kind.WHOLE, initial="1")
    return Group(title="Cluster", fields=(gpu, nodes, per_node))


def _training() -> Group:
    fields = (
        Spec(
            name="workload.sequence_length",
            label="Sequence length",
            kind=Kind.WHOLE,
            hint="Tokens of one sequence.",
            example="such as 4096",
        ),
        Spec(
            name="workload.global_batch_size",
            label="Global batch size",
            kind=Kind.WHOLE,
            hint="Sequences of one optimizer step, over all GPUs. No answer changes it.",
            example="such as 256",
        ),
        Spec(
            name="workload.optimizer",
            label="Optimizer",
            kind=Kind.CHOICE,
            options=_options(OPTIMIZERS),
        ),
        Spec(
            name="workload.precision",
            label="Precision",
            kind=Kind.CHOICE,
            options=_options(PRECISIONS),
        ),
        Spec(
            name=FRAMEWORK,
            label="Framework",
            kind=Kind.CHOICE,
            options=_options(FRAMEWORKS),
        ),
    )
    return Group(title="Training", fields=fields)


def _looking() -> Group:
    most = MOST_PROBES[Fidelity.MEASURED]
    fields = (
        Spec(
            name="fidelity",
            label="How probes are run",
            kind=Kind.CHOICE,
            options=_options(FIDELITIES),
        ),
        Spec(
            name="budget.max_probes",
            label="Probes at most",
            kind=Kind.WHOLE,
            hint=f"By default {most}; of predicted ones {MOST_PROBES[Fidelity.PREDICTED]}.",
            example=str(most),
        ),
        Spec(
            name="budget.wall_s",
            label="Time at most",
            kind=Kind.DURATION,
            hint="Such as 10m, 1.5h or 90s.",
            example="no limit",
        ),
        Spec(
            name="budget.gpu_s",
            label="GPU time at most",
            kind=Kind.DURATION,
            hint="Over all GPUs together.",
            example="no limit",
        ),
    )
    return Group(title="How long to look", fields=fields)


def _knobs() -> Group:
    return Group(
        title="More",
        note="Leave all of this empty to let every legal setting compete.",
        folded=(*map(_knob, KNOBS), *_further()),
        fold="Restrict knobs, limits and versions",
    )


def _knob(name: str) -> Spec:
    path, label, kind = f"knobs.{name}", KNOB_LABELS[name], KNOBS[name]
    if kind is Sharding:
        return Spec(name=path, label=label, kind=Kind.FLAGS, options=_options(SHARDINGS))
    if kind is Checkpointing:
        options = tuple(Option(str(value), str(value)) for value in Checkpointing)
        return Spec(name=path, label=label, kind=Kind.FLAGS, options=options)
    if kind is bool:
        options = (Option("true", "on"), Option("false", "off"))
        return Spec(name=path, label=label, kind=Kind.FLAGS, options=options)
    return Spec(name=path, label=label, kind=Kind.WHOLES, example="any, or such as 1, 2, 4")


def _further() -> tuple[Spec, ...]:
    return (
        Spec(
            name="headroom",
            label="Headroom",
            kind=Kind.NUMBER,
            hint=f"Share of a GPU's memory to leave free; by default {HEADROOM:g}.",
            example=f"{HEADROOM:g}",
        ),
        Spec(
            name="memory_limit_gib",
            label="Memory limit in GiB",
            kind=Kind.NUMBER,
            hint="What one GPU may use, taken as it is: headroom is not applied then.",
        ),
        Spec(
            name="tolerance",
            label="Tolerance",
            kind=Kind.NUMBER,
            hint="Gain in speed that is not worth another probe; by default 0.01.",
            example="0.01",
        ),
        Spec(
            name="workload.reduce_dtype",
            label="Gradients are reduced in",
            kind=Kind.CHOICE,
            options=(
                Option("", "the precision's own format"),
                *(Option(str(value), str(value)) for value in ReduceDtype),
            ),
        ),
        Spec(
            name=VERSIONS,
            label="Versions",
            kind=Kind.VERSIONS,
            hint="By default those of the workers.",
            example="such as torch=2.13.0",
        ),
        Spec(
            name="pool",
            label="Pool of workers",
            hint="Empty for any.",
        ),
        Spec(
            name=CLUSTER,
            label="Another cluster",
            kind=Kind.CLUSTER,
            hint="In place of the above: its fields as JSON, for GPUs that are not in the"
            " catalogue or links of your own; or its spelling, such as 4x8xh100-80gb.",
            example='{"nodes": 4, "gpus_per_node": 8, "gpu": {"name": ..., "memory_bytes": ...}}',
        ),
    )
