"""A configuration file as a case or a question: what it says, and what is said beside it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tuner.catalog import models
from tuner.catalog.models import Task
from tuner.catalog.versions import meets, version_table
from tuner.client.cases import Case
from tuner.client.predict import read_single_case
from tuner.client.request import read_cluster
from tuner.client.values import NotCoveredError, as_large, read_model
from tuner.core.adapter import ALL_LINEAR, Adapter, AdapterMethod, Quantize
from tuner.core.bounds import choice
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import (
    FSDP,
    KNOBS,
    Checkpointing,
    Sharding,
    knob_value,
    model_parallel_size,
)
from tuner.core.framework import (
    FrameworkName,
    flag_differs,
    framework,
    installed_versions,
    usual_precision,
)
from tuner.core.packing import Packing, PackingVariant
from tuner.core.script import loses_random_state
from tuner.core.workload import Precision
from tuner.cost.memory.zero import DEFAULTS
from tuner.errors import REQUIRED, UsageError, all_of
from tuner.launchfiles import axolotl, trainer
from tuner.launchfiles.deepspeed import BY_HIDDEN, NAMES
from tuner.launchfiles.fields import Found, Uncounted
from tuner.launchfiles.files import is_text
from tuner.launchfiles.fsdp import NOT_SAID, ON_HOST, layer_class, weights
from tuner.model import ModelConfig, read_model_config
from tuner.model.fields import ARCHITECTURES
from tuner.model.shape import attention_names, linears

# Arguments that are as the file says, or what is beside it.
AS_SAID = ("reduce_dtype", "loss", "tensor_parallel", "frozen", "image_tokens")
NO_OPTION = "the file does not say it"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSays:
    """What a file asks, with what is said beside it."""

    arguments: Mapping[str, Any]
    """Of :func:`tuner.predict`, without settings and limits."""
    knobs: Mapping[str, Any]
    """Values as the file has them."""
    made: str
    """How the global batch is made, as a product; empty where it is only said."""
    notes: tuple[str, ...]
    uncounted: tuple[Uncounted, ...]
    """What no figure takes into account."""


def place_of(file: str) -> Path:
    """The path of a file; of the text of one, a file in this folder."""
    return Path("file" if is_text(file) else file)


def asked_of(
    found: Found, beside: Mapping[str, Any], folder: Path | None = None, *, whole: bool = False
) -> FileSays:
    """What a file asks, with what is said ``beside`` it, by argument of :func:`tuner.predict`; a
    model may lie in its folder. A ``whole`` case has all knobs.

    Raises:
        UsageError: something is missing, or said otherwise.
        NotCoveredError: it is of a training step that is not predicted.
    """
    for one in found.uncounted:
        if one.rules_out:
            raise NotCoveredError(one.key, one.value, one.effect)
    beside, taken = _with_header(found, beside)
    own = partial(_own, found, beside)
    # Where it was to run, and in which versions, may have changed since it was written.
    stated = beside.get("framework_versions") or _own(found, {}, "framework_versions")
    knobs = _knobs(found, beside.get("settings") or {})
    _check_said(found, beside, knobs, whole=whole)
    cluster = read_cluster(beside.get("cluster") or own("cluster"))
    _check_cluster(found, cluster)
    ranks = cluster.world_size // model_parallel_size(knobs)
    batch, parts = own("global_batch_size"), ""
    micro, steps = knobs.get("micro_batch_size"), knobs.get("gradient_accumulation_steps")
    if steps is not None and micro is not None:
        made, parts = micro * steps * ranks, f"{micro} x {steps} x {ranks} data-parallel ranks"
        if batch is not None and batch != made:
            raise UsageError("global_batch_size", batch, f"the file makes {made} on it: {parts}")
        batch = made
    model, notes = _model(found, beside, folder)
    written = found.told[0].workload.global_batch_size if found.told else batch
    if batch != written:
        notes.append(f"exported for a global batch of {written}, and makes {batch} as it is now")
    layer = layer_class(model)
    if found.layer_classes and layer and found.layer_classes != (layer,) and found.strict:
        allowed = (
            f"the blocks of this model are of the class {layer}, which the file does not shard"
        )
        raise UsageError("transformer_layer_cls_to_wrap", ",".join(found.layer_classes), allowed)
    length, stack = own("sequence_length"), own("framework")
    adapter, packing, precision = own("adapter"), own("packing"), own("precision")
    usual = usual_precision(FrameworkName(stack), cluster.gpu.device)
    if usual is Precision.FP32 and not beside.get("precision"):
        # a file that only says that nothing is mixed leaves weights to the script
        precision = usual if usual in found.may.get("precision", ()) else precision
    uncounted = _uncounted(found, stack, stated)
    if not found.strict:
        model = _longer(model, length, uncounted)
        adapter = _stored_bits(adapter, str(found.may.get("model", ("",))[0]), uncounted)
        adapter = _fitting_bits(adapter, model, precision, knobs, uncounted)
        adapter = _fitting_adapter(adapter, model, uncounted, found.format_name)
        if packing and precision == Precision.FP32:  # FlashAttention takes 16 bits
            packing = {**packing, "variant": PackingVariant.POSITION_IDS}
        packing = _fitting_packing(packing, model, length, uncounted)
    fused = bool(found.knobs.get("fused_loss"))
    stated, liger = with_liger(fused, stack, stated)
    knobs, why = _on_host(found, knobs, {**installed_versions(), **(stated or {})})
    arguments = {
        "model": model,
        "cluster": cluster,
        "global_batch_size": batch,
        "sequence_length": length,
        "optimizer": "adamw" if own("optimizer") is None else own("optimizer"),
        "precision": precision,
        "adapter": adapter,
        "packing": packing,
        **{name: own(name) for name in AS_SAID},
        "task": None if "model_name" in found.may else own("task"),
        "framework": stack,
        "framework_versions": stated,
    }
    return FileSays(
        arguments=arguments,
        knobs=knobs,
        made=parts,
        notes=(*found.notes_beside(knobs), *taken, *notes, *liger, *why),
        uncounted=tuple(uncounted),
    )


def _model(
    found: Found, beside: Mapping[str, Any], folder: Path | None
) -> tuple[ModelConfig, list[str]]:
    """The model that the file names or holds, or that is said beside it; and notes on it."""
    said, given = found.may.get("model", (None,))[0], beside.get("model")
    name = found.may.get("model_name", ("",))[0]
    if said is not None and given is not None and not isinstance(said, str):
        shown = given if isinstance(given, str) else "a model"
        raise UsageError("model", shown, "the file says which: leave it out")
    if said is not None and name:
        return read_model_config(said, name=name), []
    note = ""
    if isinstance(said, str) and given is None:
        said, note = _named(said, folder)
    task = choice("task", Task, _own(found, beside, "task") or Task.CAUSAL_LM)
    model = read_model(said if given is None else given, task)
    return model, [note] if note else []


def case_of(found: Found, beside: Mapping[str, Any], folder: Path | None = None) -> Case:
    """The whole case of a file; arguments are those of :func:`asked_of`."""
    asked = asked_of(found, beside, folder, whole=True)
    knobs, values = asked.knobs, asked.arguments
    ranks = values["cluster"].world_size // model_parallel_size(knobs)
    if values["global_batch_size"] > knobs["micro_batch_size"] * ranks and ranks > 1:
        # It accumulates: what decides how much memory that takes is not guessed.
        for name in [one for one in found.needs if one not in knobs]:
            whose = f"{found.needs[name]} decides it, and it is not said"
            raise UsageError(name, None, f"{whose}: --settings {name}=true or false")
    case = read_single_case(
        **{**values, "settings": knobs},
        headroom=beside.get("headroom"),
        memory_limit_gib=beside.get("memory_limit_gib"),
    )
    passed_over = trainer.no_fsdp2(case.question) if found.format_name == trainer.NAME else ""
    if passed_over and knobs.get("sharding") != Sharding.DDP:
        said = 2 if found.fsdp1 is None else found.fsdp1.value
        said = None if said == NOT_SAID else said
        raise UsageError("fsdp_config.version", said, f"{passed_over}, which is not predicted here")
    own = case.question.framework.name is FrameworkName.DEEPSPEED
    zero, model = found.zero if own else None, case.question.workload.model
    if own and found.by_hidden and not model.is_traced:
        sizes: dict[str, Any] = {
            NAMES[name]: BY_HIDDEN[name](model.hidden_size) for name in found.by_hidden
        }
        zero = replace(zero or DEFAULTS, **sizes)
    counted = "zero_optimization." if zero else None  # by which the case is counted
    lines = (str(one) for one in asked.uncounted if not counted or counted not in one.key)
    notes = [*asked.notes, *lines, *case.notes]
    if found.fsdp_checkpointing and (differs := flag_differs(case.question.framework)):
        notes.append(f"{differs}; that is counted")
    if found.fsdp_checkpointing and (lost := loses_random_state(case.question)):
        notes.append(f"let the script checkpoint, and not FSDP's option: {lost}")
    script = replace(case.script, fsdp_checkpointing=found.fsdp_checkpointing)
    script = replace(script, zero=zero)
    return replace(case, script=script, notes=tuple(notes))


def _named(spec: str, folder: Path | None) -> tuple[str, str]:
    """The model that a file names: in the catalogue, as a folder with its configuration, or one of
    a known shape by its name; and a note on the last.
    """
    if models.find(spec) is not None:
        return spec, ""
    for near in (folder or Path(), Path()):
        path = near / Path(spec).expanduser()
        if (path / "config.json").is_file():
            return str(path / "config.json"), ""
        if path.is_file() and path.suffix == ".json":
            return str(path), ""
    if (known := models.alike(spec)) is not None:
        return known, as_large(spec, known)
    raise UsageError(
        "model",
        spec,
        "is not in the catalogue: give one of its shape, or the path of its config.json, as"
        " --model",
    )


def _longer(model: ModelConfig, length: int, uncounted: list[Uncounted]) -> ModelConfig:
    """The model, for sequences that its configuration has no positions for: rotations go on."""
    field, longest = "max_position_embeddings", model.max_sequence_length
    rotates = not model.is_traced and ARCHITECTURES[model.model_type].rope is not None
    if length <= longest or field not in model.fields or not rotates:
        return model
    effect = f"{model.name} has {longest} positions: counted as if it had so many"
    uncounted.append(Uncounted(key="sequence length", value=length, effect=effect))
    return read_model_config({**model.as_config(), field: length}, model.name, model.task)


# Of a repository's name, that its weights are stored so.
_FEW_BITS = re.compile(
    r"[-_.](gptq|awq|aqlm|hqq|eetq|fp8|nvfp4|mxfp4|int[48]|[48]bit)([-_.]|$)", re.IGNORECASE
)


def _stored_bits(
    adapter: Mapping[str, Any] | None, spec: str, uncounted: list[Uncounted]
) -> Mapping[str, Any] | None:
    """The adapter beside a model that is stored in few bits, as its repository's name says."""
    if adapter is None or adapter["method"] != AdapterMethod.LORA or "quantize" in adapter:
        return adapter
    if re.search(r"(?i)bnb[-_]4bit", spec):  # loaded as it was stored, by transformers' default
        return {**adapter, "method": str(AdapterMethod.QLORA)}
    if _FEW_BITS.search(spec):
        effect = "weights of few bits are counted as 16 bits: less memory than predicted"
        uncounted.append(Uncounted(key="model", value=spec, effect=effect))
    return adapter


