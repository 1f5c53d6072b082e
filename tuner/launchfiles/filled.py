"""DeepSpeed's JSON that another file names or holds, with what is ``auto`` in it filled in.

As transformers 5.23 does it of the Trainer's arguments (``HfTrainerDeepSpeedConfig``), and
accelerate 1.15 of its own file (``DeepSpeedPlugin``), whose script says the batch.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tuner.core.configuration import Checkpointing, Settings
from tuner.core.study import Question
from tuner.cost.memory.zero import DEFAULTS
from tuner.errors import UsageError
from tuner.launchfiles import deepspeed
from tuner.launchfiles.fields import Fields, Found

# What an answer changes of DeepSpeed's fields.
_TUNED = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization")
# Fields of accelerate's own, by those of DeepSpeed's that they stand for.
_BY_ACCELERATE = {
    "zero_stage": ("stage",),
    "offload_optimizer_device": ("offload_optimizer", "device"),
    "offload_param_device": ("offload_param", "device"),
}
FILE = "deepspeed_config_file"
# Fields of accelerate's that say what a JSON says too: it refuses them beside one
# (``DeepSpeedPlugin._deepspeed_config_checks``).
_IN_FILE = (
    *_BY_ACCELERATE, "gradient_accumulation_steps", "gradient_clipping",
    "offload_optimizer_nvme_path", "offload_param_nvme_path", "zero3_save_16bit_model",
)  # fmt: skip
_KNOWN = frozenset({
    FILE, *_IN_FILE, "zero3_init_flag", "deepspeed_moe_layer_cls_names", "deepspeed_hostfile",
    "deepspeed_multinode_launcher", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter",
})  # fmt: skip


def of_trainer(fields: Fields, found: Found, unsaid: frozenset[str]) -> Found:
    """What the Trainer's arguments say, that were ``found``, together with DeepSpeed's JSON.

    Raises:
        UsageError: it is not here, or says otherwise, which transformers refuses too.
    """
    if not isinstance(fields.values["deepspeed"], Mapping):
        allowed = "is not here to be read: put it beside this file, or its fields in its place"
        raise fields.error("deepspeed", allowed)
    values = dict(fields.values["deepspeed"])
    fields.refuse("fsdp", "is not applied with deepspeed: leave out one of them", but=(False, []))
    deepspeed.check_sizes(values, found.knobs, "the arguments say")
    values |= {name: found.knobs[knob] for name, knob in deepspeed.SIZES.items()}
    is_half = fields.flag("bf16")
    values = _halved(values, is_half)
    bf16 = Fields(values, "deepspeed.").part("bf16")
    if bf16.values.get("enabled") is not is_half and "torch_autocast" not in values:
        allowed = f"the arguments say {str(is_half).lower()}: transformers wants the same, or auto"
        raise UsageError("deepspeed.bf16.enabled", bf16.values.get("enabled"), allowed)
    engine = deepspeed.read(values)
    lines = [*found.uncounted, *engine.uncounted, *_sizes_of(values)]
    if found.knobs.get("fused_loss"):
        fields.pass_over("use_liger_kernel", "is not predicted with DeepSpeed: less memory", True)
        lines += fields.uncounted
    own = {name: one for name, one in found.knobs.items() if name in _BY_TRAINER}
    beside = {name: found.may[name] for name in ("model", "sequence_length") if name in found.may}
    return replace(
        engine,
        format_name=found.format_name,
        knobs={**engine.knobs, **own},
        unsaid=found.unsaid - unsaid,
        may={"optimizer": found.may["optimizer"], **beside, **engine.may},
        free={**engine.free, "activation_checkpointing": ("none", "full")},
        assumed={},
        uncounted=tuple(lines),
        by_hidden=_by_hidden(values),
    )


_BY_TRAINER = frozenset({*deepspeed.SIZES.values(), "activation_checkpointing"})


def of_accelerate(fields: Fields, found: Mapping[str, Any]) -> Found:
    """What accelerate's file says with DeepSpeed, by its own fields or DeepSpeed's JSON; with what
    else was ``found`` in it."""
    own = fields.part("deepspeed_config")
    own.refuse_others(_KNOWN)
    values = own.values.get(FILE)
    if values is not None and str(values).lower() != "none":
        beside = f"is refused by accelerate beside {FILE}: say it there alone"
        for name in _IN_FILE:
            if name in own.values:
                raise own.error(name, beside)
        if fields.values.get("mixed_precision") is not None:
            raise fields.error("mixed_precision", beside)
    if isinstance(values, str) and values.lower() != "none":
        allowed = "is not here to be read: put it beside this file, or its fields in its place"
        raise own.error(FILE, allowed)
    if not isinstance(values, Mapping):
        zero: dict[str, Any] = {"stage": own.values.get("zero_stage", 2)}
        for name, (table, *inner) in _BY_ACCELERATE.items():
            if inner and name in own:
                zero[table] = {inner[0]: own.values[name]}
        values = {"zero_optimization": zero}
        values["gradient_accumulation_steps"] = own.values.get("gradient_accumulation_steps")
    values = {"gradient_accumulation_steps": 1, **values}
    if "mixed_precision" in fields:  # else the script may say it
        values = _halved(values, fields.choice("mixed_precision", {"no": False, "bf16": True}))
    engine = deepspeed.read(values)
    return replace(
        engine,
        **found,
        auto=(engine.auto | {"micro_batch_size"}) - engine.knobs.keys(),  # of the script's batches
        uncounted=(*engine.uncounted, *_sizes_of(values)),
        by_hidden=_by_hidden(values),
    )


def _halved(values: Mapping[str, Any], is_half: bool) -> dict[str, Any]:
    """With number formats that are ``auto``, or not said, as who starts it says them."""
    found = dict(values)
    for name, is_on in (("bf16", is_half), ("fp16", False)):
        said = found.get(name) or {"enabled": "auto" if is_on or name in found else False}
        if isinstance(said, Mapping) and said.get("enabled") == "auto":
            said = {**said, "enabled": is_on}
        found[name] = said
    return found


def _by_hidden(values: Mapping[str, Any]) -> frozenset[str]:
    """Sizes of ZeRO that are filled in by the model's hidden size."""
    zero = Fields(values).part("zero_optimization")
    names = (name for name, size in zero.values.items() if size == "auto")
    return frozenset(names) & deepspeed.BY_HIDDEN.keys()


