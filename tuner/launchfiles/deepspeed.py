"""DeepSpeed's JSON, where the settings have an equivalent in ZeRO.

Fields are those of DeepSpeed 0.19.6: ``runtime/config.py``, ``runtime/zero/config.py`` and
``runtime/precision_config.py``. When gradients are reduced is its engine's decision
(``allreduce_gradients`` in ``runtime/engine.py``): in ZeRO 2 and 3 after every micro-batch, else
at the end of an accumulation. JSON has no comments: where the settings come from is under the key
``tuner``, which DeepSpeed does not look at, for it reads top-level keys by name.
"""

import json
from collections.abc import Mapping
from typing import Any

from tuner.core.configuration import NO_MODEL_PARALLELISM, Checkpointing, Settings, Sharding
from tuner.core.framework import FrameworkName
from tuner.core.script import torchrun
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision
from tuner.launchfiles import contract as refusals
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    asked,
    has_data_parallel_ranks,
    printable,
    reduced_in,
    sync_acts,
    written,
)
from tuner.launchfiles.fields import Fields, Found
from tuner.launchfiles.fsdp import DTYPES, weights

FILE_NAME = "deepspeed.json"
_STAGES = {
    Sharding.DDP: 0,
    Sharding.ZERO1: 1,
    Sharding.SHARD_GRAD_OP: 2,
    Sharding.FULL_SHARD: 3,
    Sharding.HYBRID_SHARD: 3,  # over all ranks: refused
}


_ADAMW = (Optimizer.ADAMW, Optimizer.ADAMW_FUSED)


def configuration(question: Question, settings: Settings) -> dict[str, Any]:
    """The file's content for DeepSpeed."""
    values: dict[str, Any] = {
        "train_batch_size": question.workload.global_batch_size,
        "train_micro_batch_size_per_gpu": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "communication_data_type": str(reduced_in(question, settings)),
        "zero_optimization": {"stage": _stage(question, settings)},
    }
    if settings.cpu_offload:
        for name in ("offload_param", "offload_optimizer"):
            values["zero_optimization"][name] = {"device": "cpu", "pin_memory": True}
    # bf16 keeps fp32 copies of everything unless told otherwise, as nanotron does
    if question.framework.name is FrameworkName.NANOTRON:
        values |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    elif question.workload.precision is Precision.BF16:
        both = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        values["bf16"] = {"enabled": True, **both}
    elif question.workload.precision is Precision.BF16_MIXED:
        values["torch_autocast"] = {"enabled": True, "dtype": "bfloat16"}
    if question.workload.optimizer not in _ADAMW:
        values["zero_allow_untested_optimizer"] = True
    if settings.cpu_offload:  # torch's own optimizer then steps on the CPU, as it was probed
        values["zero_force_ds_cpu_optimizer"] = False
    return values


def _stage(question: Question, settings: Settings) -> int:
    return _STAGES[settings.sharding] if has_data_parallel_ranks(question, settings) else 0