def _fitting_bits(
    adapter: Mapping[str, Any] | None,
    model: ModelConfig,
    precision: Any,
    knobs: Mapping[str, Any],
    uncounted: list[Uncounted],
) -> Mapping[str, Any] | None:
    """The adapter beside a model in eight bits where this is priced, else in 16."""
    if adapter is None or adapter.get("quantize") != Quantize.INT8:
        return adapter
    why = ""
    if knobs.get("sharding", Sharding.DDP) in FSDP:
        why = "bitsandbytes keeps whole matrices beside what FSDP shards"
    elif precision != Precision.BF16_MIXED:
        why = "peft keeps fp32 adapters beside it, which are not counted without mixed precision"
    elif model.is_traced or model.experts:
        why = f"what {model.model_type} takes then is not known"
    if not why:
        return adapter
    effect = f"is counted as 16 bits: {why}"
    uncounted.append(Uncounted(key="frozen weights", value="8 bits", effect=effect))
    return {name: one for name, one in adapter.items() if name != "quantize"}


def _fitting_adapter(
    adapter: Mapping[str, Any] | None,
    model: ModelConfig,
    uncounted: list[Uncounted],
    format_name: str,
) -> Mapping[str, Any] | None:
    """The adapter on those of its layers that the model has."""
    if adapter is None or model.is_traced:
        return adapter
    if model.experts:
        shared = model.fields.get("shared_expert_intermediate_size")
        if format_name == axolotl.NAME and ALL_LINEAR in adapter["target_modules"] and not shared:
            # axolotl names the linear layers that there are (``find_all_linear_names``), and packed
            # experts are none: peft's own word would stand for these too
            return {**adapter, "target_modules": [*attention_names(model)]}
        return adapter
    known = {one.name for one in linears(model)}
    given = adapter["target_modules"]
    kept = [one for one in given if one in known or one == ALL_LINEAR]
    if missing := [one for one in given if one not in kept]:
        effect = "is adapted too, and not counted" if kept else "is counted as all linear layers"
        uncounted.append(Uncounted(key="target", value=",".join(missing), effect=effect))
    adapter = {**adapter, "target_modules": kept or [ALL_LINEAR]}
    try:
        Adapter.from_dict(adapter).check(model)
    except UsageError as error:
        saved = adapter.get("modules_to_save")
        if not saved:
            raise
        effect = f"{error.allowed}: more memory than predicted"
        uncounted.append(Uncounted(key="modules_to_save", value=",".join(saved), effect=effect))
        adapter = {name: one for name, one in adapter.items() if name != "modules_to_save"}
    return adapter