def _sizes_of(values: Mapping[str, Any]) -> Any:
    zero = Fields(values).part("zero_optimization")
    for name in sorted(_by_hidden(values)):
        default = getattr(DEFAULTS, deepspeed.NAMES[name])
        effect = f"follows from the model; counted as {default}, which is DeepSpeed's default"
        zero.pass_over(f"{zero.path}{name}", effect, "auto")
    return zero.uncounted


def _tuned(question: Question, settings: Settings) -> dict[str, Any]:
    found = deepspeed.configuration(question, settings)
    return {name: found[name] for name in _TUNED}


def tuned_by_trainer(question: Question, settings: Settings) -> dict[str, Any]:
    """The fields that say the settings, in the Trainer's arguments and DeepSpeed's JSON."""
    return {
        "per_device_train_batch_size": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "gradient_checkpointing": settings.activation_checkpointing is Checkpointing.FULL,
        "deepspeed": _tuned(question, settings),
    }


def tuned_by_accelerate(
    question: Question, settings: Settings, values: Mapping[str, Any]
) -> dict[str, Any]:
    """The same of accelerate's file that has ``values``."""
    found = _tuned(question, settings)
    if isinstance(Fields(values).part("deepspeed_config").values.get(FILE), Mapping):
        return {"deepspeed_config": {FILE: found}}
    zero = found["zero_optimization"]
    said = {"gradient_accumulation_steps": found["gradient_accumulation_steps"]}
    for name, (table, *inner) in _BY_ACCELERATE.items():
        said[name] = zero.get(table, {}).get(inner[0], "none") if inner else zero[table]
    return {"deepspeed_config": said}
