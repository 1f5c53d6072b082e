"""DeepSpeed's JSON, where the settings have an equivalent in ZeRO.

Fields are those of DeepSpeed 0.19.8: ``runtime/config.py``, ``runtime/zero/config.py`` and
``runtime/precision_config.py``. When gradients are reduced is its engine's decision
(``allreduce_gradients`` in ``runtime/engine.py``): in ZeRO 2 and 3 after every micro-batch, else
at the end of an accumulation. JSON has no comments: where the settings come from is under the key
``tuner``, which DeepSpeed does not look at, for it reads top-level keys by name.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from tuner.core.configuration import NO_MODEL_PARALLELISM, Checkpointing, Settings, Sharding
from tuner.core.framework import FrameworkName
from tuner.core.script import torchrun
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision
from tuner.cost.memory.zero import DEFAULTS, STAGES, Zero, stage_of
from tuner.cost.prediction import uncovered_settings
from tuner.errors import UsageError
from tuner.launchfiles import contract as refusals
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    asked,
    printable,
    reduced_in,
    sync_acts,
    told,
    written,
)
from tuner.launchfiles.fields import Fields, Found, Reader
from tuner.launchfiles.fsdp import DTYPES, weights

FILE_NAME = "deepspeed.json"
# Sizes of buckets and more that the file may say, in elements, by what the cost model calls them.
NAMES = {
    "reduce_bucket_size": "reduce_bucket_size",
    "stage3_prefetch_bucket_size": "prefetch_bucket_size",
    "stage3_param_persistence_threshold": "param_persistence_threshold",
    "stage3_max_live_parameters": "max_live_parameters",
    "stage3_max_reuse_distance": "max_reuse_distance",
    "sub_group_size": "sub_group_size",
}
# How transformers and accelerate fill in those that are ``auto``, of a model's hidden size.
BY_HIDDEN: Mapping[str, Callable[[int], int]] = {
    "reduce_bucket_size": lambda hidden: hidden * hidden,
    "stage3_prefetch_bucket_size": lambda hidden: int(0.9 * hidden * hidden),
    "stage3_param_persistence_threshold": lambda hidden: 10 * hidden,
}
MOST_ELEMENTS = 10**13
_ADAMW = (Optimizer.ADAMW, Optimizer.ADAMW_FUSED)


def configuration(question: Question, settings: Settings) -> dict[str, Any]:
    """The file's content for DeepSpeed."""
    values: dict[str, Any] = {
        "train_batch_size": question.workload.global_batch_size,
        "train_micro_batch_size_per_gpu": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "communication_data_type": str(reduced_in(question, settings)),
        "zero_optimization": {"stage": stage_of(settings, question.cluster)},
    }
    zero, own = values["zero_optimization"], question.framework.name is FrameworkName.DEEPSPEED
    if settings.cpu_offload:
        on_host = ("offload_param", "offload_optimizer")
        for name in on_host[zero["stage"] < 3 :]:
            zero[name] = {"device": "cpu", "pin_memory": True}
    if own and settings.sharding is Sharding.HYBRID_SHARD:
        zero["zero_hpz_partition_size"] = question.cluster.gpus_per_node
    # bf16 keeps fp32 copies of everything unless told otherwise, as nanotron does
    if question.framework.name is FrameworkName.NANOTRON:
        values |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    elif question.workload.precision is Precision.BF16:
        both = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        values["bf16"] = {"enabled": True, **both}
    elif question.workload.precision is Precision.BF16_MIXED and own:
        values["bf16"] = {"enabled": True}
    elif question.workload.precision is Precision.BF16_MIXED:
        values["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    if question.workload.optimizer not in _ADAMW:
        values["zero_allow_untested_optimizer"] = True
    if settings.cpu_offload:  # torch's own optimizer then steps on the CPU, as it was probed
        values["zero_force_ds_cpu_optimizer"] = False
    return values


def _why_not(question: Question, settings: Settings) -> str | None:
    work, stack = question.workload, question.framework
    stage, own = stage_of(settings, question.cluster), stack.name is FrameworkName.DEEPSPEED
    always = stage >= 2
    when = "after every micro-batch" if always else "at the end of an accumulation only"
    return refusals.first(
        refusals.own_script("the file says number formats, and what to optimize with", question),
        refusals.tensors("DeepSpeed's ZeRO", settings, "accelerate"),
        refusals.lacking(
            "DeepSpeed's ZeRO", question, settings, "pipelines", "rings", framework="accelerate"
        ),
        refusals.lacking("DeepSpeed's file", question, settings, "fused_loss"),
        refusals.lacking("DeepSpeed", question, settings, "adapters", "packing"),
        settings.sharding is Sharding.HYBRID_SHARD
        and not own
        and "ZeRO has no equivalent of hybrid_shard; ask again with --framework deepspeed, or"
        " --knob sharding=ddp,shard_grad_op,full_shard",
        work.optimizer is Optimizer.ADAMW_8BIT
        and "ZeRO partitions no optimizer state of torchao's 8-bit AdamW; ask again with"
        " --optimizer adamw",
        work.optimizer not in (*_ADAMW, Optimizer.SGD)
        and f"what ZeRO does with {work.optimizer}, whose state is not of the parameters' shapes,"
        " is not known here; ask again with --optimizer adamw",
        settings.cpu_offload
        and stage != 3
        and not own
        and "ZeRO offloads parameters in stage 3 only; ask again with --knob sharding=full_shard",
        own
        and (why := uncovered_settings(work, stack, question.cluster, settings))
        and f"of {stack.name}: {why}",
        work.precision is Precision.BF16
        and stage == 0
        and "without ZeRO, DeepSpeed's bf16 keeps fp32 weights and optimizer state; ask again with"
        " --precision bf16_mixed, or with --knob sharding=shard_grad_op,full_shard",
        settings.activation_checkpointing not in (Checkpointing.NONE, Checkpointing.FULL)
        and "checkpointing is the script's own with DeepSpeed, which this file cannot say; ask"
        " again with --knob activation_checkpointing=none,full",
        sync_acts(question, settings)
        and settings.sync_each_batch is not always
        and f"DeepSpeed reduces gradients {when} in ZeRO {stage}, whatever it is told; ask again"
        f" with --knob sync_each_batch={str(always).lower()}",
    )


def _sizes(stage: int, zero: Zero = DEFAULTS) -> dict[str, Any]:
    """What memory was counted with: DeepSpeed's defaults, written out for those who change them."""
    if not stage:
        return {}
    found = {"overlap_comm": zero.overlaps(stage)}
    names = (name for name in NAMES if stage == 3 or not name.startswith(("stage3", "sub")))
    return found | {name: getattr(zero, NAMES[name]) for name in names}


def _render(question: Question, settings: Settings, about: About) -> str:
    work, name = question.workload, question.framework.name
    nanotron, own = name is FrameworkName.NANOTRON, name is FrameworkName.DEEPSPEED
    values, dtype = configuration(question, settings), DTYPES[weights(question)]
    if own:
        values["zero_optimization"] |= _sizes(stage_of(settings, question.cluster))
        dtype = "torch.float32" if work.precision is Precision.FP32 else "torch.bfloat16"
    optimizer = "SGD" if work.optimizer is Optimizer.SGD else "AdamW"
    optimizer += " with fused=True" if work.optimizer is Optimizer.ADAMW_FUSED else ""
    notes = [
        about.other_stack,
        f"Load the model with dtype={dtype}, and hand torch.optim.{optimizer}"
        " to deepspeed.initialize.",
        f"Sequences are of {work.sequence_length} tokens.",
    ]
    if settings.activation_checkpointing is Checkpointing.FULL:
        notes.append(
            "Checkpointing is the script's: model.activation_checkpointing_enable({'use_reentrant':"
            " False}), which transformers before 5.23 calls gradient_checkpointing_enable."
        )
    if settings.cpu_offload and own:
        notes.append("torch's optimizer steps on the host here; DeepSpeed's CPU Adam is faster.")
    if work.precision is Precision.BF16 and not nanotron:
        notes.append("Needs DeepSpeed 0.18.3 or newer: bf16_optimizer_states was not there before.")
    origin = {
        "written": printable(written(about)),
        "study_id": about.study_id,
        "date": about.date,
        "provenance": str(about.provenance),
        "versions": dict(sorted(about.versions.items())),
        "question": printable(asked(question, settings)),
        "settings": str(settings),
        "figures": list(about.figures),
        "notes": [*filter(None, notes)],
        **({"reads": reads} if (reads := told(question, settings, about)) else {}),
    }
    return json.dumps({"tuner": origin, **values}, indent=2) + "\n"


FORMAT = Format(
    name="deepspeed",
    file_name=FILE_NAME,
    stack=Stack.DEEPSPEED,
    packages=("deepspeed", "torch", "transformers"),
    media_type="application/json",
    why_not=_why_not,
    render=_render,
    argv=lambda question, path: torchrun(question.cluster, "SCRIPT.py", "--deepspeed_config", path),
    script_sets=lambda question, settings: (
        (f"activation_checkpointing={settings.activation_checkpointing}",)
        if settings.activation_checkpointing is not Checkpointing.NONE
        else ()
    ),
)


NAME = "deepspeed"
# What the file can say otherwise; where its own stack answers, its stage too.
FREE: Mapping[str, tuple[Any, ...]] = {
    "micro_batch_size": (),
    "gradient_accumulation_steps": (),
}
# Fields that other files do not have.
MARKS = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"})
# By their stages.
SHARDINGS: tuple[Sharding, ...] = tuple(
    kind for kind in STAGES if kind is not Sharding.HYBRID_SHARD
)

OPTIMIZERS = {"adamw": Optimizer.ADAMW, "adam": Optimizer.ADAMW, "sgd": Optimizer.SGD}
_READ_DTYPES = {
    **dict.fromkeys(("bf16", "bfp16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp32", "float32"), "fp32"),
}
MASTERS = "must be true beside the other: one without the other is not predicted"
# Options of ZeRO that change what is kept and sent.
PLAIN_ZERO = ("zero_quantized_weights", "zero_quantized_gradients",
              "zero_quantized_nontrainable_weights", "mics_shard_size", "cpu_offload",
              "cpu_offload_param")  # fmt: skip
# Fields of the batch, by knob.
SIZES = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
ENGINES = ("tensor_parallel", "sequence_parallel", "compression_training", "sparse_attention")
TOP = frozenset({
    "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size",
    "gradient_accumulation_steps", "optimizer", "bf16", "bfloat16", "fp16", "amp", "torch_autocast",
    "communication_data_type", *ENGINES,
})  # fmt: skip
# What is read of the file, and of its ZeRO.
ZERO = frozenset({"stage", "offload_param", "offload_optimizer", "zero_hpz_partition_size",
                  "overlap_comm", *NAMES, *PLAIN_ZERO})  # fmt: skip
DEEPSPEED = str(FrameworkName.DEEPSPEED)
# Frameworks that train by torch's own sharding.
TORCHS = ("torch", "accelerate", "trainer")

OF_TORCH = (
    "the figures are of torch's own sharding, whose equivalent this is: DeepSpeed needs other"
    " buffers and has another speed"
)
ASSUMED = {
    "activation_checkpointing": "activation_checkpointing is the script's, and taken as none; where"
    " it is on, say --settings activation_checkpointing=full"
}


def check_sizes(values: Any, knobs: Mapping[str, Any], who: str) -> None:
    """Refuses a batch in DeepSpeed's JSON other than that of ``who`` names it, as transformers does
    (``HfTrainerDeepSpeedConfig``); a JSON that is not here says none.

    Raises:
        UsageError: they differ.
    """
    for name, knob in SIZES.items() if isinstance(values, Mapping) else ():
        if values.get(name) not in (None, "auto", knobs[knob]):
            allowed = f"{who} {knobs[knob]}: transformers wants the same, or auto"
            raise UsageError(f"deepspeed.{name}", values[name], allowed)


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file, or raises ``UsageError`` for a field. What is ``auto`` it does not say."""
    fields = Fields(_said(values))
    fields.refuse_misspelt(TOP)
    for name in ENGINES:
        fields.refuse(name, "is not predicted")
    zero = fields.part("zero_optimization")
    zero.refuse_misspelt(ZERO)
    for name in PLAIN_ZERO:
        zero.refuse(name, "is not predicted", but=(False, 0, 1, -1))
    precisions = _read_precision(fields)
    left = [one for one in ("bf16", "fp16") if _is_auto(values.get(one), "enabled")]
    if left and precisions == ("fp32",):
        precisions = ("bf16_mixed", "fp32")
    by_other = _is_auto(values.get("zero_optimization"), "stage")
    knobs, stacks, secondary = _read_zero(fields, zero, precisions[0], 2 if by_other else 0)
    for name, knob in SIZES.items():
        if (size := fields.whole(name)) is not None:
            knobs[knob] = size
    may: dict[str, tuple[Any, ...]] = {
        "framework": stacks,
        "precision": precisions,
    }
    if (batch := fields.whole("train_batch_size")) is not None:
        may["global_batch_size"] = (batch,)
    if "optimizer" in fields:
        may["optimizer"] = (str(fields.part("optimizer").choice("type", OPTIMIZERS)),)
    if "communication_data_type" in fields:
        may["reduce_dtype"] = (fields.choice("communication_data_type", _READ_DTYPES),)
    sized = _sized(zero)
    auto = frozenset(knob for name, knob in SIZES.items() if values.get(name) == "auto")
    if DEEPSPEED not in stacks:
        known: dict[str, Any] = {"notes": (OF_TORCH,), "assumed": ASSUMED, "auto": auto}
        return Found(format_name=NAME, free=FREE, knobs=knobs, may=may, **known)
    fields.part("data_types").refuse("grad_accum_dtype", "is not predicted", but=("bf16",))
    stage = zero.values.get("stage", 2 if by_other else 0)
    other = _sizes(stage, sized)
    for name, size in _sizes(stage).items():
        if other[name] != size:  # answers of other settings are counted by the default
            effect = f"counted as {size}, which is DeepSpeed's default"
            fields.pass_over(f"{zero.path}{name}", effect, other[name])
    return Found(
        format_name=NAME,
        free={**FREE, "sharding": tuple(map(str, SHARDINGS)), "sync_each_batch": ()},
        knobs=knobs,
        may=may,
        assumed=ASSUMED,
        auto=auto,
        unsaid=frozenset({"sharding"} if by_other else ()),
        secondary=secondary,
        uncounted=tuple(fields.uncounted),
        zero=None if sized == DEFAULTS else sized,
    )


def _read_zero(
    fields: Fields, zero: Fields, precision: str, default: int
) -> tuple[dict[str, Any], tuple[str, ...], int | None]:
    """Knobs, the frameworks that do what is asked for, and ranks of secondary shards."""
    stage = zero.values.get("stage", default)
    if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage < 4:
        raise zero.error("stage", "must be 0, 1, 2 or 3")
    stacks: tuple[str, ...] = (DEEPSPEED, *TORCHS)
    if fields.part("torch_autocast").flag("enabled"):  # of fp32 weights, as torch's own scripts do
        stacks = TORCHS
    elif precision == "bf16_mixed":
        stacks = (DEEPSPEED,)
    within = zero.whole("zero_hpz_partition_size", 1) if stage == 3 else 1
    kind = SHARDINGS[stage]
    if within != 1:
        kind, stacks = Sharding.HYBRID_SHARD, (DEEPSPEED,)
    params, state = (
        zero.part(name).choice("device", {"cpu": True, "none": False}, "none")
        for name in ("offload_param", "offload_optimizer")
    )
    if state and not params and stage in (1, 2) and DEEPSPEED in stacks:
        stacks = (DEEPSPEED,)
    elif params is not state:  # in stage 3 both or neither
        name = "offload_param" if state else "offload_optimizer"
        raise zero.error(name, "must be offloaded too: one without the other is not predicted")
    knobs = {"sharding": str(kind), **NO_MODEL_PARALLELISM, "cpu_offload": state}
    knobs["sync_each_batch"] = stage >= 2
    return knobs, stacks, within if within != 1 else None


def _sized(zero: Fields) -> Zero:
    """Sizes that the file says, and DeepSpeed's defaults."""
    found: dict[str, Any] = {}
    for name, known in NAMES.items():
        value = zero.values.get(name)
        if value is None:
            continue
        size = int(zero.number(name, 0))  # 5e8 is a number too
        if not 0 < size <= MOST_ELEMENTS:
            raise zero.error(name, f"must be a positive number, and {MOST_ELEMENTS} at most")
        found[known] = size
    if "overlap_comm" in zero:
        found["overlap_comm"] = zero.flag("overlap_comm")
    return Zero(**found)


def _said(values: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is left to the Trainer, or to accelerate."""
    return {
        name: _said(one) if isinstance(one, Mapping) else one
        for name, one in values.items()
        if one != "auto"
    }


def _is_auto(values: object, name: str) -> bool:
    return isinstance(values, Mapping) and values.get(name) == "auto"


def _read_precision(fields: Fields) -> tuple[str, ...]:
    if fields.part("fp16").flag("enabled"):
        raise fields.part("fp16").error("enabled", "must be false: fp16 is not predicted")
    fields.part("amp").refuse("enabled", "must be false: amp is not predicted", but=(False,))
    bf16 = fields.part(fields.any_of("bf16", "bfloat16"))  # the second is its old name
    autocast = fields.part("torch_autocast")
    if autocast.flag("enabled"):
        autocast.choice("dtype", {"bfloat16": True, "torch.bfloat16": True}, "bfloat16")
        return ("bf16_mixed",)
    if not bf16.flag("enabled"):
        return ("fp32",)
    narrow = {n: bf16.flag(n) for n in ("bf16_master_weights_and_grads", "bf16_optimizer_states")}
    if len(set(narrow.values())) > 1:
        raise bf16.error(next(name for name, is_on in narrow.items() if not is_on), MASTERS)
    return ("bf16" if all(narrow.values()) else "bf16_mixed",)


READER = Reader(
    name=NAME,
    marks=MARKS,
    read=read,
    tuned=lambda question, settings, values: configuration(question, settings),
)