def _fitting_packing(
    packing: Mapping[str, Any] | None, model: ModelConfig, length: int, uncounted: list[Uncounted]
) -> Mapping[str, Any] | None:
    """The packing that the model can be predicted with, if any."""
    if packing is None:
        return None
    why = ""
    for variant in dict.fromkeys((packing["variant"], PackingVariant.POSITION_IDS)):
        try:
            Packing(variant=PackingVariant(variant)).check(model, length)
        except UsageError as error:
            why = error.allowed
        else:
            return {**packing, "variant": str(variant)}
    effect = f"{why}: counted as sequences of one document, of which attention is the longest"
    uncounted.append(Uncounted(key="packing", value=packing["variant"], effect=effect))
    return None


def with_liger(
    fused: bool, name: Any, stated: Mapping[str, str] | None
) -> tuple[Mapping[str, str] | None, list[str]]:
    """Versions and notes, with liger-kernel's newest where the Trainer needs it and has none."""
    known = {**installed_versions(), **(stated or {})}
    if not fused or name != FrameworkName.TRAINER or "liger-kernel" in known:
        return stated, []
    newest = version_table().packages["liger-kernel"].newest
    note = f"liger-kernel is neither installed nor stated: it is taken to be {newest}"
    return {**(stated or {}), "liger-kernel": newest}, [note]


