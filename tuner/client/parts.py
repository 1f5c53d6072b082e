"""The parts of a request as they are written: what is trained, where, with what, and for how long.

All that is wrong is told at once, each with its path, such as ``workload.sequence_length``.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
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
    NotCoveredError,
    default_sizes,
    is_misspelled,
    model_note,
    read_model,
    uncovered_model_type,
)
from tuner.core.adapter import QUANTIZED, Adapter, AdapterMethod, Quantize
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
from tuner.core.configuration import KNOBS, knob_value
from tuner.core.framework import (
    FrameworkName,
    check_stated,
    framework_name,
    usual_precision,
    usual_reduce_dtype,
)
from tuner.core.packing import Packing, PackingVariant, read_documents
from tuner.core.study import (
    ProbeCount,
    Seconds,
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
from tuner.errors import UnknownNameError, UsageError, why_unreadable
from tuner.model import ModelConfig, published_model, read_model_config
from tuner.model.shape import ANONYMOUS, named

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

    # Built when first used: to build all took a fifth of a second of every command.
    model_config = ConfigDict(
        extra="forbid", frozen=True, use_attribute_docstrings=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, value: Any) -> Any:
        if not isinstance(few(value), Mapping):
            return value
        known = cls.model_fields
        return {name: one for name, one in value.items() if one is not None or name not in known}


def build_models(of: type[BaseModel] = Part) -> None:
    """Builds all models of requests now, where no request is to wait for it."""
    for one in of.__subclasses__():
        one.model_rebuild()
        build_models(one)


def few(value: Any) -> Any:
    """Refuses an object of so many names that to tell what is wrong with each takes long."""
    if isinstance(value, Mapping) and len(value) > MOST_NAMES:
        raise UsageError("", f"{len(value)} fields", f"must have {MOST_NAMES} fields at most")
    return value


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
        if models.find(value) is None and models.alike(value) is None:
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
    given = {"method": value} if isinstance(value, str) else few(value)
    if not isinstance(given, Mapping):
        other: Adapter = handler(given)
        return other
    if given.get("method") is None:
        raise UsageError("method", None, f"is required in an object: {', '.join(AdapterMethod)}")
    given = {**given}
    for name in ("target_modules", "modules_to_save"):
        if name in given:
            given[name] = _split(given[name])
    if (doubles := given.get("double_quant")) in ("true", "false"):
        given["double_quant"] = doubles == "true"
    found: Adapter = handler(given)
    for name in QUANTIZED:  # also at its default: what is said and has no effect is refused
        if not found.quantizes and given.get(name) not in (None, Quantize.INT8):
            raise UsageError(name, given[name], f"needs the method {AdapterMethod.QLORA}")
    return found


def _split(value: Any) -> Any:
    return value.split(",") if isinstance(value, str) else value


class DocumentsGiven(Part):
    """Tokens of documents, said in one of three ways."""

    lengths: list[int] | None = None
    """Of each document."""
    histogram: list[tuple[int, int]] | None = None
    """Lengths, each with how many documents have it."""
    mean: float | None = None
    """As if all documents were as long."""


class PackingGiven(Part):
    """How documents lie in a sequence."""

    variant: PackingVariant
    documents: DocumentsGiven | None = None
    """By default each is a whole sequence."""


def _read_packing(value: Any) -> Any:
    value = {"variant": value} if isinstance(value, str) else few(value)
    if not isinstance(value, Mapping):
        return value
    if value.get("variant") is None:
        raise UsageError("variant", None, f"is required in an object: {', '.join(PackingVariant)}")
    if "documents" in value:
        return {**value, "documents": read_documents(value["documents"])}
    return value


class WorkloadGiven(Part):
    """What is trained."""

    model_name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """What a configuration is called in answers."""
    task: Task = Task.CAUSAL_LM  # before the model, which is read for it
    """What the model is trained for: its head, its batches and its loss. A classifier has as many
    labels as the configuration says (num_labels, or id2label)."""
    model: Annotated[
        ModelConfig,
        PlainValidator(_read_model, json_schema_input_type=Short | dict[str, Any]),
    ]
    """A name of the catalogue, or the fields of a Hugging Face config.json. Nothing is downloaded,
    no path is read, and weights are random."""
    sequence_length: SequenceLength
    """Tokens of one sequence."""
    global_batch_size: BatchSize
    """Sequences of one optimizer step, over all GPUs. No answer changes it."""
    optimizer: Optimizer = Optimizer.ADAMW
    precision: Precision | None = None
    """Number formats of weights and compute; by default fp32 on CPU ranks, and on GPUs
    bf16_mixed with accelerate, the Trainer and DeepSpeed, else bf16."""
    reduce_dtype: ReduceDtype | None = None
    """Number format in which gradients are summed. By default fp32 with precision fp32, else bf16;
    with accelerate and the Trainer in bf16_mixed what these do (framework): fp32 under DDP, bf16
    under FSDP."""
    loss: Loss = Loss.HF
    """What is done with whole logits: transformers' own loss (hf), or cross entropy of an fp32 copy
    of them (fp32) or of them as they are (own_dtype)."""
    adapter: (
        Annotated[
            Adapter,
            WrapValidator(_read_adapter, json_schema_input_type=AdapterMethod | Adapter),
        ]
        | None
    ) = None
    """What is trained in the place of the model, which is then frozen: lora, or qlora, which keeps
    that model in four bits, or an object of method, rank, alpha, dropout target_modules and
    modules_to_save, as peft calls them, with qlora quantize and double_quant, and of lora in
    eight bits quantize int8."""
    packing: (
        Annotated[
            Packing,
            BeforeValidator(_read_packing, json_schema_input_type=PackingVariant | PackingGiven),
        ]
        | None
    ) = None
    """How documents lie in a sequence: a variant, or an object of variant and documents, as
    lengths, a histogram, or their mean."""
    frozen: Annotated[tuple[str, ...], BeforeValidator(_split)] = ()
    """Parts of the model that are not trained: embeddings, head, or names of its modules, such as
    norm, visual and layers.0-15."""
    image_tokens: int = 0
    """Tokens of each sequence that stand for images, with task image_text_to_text."""
    tensor_parallel: TensorParallel = TensorParallel.SEQUENCE_PARALLEL
    """How layers are split under tensor parallelism: with sequence parallelism, or without it and
    each rank's logits sharded, or gathered, as transformers' own plans do."""

    _whole: Workload = PrivateAttr()
    _note: str = PrivateAttr(default="")

    @model_validator(mode="wrap")
    @classmethod
    def _held_together(
        cls, value: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        made = handler(value)
        written = value["model"]
        try:
            beside = ("model_name", "task", "precision", "reduce_dtype")
            made._whole = Workload(
                **{name: getattr(made, name) for name in cls.model_fields if name not in beside}
            )
        except UsageError as error:
            sizes = default_sizes(written) if made.task is Task.CAUSAL_LM else {}
            longest = sizes.get("max_position_embeddings")
            if error.field != "sequence_length" or longest is None:
                raise
            also = f"without max_position_embeddings it has transformers' default, {longest}"
            raise UsageError(error.field, error.given, f"{error.allowed}: {also}") from error
        made._note = model_note(written, made.task, here=is_here(info))
        return made

    def trained_by(self, name: FrameworkName, device: Device) -> Workload:
        """The workload as the framework's users train it on such devices, where it is not said."""
        precision = self.precision or usual_precision(name, device)
        reduced = self.reduce_dtype or usual_reduce_dtype(name, precision)
        return _in_formats(self._whole, precision, reduced)

    @property
    def is_traced(self) -> bool:
        """Tells whether dry runs alone know it."""
        return self._whole.is_traced

    @property
    def note(self) -> str:
        """A sentence on what is taken for granted of the model; empty where there is nothing."""
        return self._note