def _why_not(question: Question, settings: Settings) -> str | None:
    stage, precision = _stage(question, settings), question.workload.precision
    reason = refusals.first(
        refusals.own_script("the file says number formats, and what to optimize with", question),
        refusals.tensors("DeepSpeed's ZeRO", settings, "accelerate"),
        refusals.pipelines("DeepSpeed's ZeRO", settings, "accelerate"),
        refusals.fused("DeepSpeed's file", settings),
        refusals.adapters("DeepSpeed", question),
        refusals.packing("DeepSpeed", question),
    )
    if reason is not None:
        return reason
    if settings.sharding is Sharding.HYBRID_SHARD:
        return (
            "ZeRO has no equivalent of hybrid_shard; ask again with"
            " --knob sharding=ddp,shard_grad_op,full_shard"
        )
    if question.workload.optimizer is Optimizer.ADAMW_8BIT:
        return (
            "ZeRO partitions no optimizer state of torchao's 8-bit AdamW; ask again with"
            " --optimizer adamw"
        )
    if question.workload.optimizer not in (*_ADAMW, Optimizer.SGD):
        return (
            f"what ZeRO does with {question.workload.optimizer}, whose state is not of the"
            " parameters' shapes, is not known here; ask again with --optimizer adamw"
        )
    if settings.cpu_offload and stage != 3:
        return "ZeRO offloads parameters in stage 3 only; ask again with --knob sharding=full_shard"
    if precision is Precision.BF16 and stage == 0:
        return (
            "without ZeRO, DeepSpeed's bf16 keeps fp32 weights and optimizer state; ask again with"
            " --precision bf16_mixed, or with --knob sharding=shard_grad_op,full_shard"
        )
    if settings.activation_checkpointing not in (Checkpointing.NONE, Checkpointing.FULL):
        return (
            "checkpointing is the script's own with DeepSpeed, which this file cannot say; ask"
            " again with --knob activation_checkpointing=none,full"
        )
    always = stage >= 2
    if sync_acts(question, settings) and settings.sync_each_batch is not always:
        when = "after every micro-batch" if always else "at the end of an accumulation only"
        return (
            f"DeepSpeed reduces gradients {when} in ZeRO {stage}, whatever it is told; ask again"
            f" with --knob sync_each_batch={str(always).lower()}"
        )
    return None


def _render(question: Question, settings: Settings, about: About) -> str:
    work, nanotron = question.workload, question.framework.name is FrameworkName.NANOTRON
    optimizer = "SGD" if work.optimizer is Optimizer.SGD else "AdamW"
    optimizer += " with fused=True" if work.optimizer is Optimizer.ADAMW_FUSED else ""
    notes = [
        about.other_stack,
        f"Load the model with dtype={DTYPES[weights(question)]}, and hand torch.optim.{optimizer}"
        " to deepspeed.initialize.",
        f"Sequences are of {work.sequence_length} tokens.",
    ]
    if settings.activation_checkpointing is Checkpointing.FULL:
        notes.append(
            "Checkpointing is the script's:"
            " model.gradient_checkpointing_enable({'use_reentrant': False})."
        )
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
        "notes": notes,
    }
    return json.dumps({"tuner": origin, **configuration(question, settings)}, indent=2) + "\n"


FORMAT = Format(
    name="deepspeed",
    file_name=FILE_NAME,
    stack=Stack.DEEPSPEED,
    media_type="application/json",
    why_not=_why_not,
    render=_render,
    argv=lambda question, path: torchrun(question.cluster, "SCRIPT.py", "--deepspeed_config", path),
)


NAME = "deepspeed"
# What the file can say otherwise.
FREE: Mapping[str, tuple[Any, ...]] = {
    "micro_batch_size": (),
    "gradient_accumulation_steps": (),
}
# Fields that other files do not have.
MARKS = frozenset({"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"})
STAGES = (Sharding.DDP, Sharding.ZERO1, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD)
OPTIMIZERS = {"adamw": Optimizer.ADAMW, "adam": Optimizer.ADAMW, "sgd": Optimizer.SGD}
_READ_DTYPES = {
    **dict.fromkeys(("bf16", "bfp16", "bfloat16"), "bf16"),
    **dict.fromkeys(("fp32", "float32"), "fp32"),
}
MASTERS = "must be true: otherwise DeepSpeed keeps fp32 copies too, which is not predicted"
# Options of ZeRO that change what is kept and sent.
PLAIN_ZERO = ("zero_hpz_partition_size", "zero_quantized_weights", "zero_quantized_gradients",
              "zero_quantized_nontrainable_weights", "mics_shard_size", "cpu_offload",
              "cpu_offload_param")  # fmt: skip