def _uncounted(found: Found, stack: str, stated: Mapping[str, str] | None) -> list[Uncounted]:
    """What no figure takes into account: FSDP1 is none of it in versions that shard by it."""
    lines = [*found.uncounted]
    if found.fsdp1 is not None and found.knobs["sharding"] != Sharding.DDP:
        newest = {name: package.newest for name, package in version_table().packages.items()}
        if framework(stack, stated, {**newest, **installed_versions()}).fsdp_version == 1:
            lines.remove(found.fsdp1)
    return lines


def _on_host(
    found: Found, knobs: dict[str, Any], known: Mapping[str, str]
) -> tuple[dict[str, Any], list[str]]:
    """Takes what accelerate's own option keeps on the host as kept on the device where the release
    passes over it, and says so."""
    knob, release = "activation_checkpointing", known.get("accelerate")
    if not found.fsdp_checkpointing or knobs.get(knob) != Checkpointing.OFFLOAD:
        return knobs, []
    first = f"acts from accelerate {ON_HOST.strip('>=')} on; older ones keep"
    said = f"fsdp_activation_checkpointing_offload {first} inputs of layers on the device"
    if release is None:
        return knobs, [said]
    if meets(release, ON_HOST):
        return knobs, []
    taken = f"{knob} is taken as full, for accelerate is {release}"
    return {**knobs, knob: str(Checkpointing.FULL)}, [f"{said}: {taken}"]


def _own(found: Found, beside: Mapping[str, Any], name: str) -> Any:
    """The value of a field; ``None`` where nobody gives one."""
    values, given = found.may.get(name, ()), beside.get(name)
    if given is None:
        return values[0] if values else None
    if values and given not in values:
        said = " or ".join(str(value) for value in values)
        if isinstance(given, Mapping) and isinstance(values[0], Mapping):  # what differs of them
            one = next((key for key in given if given[key] != values[0].get(key)), "")
            name, given, said = f"{name}.{one}", given.get(one), str(values[0].get(one))
        raise UsageError(name, given, f"the file says {said}: change it there")
    return given


