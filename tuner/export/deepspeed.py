"""DeepSpeed's JSON, where the settings have an equivalent in ZeRO.

Fields are those of DeepSpeed 0.19.6: ``runtime/config.py``, ``runtime/zero/config.py`` and
``runtime/precision_config.py``. When gradients are reduced is its engine's decision
(``allreduce_gradients`` in ``runtime/engine.py``): in ZeRO 2 and 3 after every micro-batch, else
at the end of an accumulation. JSON has no comments: where the settings come from is under the key
``tuner``, which DeepSpeed does not look at, for it reads top-level keys by name.
"""

import json
from collections.abc import Iterator
from typing import Any

from tuner.export import refusals
from tuner.export.contract import About, Format, Stack
from tuner.export.fsdp import DTYPES, weights
from tuner.export.header import asked, printable, written
from tuner.export.ranks import has_data_parallel_ranks, sync_acts, torchrun
from tuner.framework import FrameworkName
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.study import Question
from tuner.workload import Optimizer, Precision

FILE_NAME = "deepspeed.json"
_STAGES = {
    Sharding.DDP: 0,
    Sharding.ZERO1: 1,
    Sharding.SHARD_GRAD_OP: 2,
    Sharding.FULL_SHARD: 3,
    Sharding.HYBRID_SHARD: 3,  # over all ranks: refused
}


def configuration(question: Question, settings: Settings) -> dict[str, Any]:
    """The file's content for DeepSpeed."""
    values: dict[str, Any] = {
        "train_batch_size": question.workload.global_batch_size,
        "train_micro_batch_size_per_gpu": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "communication_data_type": str(question.workload.reduce_dtype),
        "zero_optimization": _zero(question, settings),
        **_precision(question),
    }
    if question.workload.optimizer is not Optimizer.ADAMW:
        values["zero_allow_untested_optimizer"] = True
    if settings.cpu_offload:  # torch's own optimizer then steps on the CPU, as it was probed
        values["zero_force_ds_cpu_optimizer"] = False
    return values


def _stage(question: Question, settings: Settings) -> int:
    return _STAGES[settings.sharding] if has_data_parallel_ranks(question, settings) else 0


def _zero(question: Question, settings: Settings) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": _stage(question, settings)}
    if settings.cpu_offload:
        zero["offload_param"] = {"device": "cpu", "pin_memory": True}
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return zero


def _precision(question: Question) -> dict[str, Any]:
    """bf16 keeps fp32 copies of everything unless told otherwise, as nanotron does; mixed
    precision is torch's autocast.
    """
    if question.framework.name is FrameworkName.NANOTRON:
        return {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    if question.workload.precision is Precision.BF16:
        both = {"bf16_master_weights_and_grads": True, "bf16_optimizer_states": True}
        return {"bf16": {"enabled": True, **both}}
    if question.workload.precision is Precision.BF16_MIXED:
        return {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}}
    return {}


def _why_not(question: Question, settings: Settings) -> str | None:
    return refusals.first(
        refusals.own_script("the file says number formats, and what to optimize with", question),
        refusals.model_parallelism("DeepSpeed's ZeRO", settings, "accelerate"),
        _no_equivalent(question, settings),
        _other_sync(question, settings),
    )


def _no_equivalent(question: Question, settings: Settings) -> str | None:
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
    if settings.cpu_offload and _stage(question, settings) != 3:
        return "ZeRO offloads parameters in stage 3 only; ask again with --knob sharding=full_shard"
    if question.workload.precision is Precision.BF16 and _stage(question, settings) == 0:
        return (
            "without ZeRO, DeepSpeed's bf16 keeps fp32 weights and optimizer state; ask again with"
            " --precision bf16_mixed, or with --knob sharding=shard_grad_op,full_shard"
        )
    return None


def _other_sync(question: Question, settings: Settings) -> str | None:
    if not sync_acts(question, settings):
        return None
    always = _stage(question, settings) >= 2
    if settings.sync_each_batch is always:
        return None
    when = "after every micro-batch" if always else "at the end of an accumulation only"
    return (
        f"DeepSpeed reduces gradients {when} in ZeRO {_stage(question, settings)}, whatever it is"
        f" told; ask again with --knob sync_each_batch={str(always).lower()}"
    )


def _render(question: Question, settings: Settings, about: About) -> str:
    origin = {
        "written": printable(written(about)),
        "study_id": about.study_id,
        "date": about.date,
        "provenance": str(about.provenance),
        "versions": dict(sorted(about.versions.items())),
        "question": printable(asked(question)),
        "settings": str(settings),
        "figures": list(about.figures),
        "notes": [about.other_stack, *_notes(question, settings)],
    }
    return json.dumps({"tuner": origin, **configuration(question, settings)}, indent=2) + "\n"


def _notes(question: Question, settings: Settings) -> Iterator[str]:
    work, nanotron = question.workload, question.framework.name is FrameworkName.NANOTRON
    optimizer = "SGD" if work.optimizer is Optimizer.SGD else "AdamW"
    yield (
        f"Load the model with dtype={DTYPES[weights(question)]}, and hand torch.optim.{optimizer}"
        " to deepspeed.initialize."
    )
    yield f"Sequences are of {work.sequence_length} tokens."
    if settings.activation_checkpointing is Checkpointing.FULL:
        yield (
            "Checkpointing is the script's:"
            " model.gradient_checkpointing_enable({'use_reentrant': False})."
        )
    if work.precision is Precision.BF16 and not nanotron:
        yield "Needs DeepSpeed 0.18.3 or newer: bf16_optimizer_states was not there before."


def _argv(question: Question, path: str) -> tuple[str, ...]:
    return tuple(torchrun(question, "SCRIPT.py", "--deepspeed_config", path))


FORMAT = Format(
    name="deepspeed",
    file_name=FILE_NAME,
    stack=Stack.DEEPSPEED,
    media_type="application/json",
    why_not=_why_not,
    render=_render,
    argv=_argv,
)