ENGINES = ("tensor_parallel", "sequence_parallel", "compression_training", "sparse_attention")
TOP = frozenset({
    "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size",
    "gradient_accumulation_steps", "optimizer", "bf16", "bfloat16", "fp16", "amp", "torch_autocast",
    "communication_data_type", *ENGINES,
})  # fmt: skip
# What is read of the file, and of its ZeRO.
ZERO = frozenset({"stage", "offload_param", "offload_optimizer", *PLAIN_ZERO})

NOTES = (
    "the figures are of torch's own sharding, whose equivalent this is: DeepSpeed needs other"
    " buffers and has another speed",
    "activation_checkpointing is the script's, and taken as none; where it is on, say --settings"
    " activation_checkpointing=full",
)


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file.

    Raises:
        UsageError: a field is wrong, or asks for what is not predicted.
    """
    fields = Fields(values)
    fields.refuse_misspelt(TOP)
    for name in ENGINES:
        fields.refuse(name, "is not predicted")
    zero = fields.part("zero_optimization")
    zero.refuse_misspelt(ZERO)
    for name in PLAIN_ZERO:
        zero.refuse(name, "is not predicted", but=(False, 0, 1, -1))
    stage = zero.values.get("stage", 0)
    if not isinstance(stage, int) or isinstance(stage, bool) or not 0 <= stage < len(STAGES):
        raise zero.error("stage", "must be 0, 1, 2 or 3")
    knobs: dict[str, Any] = {
        "sharding": str(STAGES[stage]),
        **NO_MODEL_PARALLELISM,
        "sync_each_batch": stage >= 2,
    }
    devices = {  # both parameters and the optimizer's state, or neither
        name: zero.part(name).choice("device", {"cpu": True, "none": False}, "none")
        for name in ("offload_param", "offload_optimizer")
    }
    if len(set(devices.values())) > 1:
        name = next(name for name, is_on in devices.items() if not is_on)
        raise zero.error(name, "must be offloaded too: one without the other is not predicted")
    knobs["cpu_offload"] = devices["offload_param"]
    for knob, name in (("micro_batch_size", "train_micro_batch_size_per_gpu"),
                       ("gradient_accumulation_steps", "gradient_accumulation_steps")):  # fmt: skip
        if (size := _whole(fields, name)) is not None:
            knobs[knob] = size
    may: dict[str, tuple[Any, ...]] = {
        "framework": ("torch", "accelerate", "trainer"),
        "precision": (_read_precision(fields),),
    }
    if (batch := _whole(fields, "train_batch_size")) is not None:
        may["global_batch_size"] = (batch,)
    if "optimizer" in fields:
        may["optimizer"] = (str(fields.part("optimizer").choice("type", OPTIMIZERS)),)
    if "communication_data_type" in fields:
        may["reduce_dtype"] = (fields.choice("communication_data_type", _READ_DTYPES),)
    return Found(format_name=NAME, free=FREE, knobs=knobs, may=may, notes=NOTES)


def _whole(fields: Fields, name: str) -> int | None:
    """A number; ``auto`` is for the Trainer to fill in."""
    return None if fields.values.get(name) == "auto" else fields.whole(name)


def _read_precision(fields: Fields) -> str:
    if fields.part("fp16").flag("enabled"):
        raise fields.part("fp16").error("enabled", "must be false: fp16 is not predicted")
    fields.part("amp").refuse("enabled", "must be false: amp is not predicted", but=(False,))
    bf16 = fields.part(fields.any_of("bf16", "bfloat16"))  # the second is its old name
    autocast = fields.part("torch_autocast")
    if autocast.flag("enabled"):
        autocast.choice("dtype", {"bfloat16": True, "torch.bfloat16": True}, "bfloat16")
        return "bf16_mixed"
    if not bf16.flag("enabled"):
        return "fp32"
    for name in ("bf16_master_weights_and_grads", "bf16_optimizer_states"):
        if not bf16.flag(name):
            raise bf16.error(name, MASTERS)
    return "bf16"


def tuned(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say the settings, in a file that has ``values``."""
    return configuration(question, settings)