def _with_header(found: Found, beside: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What is said beside a file, and for the rest what the header of an exported one says, unless
    its fields were changed since; and notes on these.
    """
    given = {name: value for name, value in beside.items() if value is not None}
    if found.told is None:
        return given, ()
    question, settings = found.told
    work = {"loss": str(question.workload.loss), **question.as_dict()["workload"]}
    for name in ("model_name", "global_batch_size"):  # the batch is made of its parts
        del work[name]
    told: dict[str, Any] = {
        **work,
        "model": question.workload.model,
        "cluster": question.cluster,
        "framework": str(question.framework.name),
        "framework_versions": dict(question.framework.versions) or None,
    }
    told = {n: one for n, one in told.items() if one in found.may.get(n, ()) or n not in found.may}
    notes: tuple[str, ...] = ()
    may, was = found.may.get("precision", ()), question.workload.precision
    if len(may) > 1 and was not in may and "precision" not in given:
        if question.workload.adapter is not None or weights(question) not in may:
            allowed = f"its script was written for it, and the file says {' or '.join(may)} now"
            raise UsageError("precision", str(was), f"{allowed}: say which")
        told["precision"] = str(weights(question))
        loads = f"{told['precision']}, in which its script loads the weights"
        notes = (f"exported in {was}, which the file no longer says: taken as {loads}",)
    loaded = found.unsaid & trainer.UNSAID
    knobs = {n: one for n, one in settings.as_dict().items() if n not in found.knobs or n in loaded}
    return {**told, **given, "settings": {**knobs, **given.get("settings", {})}}, notes


def _check_said(
    found: Found, beside: Mapping[str, Any], knobs: Mapping[str, Any], *, whole: bool
) -> None:
    """Refuses what neither the file says nor is said beside it, all at once; of a ``whole`` case
    knobs too."""
    needed = ["cluster", "model", "global_batch_size", "sequence_length", "framework"]
    if {"micro_batch_size", "gradient_accumulation_steps"} <= knobs.keys():
        needed.remove("global_batch_size")  # it is made of these
    missing = [
        UsageError(name, None, f"{REQUIRED}: {NO_OPTION}")
        for name in needed
        if beside.get(name) is None and next(iter(found.may.get(name, ())), None) is None
    ]
    if whole and "micro_batch_size" not in knobs:
        how = "--settings micro_batch_size=N"
        how += "".join(f",{name}=true|false" for name in found.needs if name not in knobs)
        missing.append(UsageError("micro_batch_size", None, f"{NO_OPTION}: {how}"))
    if missing:
        raise all_of(missing)


def _check_cluster(found: Found, cluster: Cluster) -> None:
    """Refuse a file for another number of nodes or ranks."""
    is_cpu = cluster.gpu.device is Device.CPU  # its groups stand for nodes, on one machine
    if found.ranks is not None and found.ranks != cluster.world_size:
        allowed = f"{cluster.name} has {cluster.world_size} ranks, and the file is not for them"
        raise UsageError(found.ranks_field, found.ranks, allowed)
    if found.nodes is not None and found.nodes != cluster.nodes and not is_cpu:
        allowed = f"{cluster.name} has {cluster.nodes}, and the file is not for it"
        raise UsageError("num_machines", found.nodes, allowed)
    if found.secondary not in (None, cluster.gpus_per_node):
        allowed = f"must be the GPUs of a node: {cluster.gpus_per_node}"
        raise UsageError("zero_optimization.zero_hpz_partition_size", found.secondary, allowed)
    if found.groups is not None and found.groups != (cluster.nodes, cluster.gpus_per_node):
        given = f"{found.groups[0]} groups of {found.groups[1]} ranks"
        allowed = f"groups must be the nodes: {cluster.nodes} of {cluster.gpus_per_node}"
        raise UsageError("parallelism_config", given, allowed)


def _knobs(found: Found, given: Mapping[str, Any]) -> dict[str, Any]:
    """All knobs that are decided, with values as JSON has them."""
    loaded = found.unsaid & trainer.UNSAID & given.keys()
    for name, value in given.items():
        if name in loaded:
            continue
        if name in found.knobs and knob_value(name, value) != knob_value(name, found.knobs[name]):
            said = f"{name}={str(found.knobs[name]).lower()}"
            allowed = f"the file says {said}"
            if name in found.unsaid:
                allowed = f"the file says nothing of it, which means {said}: say it there"
            raise UsageError("settings", f"{name}={value}", allowed)
    written = {**given, **found.knobs, **{name: given[name] for name in loaded}}
    knobs = {name: knob_value(name, written[name]) for name in KNOBS if name in written}
    return {name: one if isinstance(one, bool | int) else str(one) for name, one in knobs.items()}