@lru_cache(maxsize=MOST_KEPT)
def _in_formats(
    workload: Workload, precision: Precision, reduced: ReduceDtype | None
) -> Workload:  # one for all cases of a kept part
    return replace(workload, precision=precision, reduce_dtype=reduced)


# -- where ----------------------------------------------------------------------------------------


def _gpu_name(value: Any) -> str:
    """A GPU's name where it comes without figures; otherwise empty."""
    if isinstance(value, Mapping) and set(value) == {"name"}:
        value = value["name"]
    return value if isinstance(value, str) else ""


def _read_gpu(value: Any, info: ValidationInfo) -> Any:
    name = short(_gpu_name(value), "gpu")
    if name == Device.CPU:
        allowed = 'for CPU ranks, a table with name, device = "cpu" and memory_bytes'
        raise UsageError("gpu", name, allowed)
    if name:
        try:
            return catalogue_gpu(name, "gpu")[0]
        except UnknownNameError as error:
            raise _maybe_uncovered(error, info) from error
    if not isinstance(value, Mapping | Gpu):
        raise UsageError("gpu", value, "must be a catalogue name or a table of fields")
    return few(value)


def _maybe_uncovered(error: UsageError, info: ValidationInfo) -> UsageError:
    """A name that is no mistake of spelling is of a GPU that nothing is known of."""
    name = re.sub(r"^(\d+x)+", "", str(error.given).strip())  # of a cluster as it is spelled
    if not isinstance(error, UnknownNameError) or is_here(info) or is_misspelled(name, gpu_kinds()):
        return error
    uncovered = NotCoveredError(error.field, error.given, error.allowed)
    uncovered.nearest = error.nearest
    return uncovered


