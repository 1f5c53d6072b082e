"""A request as it is written, read strictly into a question and its limits.

The command line, Python, REST, the form and files of cases all come through here: one model says
what may be written, and all that is wrong is told at once, each with its path, such as
``workload.sequence_length``.
"""

import json
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace as replaced
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    PrivateAttr,
    StrictBool,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    model_validator,
)

from tuner.catalog import models
from tuner.catalog.gpus import gpu_kinds
from tuner.catalog.models import Task
from tuner.client.values import (
    A_LIST,
    MOST_VALUES,
    ClusterLike,
    NotCoveredError,
    default_sizes,
    errors_of,
    model_note,
    read_model,
    telling,
    told,
    uncovered_gpu,
    uncovered_model_type,
    wrong,
)
from tuner.core.adapter import QUANTIZED, Adapter, AdapterMethod
from tuner.core.bounds import Number, Whole
from tuner.core.cluster import (
    MOST_GPUS_PER_NODE,
    MOST_NODES,
    SPELLINGS,
    Cluster,
    Device,
    Gpu,
    Link,
    Price,
    catalogue_gpu,
    on_machine,
    parse_cluster,
)
from tuner.core.configuration import KNOBS, knob_value, no_knob
from tuner.core.framework import (
    NOT_PROBED,
    FrameworkName,
    check_stated,
    framework,
    framework_name,
    packages_beside,
    usual_precision,
)
from tuner.core.launcher import LauncherName
from tuner.core.measurement import Fidelity
from tuner.core.packing import Packing, PackingVariant, read_documents
from tuner.core.script import Script
from tuner.core.study import (
    HEADROOM,
    MOST_CLASSES,
    MOST_DRY_RUNS,
    MOST_LABELS,
    MOST_PROBES,
    MOST_TRACED,
    Headroom,
    Limits,
    Pool,
    ProbeCount,
    Question,
    SamplerName,
    Seconds,
    Tolerance,
    read_labels,
)
from tuner.core.workload import (
    BatchSize,
    Loss,
    Optimizer,
    Precision,
    ReduceDtype,
    SequenceLength,
    TensorParallel,
    Workload,
)
from tuner.errors import UnknownNameError, UsageError, all_of, why_unreadable
from tuner.machine import Machine
from tuner.model import ModelConfig, published_model, read_model_config
from tuner.model.checks import check_json
from tuner.model.shape import ANONYMOUS, named, unnamed_model
from tuner.space import count_settings, divisors, enumerate_space
from tuner.space.rules import check_possible

# The word for the strongest fidelity that there is for a question.
AUTO = "auto"
# Legal settings of a question that may be asked over a network. Each takes up to a millisecond of
# the service's time; batches with the usual divisors leave a few hundred, those with the most that
# were thought of 2,300.
MOST_SETTINGS = 2500
# Micro-batch sizes, the smallest ones, that are proposed where there are too many settings.
FEW = 8
# Characters of a name or of settings written as text.
LONGEST_TEXT = 1000
# Of a memory limit; more is a mistake in units.
LARGEST_GIB = 2**20
LARGEST_FILE_BYTES = 64 * 1024
# How a cluster may be written that is not here.
NETWORK_SPELLINGS = SPELLINGS.partition(", local")[0] + ", or be an object of its fields"
# Parts of cases that are kept once read, and the characters of the largest.
MOST_KEPT, LONGEST_KEPT = 4096, 16 * 1024
# Names of one object, but of a model's configuration.
MOST_NAMES = 100

T = TypeVar("T", bound=BaseModel)


def is_here(info: ValidationInfo) -> bool:
    """True of what is written on this machine, where files may be read."""
    return bool(info.context)