class ClusterGiven(Part):
    """Where training runs; links that are left out are the catalogue's, or unknown."""

    gpu: Annotated[Gpu, BeforeValidator(_read_gpu, json_schema_input_type=Short | Gpu)]
    nodes: Annotated[int, Whole(1, MOST_NODES)]
    gpus_per_node: Annotated[int, Whole(1, MOST_GPUS_PER_NODE)]
    intra_node: Annotated[Link, BeforeValidator(few)] | None = None
    inter_node: Annotated[Link, BeforeValidator(few)] | None = None
    price_per_gpu_hour: Price | None = None
    """In any currency; costs are told in it by tuner size."""


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


def read_place(value: Any, info: ValidationInfo) -> str | Cluster:
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
        found = _read_cluster_file(Path(spelled))
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


def not_local(value: Any, info: ValidationInfo) -> Any:
    """Refuses the machine of whoever sends a request to another one."""
    if isinstance(value, str) and value.strip().lower() == "local" and not is_here(info):
        allowed = "is the machine that asks: name what it has, such as 8xa100-80gb"
        raise UsageError("cluster", value, allowed)
    return value


NamedPlace = Annotated[
    str | Cluster,
    PlainValidator(read_place, json_schema_input_type=Short | ClusterGiven),
    BeforeValidator(not_local),
]


def cluster_of(value: Any, info: ValidationInfo) -> Cluster:
    found = read_place(value, info)
    return parse_cluster(found) if isinstance(found, str) else found


def _read_cluster_file(path: Path) -> Any:
    """Reads a TOML or JSON file, by the ending of its name; its fields are not looked at."""
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


def _read_versions(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise UsageError("versions", value, "must be an object of versions by package")
    return check_stated(dict(value))


class FrameworkGiven(Part):
    """The stack that is launched."""

    name: Annotated[
        FrameworkName, PlainValidator(framework_name, json_schema_input_type=FrameworkName)
    ]
    versions: Annotated[
        Mapping[str, str],
        PlainValidator(_read_versions, json_schema_input_type=dict[str, str]),
    ] = Field(default_factory=dict, examples=[{"accelerate": "1.15.0"}])
    """Releases by package; those left out are the workers'."""

    def __hash__(self) -> int:
        return hash((self.name, *self.versions.items()))


def _read_framework(value: Any) -> Any:
    is_whole = isinstance(value, Mapping | FrameworkGiven)
    return value if is_whole else {"name": framework_name(value)}


FrameworkField = Annotated[
    FrameworkGiven,
    BeforeValidator(_read_framework, json_schema_input_type=FrameworkName | FrameworkGiven),
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
    one = Annotated[knob.kind, BeforeValidator(read)]  # type: ignore[name-defined]
    bounds = Field(min_length=1, json_schema_extra={"maxItems": MOST_VALUES})
    listed = Annotated[tuple[one, ...], bounds, BeforeValidator(check_list)]
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
    gpu_s: Seconds | None = None
    """GPU-seconds."""


MemoryLimit = Annotated[
    float,
    Number(2**-30, LARGEST_GIB, f"must be a number of GiB above 0 and up to {LARGEST_GIB}"),
]