class Kept:
    """Reads a part once for each JSON value: cases come in thousands with the same few."""

    def __init__(self) -> None:
        self._found: dict[str, Any] = {}

    def __call__(
        self, value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        try:
            text = "" if is_here(info) else json.dumps(value)
        except (TypeError, ValueError, RecursionError):
            text = ""
        if not 0 < len(text) <= LONGEST_KEPT:
            return handler(value)
        if (found := self._found.get(text)) is None:
            found = handler(value)
            if len(self._found) >= MOST_KEPT:
                self._found.clear()
            self._found[text] = found
        return found


class Part(BaseModel):
    """Part of a request; a field that is null is left out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        check_few(value)
        known = cls.model_fields
        return {name: one for name, one in value.items() if one is not None or name not in known}


def check_few(value: Mapping[Any, Any]) -> None:
    """Refuses an object of so many names that to tell what is wrong with each takes long."""
    if len(value) > MOST_NAMES:
        raise wrong("", f"{len(value)} fields", f"must have {MOST_NAMES} fields at most")


def short(text: str, field: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise UsageError(field, text, f"must have {LONGEST_TEXT} characters at most")
    return text


# -- what is trained ------------------------------------------------------------------------------


def _read_model(value: Any, info: ValidationInfo) -> ModelConfig:
    task = info.data.get("task", Task.CAUSAL_LM)  # none where it was no task
    if is_here(info):
        return read_model(value, task)
    if isinstance(value, str):
        if models.find(value) is None:
            also = "(or give the fields of its config.json)"
            raise UnknownNameError("model", value[:100], models.names(), also)
        return published_model(value, task)
    if not isinstance(value, Mapping):
        raise UsageError("model", value, "must be a name, or the fields of a config.json")
    if reason := uncovered_model_type(value.get("model_type"), task):
        raise NotCoveredError("model_type", value.get("model_type"), reason)
    return named(read_model_config(value, info.data.get("model_name") or ANONYMOUS, task))


Short = Annotated[str, Field(min_length=1, max_length=LONGEST_TEXT)]


def _read_adapter(value: Any, handler: ValidatorFunctionWrapHandler) -> Adapter:
    if isinstance(value, str):
        value = {"method": value}
    if isinstance(value, Mapping):
        check_few(value)
        if value.get("method") is None:
            raise wrong("method", None, f"is required in an object: {', '.join(AdapterMethod)}")
        for name in ("target_modules", "modules_to_save"):
            if isinstance(names := value.get(name), str):
                value = {**value, name: names.split(",")}
        if value.get("quantize") == "int8":
            raise wrong("quantize", "int8", "bitsandbytes' 8-bit layers are not probed: nf4 or fp4")
        if (doubles := value.get("double_quant")) in ("true", "false"):
            value = {**value, "double_quant": doubles == "true"}
    try:
        found: Adapter = handler(value)
    except UsageError as error:
        raise told(error) from error
    for name in QUANTIZED:  # also at its default: what is said and has no effect is refused
        if isinstance(value, Mapping) and not found.quantizes and value.get(name) is not None:
            raise wrong(name, value[name], f"needs the method {AdapterMethod.QLORA}")
    return found


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


class DocumentsGiven(Part):
    """Tokens of documents, said in one of three ways."""

    lengths: list[int] | None = Field(default=None, description="Of each document.")
    histogram: list[tuple[int, int]] | None = Field(
        default=None, description="Lengths, each with how many documents have it."
    )
    mean: float | None = Field(default=None, description="As if all documents were as long.")


class PackingGiven(Part):
    """How documents lie in a sequence."""

    variant: PackingVariant
    documents: DocumentsGiven | None = Field(
        default=None, description="By default each is a whole sequence."
    )


def _read_packing(value: Any, handler: ValidatorFunctionWrapHandler) -> Packing:
    if isinstance(value, str):
        value = {"variant": value}
    if isinstance(value, Mapping):
        check_few(value)
        if value.get("variant") is None:
            allowed = f"is required in an object: {', '.join(PackingVariant)}"
            raise wrong("variant", None, allowed)
    try:
        if isinstance(value, Mapping) and "documents" in value:
            value = {**value, "documents": read_documents(value["documents"])}
        found: Packing = handler(value)
    except UsageError as error:
        raise told(error) from error
    return found


class WorkloadGiven(Part):
    """What is trained."""

    model_name: Annotated[str, Field(min_length=1, max_length=200)] | None = Field(
        default=None, description="What a configuration is called in answers."
    )
    task: Task = Field(  # before the model, which is read for it
        default=Task.CAUSAL_LM,
        description="What the model is trained for: its head, its batches and its loss. A"
        " classifier has as many labels as the configuration says (num_labels, or id2label).",
    )
    model: Annotated[
        ModelConfig,
        PlainValidator(telling(_read_model), json_schema_input_type=Short | dict[str, Any]),
    ] = Field(
        description="A name of the catalogue, or the fields of a Hugging Face config.json. Nothing"
        " is downloaded, no path is read, and weights are random."
    )
    sequence_length: SequenceLength = Field(description="Tokens of one sequence.")
    global_batch_size: BatchSize = Field(
        description="Sequences of one optimizer step, over all GPUs. No answer changes it."
    )
    optimizer: Optimizer = Optimizer.ADAMW
    precision: Precision | None = Field(
        default=None,
        description="Number formats of weights and compute; by default bf16_mixed with accelerate"
        " and the Trainer, else bf16.",
    )
    reduce_dtype: ReduceDtype | None = Field(
        default=None,
        description="Number format in which gradients are summed. By default fp32 with precision"
        " fp32, else bf16; with accelerate and the Trainer in bf16_mixed what these do (framework):"
        " fp32 under DDP, bf16 under FSDP.",
    )
    loss: Loss = Field(
        default=Loss.HF,
        description="What is done with whole logits: transformers' own loss (hf), or cross entropy"
        " of an fp32 copy of them (fp32) or of them as they are (own_dtype).",
    )
    adapter: (
        Annotated[
            Adapter,
            WrapValidator(_read_adapter, json_schema_input_type=AdapterMethod | Adapter),
        ]
        | None
    ) = Field(
        default=None,
        description="What is trained in the place of the model, which is then frozen: lora, or"
        " qlora, which keeps that model in four bits, or an object of method, rank, alpha, dropout"
        " target_modules and modules_to_save, as peft calls them, and with qlora quantize and"
        " double_quant.",
    )

    packing: (
        Annotated[
            Packing,
            WrapValidator(_read_packing, json_schema_input_type=PackingVariant | PackingGiven),
        ]
        | None
    ) = Field(
        default=None,
        description="How documents lie in a sequence: a variant, or an object of variant and"
        " documents, as lengths, a histogram, or their mean.",
    )
    frozen: Annotated[tuple[str, ...], BeforeValidator(_split)] = Field(
        default=(),
        description="Parts of the model that are not trained: embeddings, head, or names of its"
        " modules, such as norm, visual and layers.0-15.",
    )
    image_tokens: int = Field(
        default=0,
        description="Tokens of each sequence that stand for images, with task image_text_to_text.",
    )
    tensor_parallel: TensorParallel = Field(
        default=TensorParallel.SEQUENCE_PARALLEL,
        description="How layers are split under tensor parallelism: with sequence parallelism, or"
        " without it and each rank's logits sharded, or gathered, as transformers' own plans do.",
    )

    _whole: Workload = PrivateAttr()
    _note: str = PrivateAttr(default="")

    @model_validator(mode="wrap")
    @classmethod
    def _held_together(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "WorkloadGiven":
        made: WorkloadGiven = handler(value)
        written = value["model"]
        try:
            of_model = ("model_name", "task")
            made._whole = Workload(
                **{name: getattr(made, name) for name in cls.model_fields if name not in of_model}
            )
        except UsageError as error:
            sizes = default_sizes(written) if made.task is Task.CAUSAL_LM else {}
            longest = sizes.get("max_position_embeddings")
            if error.field != "sequence_length" or longest is None:
                raise told(error) from error
            also = f"without max_position_embeddings it has transformers' default, {longest}"
            raise wrong(error.field, error.given, f"{error.allowed}: {also}") from error
        made._note = model_note(written, made.task)
        return made

    @property
    def workload(self) -> Workload:
        """The workload that it makes."""
        return self._whole

    @property
    def note(self) -> str:
        """A sentence on sizes that a configuration leaves out; empty where none is."""
        return self._note


# -- where ----------------------------------------------------------------------------------------


def _gpu_name(value: Any) -> str:
    """A GPU's name where it comes without figures; otherwise empty."""
    if isinstance(value, Mapping) and set(value) == {"name"}:
        value = value["name"]
    return value if isinstance(value, str) else ""


def _read_gpu(value: Any, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Gpu:
    try:
        name = short(_gpu_name(value), "gpu")
        if name == Device.CPU:
            allowed = 'for CPU ranks, a table with name, device = "cpu" and memory_bytes'
            raise UsageError("gpu", name, allowed)
        if name:
            return catalogue_gpu(name, "gpu")[0]
        if not isinstance(value, Mapping | Gpu):
            raise UsageError("gpu", value, "must be a catalogue name or a table of fields")
        if isinstance(value, Mapping):
            check_few(value)
        found: Gpu = handler(value)
    except UsageError as error:
        raise told(_maybe_uncovered(error, info)) from error
    return found


def _read_link(value: Any, handler: ValidatorFunctionWrapHandler) -> Link:
    if isinstance(value, Mapping):
        check_few(value)
    try:
        found: Link = handler(value)
    except UsageError as error:
        raise told(error) from error
    return found


def _maybe_uncovered(error: UsageError, info: ValidationInfo) -> UsageError:
    """A name that is no mistake of spelling is of a GPU that nothing is known of."""
    is_unknown = isinstance(error, UnknownNameError) and not is_here(info)
    reason = uncovered_gpu(str(error.given), gpu_kinds()) if is_unknown else ""
    return NotCoveredError(error.field, error.given, reason) if reason else error


class ClusterGiven(Part):
    """Where training runs; links that are left out are the catalogue's, or unknown."""

    gpu: Annotated[Gpu, WrapValidator(_read_gpu, json_schema_input_type=Short | Gpu)]
    nodes: Annotated[int, Whole(1, MOST_NODES)]
    gpus_per_node: Annotated[int, Whole(1, MOST_GPUS_PER_NODE)]
    intra_node: Annotated[Link, WrapValidator(_read_link)] | None = None
    inter_node: Annotated[Link, WrapValidator(_read_link)] | None = None
    price_per_gpu_hour: Price | None = Field(
        default=None, description="In any currency; costs are told in it by tuner size."
    )


def _read_fields(value: Mapping[str, Any], info: ValidationInfo) -> Cluster:
    """The cluster of its fields; a pydantic error inside is told with its path."""
    given = ClusterGiven.model_validate(value, context=info.context)
    links: dict[str, Any] = {"intra_node": Link(), "inter_node": Link()}
    if name := _gpu_name(value["gpu"]):
        links = catalogue_gpu(name, "gpu")[1]
    links |= {name: link for name in links if (link := getattr(given, name)) is not None}
    return Cluster(
        nodes=given.nodes,
        gpus_per_node=given.gpus_per_node,
        gpu=given.gpu,
        price_per_gpu_hour=given.price_per_gpu_hour,
        **links,
    )


def _read_place(value: Any, info: ValidationInfo) -> str | Cluster:
    """A cluster's spelling, which means what it does on one machine or another; or its fields."""
    if isinstance(value, Cluster):
        return value
    if isinstance(value, Mapping):
        return _read_fields(value, info)
    if not isinstance(value, str):
        allowed = "must be a spelling such as 8xa100-80gb, or an object of fields"
        raise UsageError("cluster", value, allowed)
    spelled = short(value, "cluster").strip()
    if spelled.lower().endswith((".toml", ".json")):
        if not is_here(info):
            allowed = "no file is read here: give the cluster's fields"
            raise UsageError("cluster", value, allowed)
        found = read_cluster_file(Path(spelled))
        if not isinstance(found, Mapping):
            raise UsageError("cluster", found, "must be a table of fields")
        return on_machine(_read_fields(found, info))
    try:
        parse_cluster(spelled)
    except UsageError as error:
        if error.allowed == SPELLINGS and not is_here(info):
            raise UsageError("cluster", value, NETWORK_SPELLINGS) from error
        raise _maybe_uncovered(error, info) from error
    return spelled


def _read_named_place(value: Any, info: ValidationInfo) -> str | Cluster:
    """The same, of a request that may come from another machine than this."""
    is_local = isinstance(value, str) and value.strip().lower() == "local"
    if is_local and not is_here(info):
        allowed = "is the machine that asks: name what it has, such as 8xa100-80gb"
        raise UsageError("cluster", value, allowed)
    return _read_place(value, info)


def named_cluster(value: Any, info: ValidationInfo) -> Cluster:
    """The cluster of a request that may come from another machine than this."""
    found = _read_named_place(value, info)
    return parse_cluster(found) if isinstance(found, str) else found


def cluster_of(value: Any, info: ValidationInfo) -> Cluster:
    found = _read_place(value, info)
    return parse_cluster(found) if isinstance(found, str) else found


def read_cluster_file(path: Path) -> Any:
    """Reads a TOML or JSON file, by the ending of its name; its fields are not looked at.

    Raises:
        UsageError: it cannot be read, is too large, or is not what its name says.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # a ValueError: a null character in the path
        raise UsageError("cluster", str(path), why_unreadable(error)) from error
    if len(data) > LARGEST_FILE_BYTES:
        raise UsageError("cluster", str(path), f"must be at most {LARGEST_FILE_BYTES} bytes")
    loads = tomllib.loads if path.suffix.lower() == ".toml" else json.loads
    try:
        return loads(data.decode())
    except (ValueError, RecursionError) as error:
        reason = str(error) or "nested too deeply"
        raise UsageError("cluster", str(path), f"is not {path.suffix[1:]}: {reason}") from error


# -- with what ------------------------------------------------------------------------------------


def _read_name(value: Any, info: ValidationInfo) -> FrameworkName:
    return framework_name(short(value, "name") if isinstance(value, str) else value)


def _read_versions(value: Any, info: ValidationInfo) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError("versions", value, "must be an object of versions by package")
    return check_stated(dict(value))


class FrameworkGiven(Part):
    """The stack that is launched."""

    name: Annotated[
        FrameworkName, PlainValidator(telling(_read_name), json_schema_input_type=FrameworkName)
    ]
    versions: Annotated[
        Mapping[str, str],
        PlainValidator(telling(_read_versions), json_schema_input_type=dict[str, str]),
    ] = Field(
        default_factory=dict,
        description="Releases by package; those left out are the workers'.",
        examples=[{"accelerate": "1.15.0"}],
    )

    def __hash__(self) -> int:
        return hash((self.name, *self.versions.items()))


def _read_framework(value: Any, handler: ValidatorFunctionWrapHandler) -> FrameworkGiven:
    if not isinstance(value, Mapping | FrameworkGiven):
        try:
            value = {"name": framework_name(value)}
        except UsageError as error:
            raise told(error) from error
    found: FrameworkGiven = handler(value)
    return found


FrameworkField = Annotated[
    FrameworkGiven,
    WrapValidator(_read_framework, json_schema_input_type=FrameworkName | FrameworkGiven),
]
TORCH = FrameworkGiven(name=FrameworkName.TORCH)


# -- what may be chosen, and for how long ---------------------------------------------------------


def json_knob(name: str, value: Any) -> Any:
    """A knob's value; what the text form may have and JSON may not is refused."""
    kind = KNOBS[name].kind
    if kind is bool and not isinstance(value, bool):
        raise UsageError(name, value, "must be true or false")
    if kind is int and (isinstance(value, bool) or not isinstance(value, int)):
        raise UsageError(name, value, "must be a positive integer")
    return knob_value(name, value)


def _knob_field(name: str) -> Any:
    """The type of a knob's list of allowed values, and its description."""

    def read(value: Any, info: ValidationInfo) -> Any:
        return knob_value(name, value) if is_here(info) else json_knob(name, value)

    def check_list(value: Any, info: ValidationInfo) -> Any:
        # A set has no order, and an iterator is gone once it is read.
        is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
        if not is_list or (len(value) > MOST_VALUES and not is_here(info)):
            raise UsageError(name, value, A_LIST)
        return value

    knob = KNOBS[name]
    one = Annotated[knob.kind, BeforeValidator(telling(read))]  # type: ignore[name-defined]
    bounds = Field(min_length=1, json_schema_extra={"maxItems": MOST_VALUES})
    listed = Annotated[tuple[one, ...], bounds, BeforeValidator(telling(check_list))]
    return listed | None, Field(default=None, description=f"{knob.label}; active: {knob.live_when}")


if TYPE_CHECKING:
    KnobsGiven = Part
else:
    KnobsGiven = create_model(
        "KnobsGiven",
        __base__=Part,
        __doc__="Allows only these values of a knob.",
        **{name: _knob_field(name) for name in KNOBS},
    )


class BudgetGiven(Part):
    """How long to look at most."""

    max_probes: ProbeCount | None = None
    wall_s: Seconds | None = None
    gpu_s: Seconds | None = Field(default=None, description="GPU-seconds.")


def _read_fidelity(value: Any, info: ValidationInfo) -> Fidelity | None:
    if value == AUTO:
        return None
    if value not in list(Fidelity):
        raise UsageError("fidelity", value, f"must be one of {', '.join((AUTO, *Fidelity))}")
    return Fidelity(value)


def _read_labels(value: Any, info: ValidationInfo) -> tuple[tuple[str, str], ...]:
    return tuple(read_labels("labels", value).items())  # which can be hashed


MemoryLimit = Annotated[
    float,
    Number(2**-30, LARGEST_GIB, f"must be a number of GiB above 0 and up to {LARGEST_GIB}"),
]


# Frameworks, and what is taken where none is named, that choose no format of reductions themselves.
REDUCES_AS_TOLD = (None, FrameworkName.TORCH, *NOT_PROBED)


# What schedulers send so that they are told: another's address, which nothing here goes to.
CALLBACKS = ("callback", "callback_url", "notify_url", "webhook", "webhook_url")


class Common(Part):
    """Parts that a question and a case of one configuration have in common."""

    workload: Annotated[WorkloadGiven, WrapValidator(Kept())]
    framework: Annotated[FrameworkField, WrapValidator(Kept())] = Field(
        default_factory=lambda: TORCH, json_schema_extra={"default": str(FrameworkName.TORCH)}
    )
    headroom: Headroom = Field(
        default=HEADROOM, description="Share of a GPU's memory to leave free."
    )
    memory_limit_gib: MemoryLimit | None = None

    @model_validator(mode="before")
    @classmethod
    def _with_precision(cls, value: Any) -> Any:
        """Writes the framework's usual precision, and in what it reduces gradients then, where none
        is stated: both are kept explicitly."""
        for callback in CALLBACKS:
            if isinstance(value, Mapping) and value.get(callback) is not None:
                allowed = (
                    "no address is called: whoever may ask could have this service open connections"
                    " in its own network; wait with GET /tune/{id}?wait=30, or follow"
                    " /tune/{id}/events"
                )
                raise wrong(callback, value[callback], allowed)
        work = value.get("workload") if isinstance(value, Mapping) else None
        if not isinstance(work, Mapping):
            return value
        stack = value.get("framework")
        name = stack.get("name") if isinstance(stack, Mapping) else stack
        usual = usual_precision(name)
        stated = {field: one for field, one in work.items() if one is not None}
        reduced = stated.get("reduce_dtype")
        if reduced == ReduceDtype.FRAMEWORK and name in REDUCES_AS_TOLD:
            allowed = "must be bf16 or fp32: only accelerate and the Trainer choose by the sharding"
            raise wrong("workload.reduce_dtype", reduced, allowed)
        added: dict[str, Any] = {} if "precision" in stated else {"precision": usual}
        mixes = usual is Precision.BF16_MIXED and stated.get("precision", usual) == usual
        if mixes and "reduce_dtype" not in stated:  # DeepSpeed's is that of the model, cast to bf16
            is_zero = name == FrameworkName.DEEPSPEED
            added["reduce_dtype"] = ReduceDtype.BF16 if is_zero else ReduceDtype.FRAMEWORK
        return {**value, "workload": {**work, **added}} if added else value

    @property
    def notes(self) -> tuple[str, ...]:
        """What was written and is not used, or was left out and matters."""
        both = {"headroom", "memory_limit_gib"} <= self.model_fields_set
        why = "the headroom is not applied: the memory limit is taken as it is" if both else ""
        return tuple(filter(None, (why, self.workload.note)))


class Asking(Common):
    """A question, but where it is asked of."""

    knobs: KnobsGiven = Field(default=KnobsGiven(), examples=[{"micro_batch_size": [1, 2]}])

    def question_on(self, cluster: Cluster, installed: Mapping[str, str]) -> Question:
        """The question on a cluster, with ``installed`` versions where none are stated.

        Raises:
            UsageError: a version that there is not, or no legal settings, or too many of them.
        """
        allowed = {name: values for name in KNOBS if (values := getattr(self.knobs, name))}
        try:
            workload = self.workload.workload
            stack = framework(
                self.framework.name,
                self.framework.versions,
                installed,
                beside=packages_beside(workload, cluster.gpu.device),
            )
            question = Question(
                workload=workload,
                cluster=cluster,
                framework=stack,
                knobs=allowed,
                script=getattr(self, "script", None),
            )
            self._check_space(question)
        except UsageError as error:
            raise error.at(self._path(error.field)) from error
        return question

    def _path(self, field: str) -> str:
        """The path in a request of what a rule names."""
        first = field.partition(" x ")[0]  # of a product of sizes
        if first in KNOBS:
            return f"knobs.{first}"
        versions = "framework.versions" if self.framework.versions else "framework_version"
        return {
            "knob": "knobs",
            "model": "workload.model",
            "global_batch_size": "workload.global_batch_size",
            "framework_version": versions,
        }.get(field, field)

    def _check_space(self, question: Question) -> None:
        """Refuses a question without legal settings, or of too many; with what would help."""
        if count_settings(question, MOST_SETTINGS) <= MOST_SETTINGS:
            enumerate_space(question)
            return
        batch = question.workload.global_batch_size
        sizes = question.knobs.get("micro_batch_size", divisors(batch))[:FEW]
        fewer = replaced(question, knobs={**question.knobs, "micro_batch_size": sizes})
        less = f"allow some values only of {', '.join(list(KNOBS)[:-1])} or {list(KNOBS)[-1]}"
        if count_settings(fewer, MOST_SETTINGS) <= MOST_SETTINGS:
            less = f'allow some values only, such as {{"micro_batch_size": {list(sizes)}}}'
        how = f"must leave at most {MOST_SETTINGS} legal settings, and leaves more: {less}"
        raise UsageError("knobs", question.as_dict()["knobs"], how)


class TuneRequest(Asking):
    """A question: which settings are the fastest that fit?"""

    cluster: Annotated[
        str | Cluster,
        PlainValidator(telling(_read_named_place), json_schema_input_type=Short | ClusterGiven),
    ] = Field(
        description="8xa100-80gb, 4x8xh100-80gb (nodes x GPUs x kind), cpu:2, or its fields.",
        examples=["8xh100-80gb"],
    )
    fidelity: Annotated[
        Fidelity | None,
        PlainValidator(
            telling(_read_fidelity),
            json_schema_input_type=Literal[
                "auto", "measured", "emulated", "rehearsed", "predicted"
            ],
        ),
    ] = Field(
        default=None,
        description="How probes are run; auto is the strongest that the living workers have.",
        json_schema_extra={"default": AUTO},
    )
    budget: BudgetGiven = BudgetGiven()
    tolerance: Tolerance = Field(default=0.01, description="Gain that is not worth another probe.")
    pool: Pool = Field(default="", description="Workers that may be at it.")
    labels: Annotated[
        tuple[tuple[str, str], ...],
        PlainValidator(telling(_read_labels), json_schema_input_type=dict[str, str]),
    ] = Field(
        default=(),
        description="Short texts by name, such as job and user: lists of studies are filtered by"
        " them. They change no answer. A study that was asked before keeps its others.",
        json_schema_extra={"maxProperties": MOST_LABELS, "default": {}},
        examples=[{"job": "1234", "user": "ada"}],
    )
    sampler: SamplerName = Field(
        default=SamplerName.COST_MODEL,
        description="Proposes the next configuration: ours, or one of Optuna's.",
    )
    replace: StrictBool = Field(
        default=False,
        description="Whether a study of this question, open with other limits, is given these:"
        " whoever waits for it gets no answer within their own limits then. Otherwise this is 409.",
    )

    def cluster_on(self, there: Machine | None) -> Cluster:
        """The cluster; CPU ranks are of a machine, by default this one, unless it names another."""
        if isinstance(self.cluster, str):
            return parse_cluster(self.cluster, there)
        return on_machine(self.cluster, there)

    def question(
        self,
        installed: Mapping[str, str],
        cluster: Cluster | None = None,
    ) -> Question:
        """The question, with ``installed`` versions where none are stated.

        Raises:
            UsageError: a version that there is not, or no legal settings, or too many of them.
        """
        if cluster is None:
            here = self.cluster
            cluster = parse_cluster(here) if isinstance(here, str) else here
        return self.question_on(cluster, installed)

    def limits_at(self, fidelity: Fidelity) -> Limits:
        """The limits, with a fidelity's defaults."""
        budget, limit_gib = self.budget, self.memory_limit_gib
        few = fidelity is Fidelity.PREDICTED and budget.max_probes is None
        most = MOST_TRACED if self.workload.workload.is_traced else MOST_CLASSES
        return Limits(
            fidelity=fidelity,
            headroom=self.headroom,
            memory_limit_bytes=None if limit_gib is None else round(limit_gib * 2**30),
            tolerance=self.tolerance,
            max_probes=budget.max_probes or (most if few else MOST_PROBES[fidelity]),
            max_dry_runs=MOST_DRY_RUNS if few and most == MOST_CLASSES else None,
            wall_s=budget.wall_s,
            device_s=budget.gpu_s,
            pool=self.pool,
            sampler=self.sampler,
        )


MOST_CLUSTERS = 8
Amount = Annotated[float, Number(0, 1e18, "must be a number above 0", above=True)]


def _read_places(value: Any, info: ValidationInfo) -> tuple[str | Cluster, ...]:
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    places = value if is_list else [value]
    if not 0 < len(places) <= MOST_CLUSTERS:
        raise UsageError("cluster", value, f"must be one cluster, or a list of {MOST_CLUSTERS}")
    return tuple(_read_named_place(one, info) for one in places)


class SizeRequest(Asking):
    """How many GPUs does a job need, and how large may it be on those that there are?"""

    cluster: Annotated[
        tuple[str | Cluster, ...],
        PlainValidator(
            telling(_read_places),
            json_schema_input_type=Short | ClusterGiven | list[Short | ClusterGiven],
        ),
    ] = Field(
        description="The GPUs that there are, of which the fewest are looked for: some of a node,"
        " or whole nodes. One cluster, or a list of up to 8, each answered by a row.",
        examples=[["64x8xh100-80gb", "64x8xa100-80gb"]],
    )
    family: Short | None = Field(
        default=None,
        description="Name of a family of the catalogue, such as llama-3.1: its largest model that"
        " fits is looked for. Where no workload.model is given, all is asked of that one.",
    )
    tokens_per_s: Amount | None = Field(
        default=None, description="Tokens per second that all GPUs together must reach."
    )
    tokens: Amount | None = Field(
        default=None, description="Tokens to be trained on: how long that takes is told."
    )
    within_s: Seconds | None = Field(
        default=None, description="Seconds in which the tokens must be trained on."
    )
    price_per_gpu_hour: Price | None = Field(
        default=None, description="In any currency; of clusters that have no price of their own."
    )

    _takes_largest: bool = PrivateAttr(default=False)

    @model_validator(mode="wrap")
    @classmethod
    def _of_a_family(cls, value: Any, handler: ValidatorFunctionWrapHandler) -> "SizeRequest":
        work = value.get("workload") if isinstance(value, Mapping) else None
        unnamed = isinstance(work, Mapping) and work.get("model") is None
        family = value.get("family") if isinstance(value, Mapping) else None
        if isinstance(work, Mapping) and unnamed and isinstance(family, str):
            # a stand-in that takes the longest sequences of all
            model = max(family_of(family), key=lambda one: published_model(one).max_sequence_length)
            value = {**value, "workload": {**work, "model": model}}
        made: SizeRequest = handler(value)
        made._takes_largest = unnamed
        if made.family is not None:
            family_of(made.family)
        if made.within_s is not None and made.tokens is None:
            raise wrong("within_s", made.within_s, "needs tokens that are to be trained on")
        if made.within_s is not None and made.tokens_per_s is not None:
            allowed = "is not applied with within_s, from which it follows: give one"
            raise wrong("tokens_per_s", made.tokens_per_s, allowed)
        return made

    @property
    def takes_largest(self) -> bool:
        """True where all is asked of the family's largest model that fits."""
        return self._takes_largest

    def _check_space(self, question: Question) -> None:
        """Refuses values that no configuration has. The whole cluster need not divide the batch:
        its parts are looked at."""
        for knob, values in question.knobs.items():
            for value in values:
                check_possible(question, knob, value)

    def check_part(self, part: Question) -> None:
        """Refuses a part of a cluster on which there are so many legal settings that it takes
        long."""
        super()._check_space(part)


def family_of(name: str) -> tuple[str, ...]:
    """Names of the catalogue's models of a family: ``qwen3`` is of qwen3-8b and others."""
    wanted = name.strip().lower()
    known = models.names()
    found = tuple(one for one in known if one == wanted or one.startswith(f"{wanted}-"))
    if not found:
        families = sorted({one.rpartition("-")[0] or one for one in known})
        also = "(or a whole name of the catalogue)"
        error = UnknownNameError("family", name[:100], families, also)
        raise told(error)
    return found


def _read_script(value: Any, info: ValidationInfo) -> Script:
    if not isinstance(value, Script):
        raise UsageError("script", value, "must be what tuner.read_script returns")
    return value


class RequestHere(TuneRequest):
    """A request that this machine answers, or sends on: files and a script may be named."""

    script: Annotated[Script, PlainValidator(telling(_read_script))] | None = None
    """The user's own, which is run in the place of the probe program's step."""
    probe_deadline_s: Seconds | None = None
    """Seconds that one probe may take; by default the worker's own limit."""
    launcher: LauncherName | None = None
    """What starts ranks; by default Slurm's in an allocation of several nodes."""
    ray: str = ""
    """Address of a Ray cluster; by default that of RAY_ADDRESS, or one is started."""

    @model_validator(mode="before")
    @classmethod
    def _unnamed(cls, value: Any) -> Any:
        workload = value["workload"]
        if value.get("script") is None or workload.get("model") is not None:
            return value
        return {**value, "workload": {**workload, "model": unnamed_model()}}

    def _check_space(self, question: Question) -> None:
        """Here first the machine is looked at, and a large space takes nobody else's time."""

    def _path(self, field: str) -> str:
        return field


# Arguments of Python, and options, that are parts of an object of the request.
_WITHIN: Mapping[str, tuple[str, str]] = {
    **{name: ("workload", name) for name in WorkloadGiven.model_fields},
    **{name: ("budget", name) for name in BudgetGiven.model_fields},
    "framework": ("framework", "name"),
    "framework_versions": ("framework", "versions"),
}


def nested(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by name, in the form of a request; ``None`` is left out."""
    stack = {"name": given.get("framework") or str(FrameworkName.TORCH)}
    values: dict[str, Any] = {"workload": {}, "framework": stack}
    for name, value in given.items():
        if value is not None and name in _WITHIN:
            table, inner = _WITHIN[name]
            values.setdefault(table, {})[inner] = value
        elif value is not None:
            values[name] = value
    return values


def as_field(error: UsageError) -> UsageError:
    """An error that is named as an argument is, named as the request's field."""
    table, _, _ = error.field.partition(".")
    return error.at(".".join(_WITHIN[table])) if table in _WITHIN else error


def as_argument(error: UsageError) -> UsageError:
    """The same error, named as arguments and options are."""
    table, _, name = error.field.partition(".")
    if table == "knobs" and name and name not in KNOBS:
        return UsageError("knob", name, no_knob(name))
    if table == "labels":
        return error.at("label")
    if table == "framework":
        return error.at("framework_version" if name == "versions" else "framework")
    if name.startswith(("adapter.", "packing.")):
        return error.at(name)
    return error if table == "cluster" else error.at(error.field.rpartition(".")[2])


# -- reading, and what is wrong -------------------------------------------------------------------


def read_request(values: Any, beside: Iterable[UsageError] = ()) -> TuneRequest:
    """The request in a JSON value, as ``POST /tune`` takes it.

    Args:
        values: the value.
        beside: errors of texts that could not be made values; they are told in the place of what
            is said of the fields.

    Raises:
        UsageError: a field is wrong, missing or not covered; with all others that are.
    """
    check_plain(values)
    return read(TuneRequest, values, beside=beside)


def read_here(given: Mapping[str, Any], beside: Iterable[UsageError] = ()) -> RequestHere:
    """The request of arguments or options, with errors that are named as these are.

    Raises:
        UsageError: one is wrong or missing; with all others that are.
    """
    return read(RequestHere, nested(given), here=True, beside=beside, named=as_argument)


def read_cluster(value: ClusterLike) -> Cluster:
    """The cluster of a spelling, a file's path, or its fields.

    Raises:
        UsageError: it is none; with its path.
    """
    return read(_Place, {"cluster": value}, here=True).cluster


def read(
    kind: type[T],
    values: Any,
    *,
    here: bool = False,
    beside: Iterable[UsageError] = (),
    named: Callable[[UsageError], UsageError] = lambda error: error,
) -> T:
    """The same for any model of this module; ``named`` puts other names to the fields."""
    errors, made = [*beside], None
    try:
        made = kind.model_validate(values, context=here)
    except ValidationError as error:
        errors += map(named, errors_of(error.errors(include_url=False), {**_MODELS, "": kind}))
    if errors:
        raise all_of(errors)
    assert made is not None
    return made


class _Place(Part):
    cluster: Annotated[Cluster, PlainValidator(telling(cluster_of))]


def check_plain(values: Any) -> None:
    """Refuses what is no shallow JSON of finite numbers and whole characters."""
    if not isinstance(values, Mapping):
        raise UsageError("body", values, "must be an object of fields")
    check_json(values, depth=-2)
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UsageError("body", "half a character", "must be of Unicode characters") from error


# Objects by their paths, for those who name a field that there is not.
_MODELS: Mapping[str, type[Any]] = {
    "workload": WorkloadGiven,
    "workload.adapter": Adapter,
    "workload.packing": Packing,
    "cluster": ClusterGiven,
    "cluster.gpu": Gpu,
    "cluster.intra_node": Link,
    "cluster.inter_node": Link,
    "framework": FrameworkGiven,
    "budget": BudgetGiven,
    "knobs": KnobsGiven,
}
