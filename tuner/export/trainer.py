"""``TrainingArguments`` of transformers' Trainer as JSON, and as a command with flags.

Field names are those of transformers 5.23 (``training_args.py``); those of 5.2 and 5.17 were read
for what has changed since. Both are read by ``HfArgumentParser``. JSON has no comments:
``run_name``, which loggers show, says where the settings come from, and what no argument can say is
in the command's comments, and printed beside the JSON.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.version import Version

from tuner.cluster import Device
from tuner.export import refusals
from tuner.export.contract import About, Format, Stack, other_stack
from tuner.export.fsdp import (
    DTYPES,
    LAYER_CLASSES,
    checkpoints_in_script,
    is_passed_over,
    is_sharded,
    reshards,
    weights,
)
from tuner.export.header import comments, header, printable, provenance, versions_text
from tuner.export.ranks import batch_text, has_data_parallel_ranks, torchrun
from tuner.export.shell import MEDIA_TYPE, argv, checks, command, usage
from tuner.framework import FrameworkName
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.study import Question
from tuner.workload import Optimizer, Precision, ReduceDtype

FILE_NAME = "training_args.json"
FLAGS_FILE_NAME = "trainer.sh"
LONGEST_RUN_NAME = 128
"""Characters; Weights & Biases shows no more."""

_OPTIMIZERS = {
    Optimizer.ADAMW: "adamw_torch",
    Optimizer.ADAMW_8BIT: "adamw_torch_8bit",
    Optimizer.SGD: "sgd",
}


def arguments(question: Question, settings: Settings, about: About) -> dict[str, Any]:
    """Fields of ``TrainingArguments``; of a user's script those that its probes were told."""
    sharded = is_sharded(question, settings)
    values: dict[str, Any] = {
        "run_name": _run_name(question, about),
        "per_device_train_batch_size": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "accelerator_config": {
            "gradient_accumulation_kwargs": {"sync_each_batch": settings.sync_each_batch}
        },
        **_numbers(question),
        **_checkpointing(question, settings),
    }
    if sharded:
        values |= _fsdp(question, settings)
    elif has_data_parallel_ranks(question, settings):
        values["ddp_find_unused_parameters"] = False  # none are; looking for them takes time
    if question.cluster.gpu.device is Device.CPU:
        values["use_cpu"] = True
    return values


def _numbers(question: Question) -> dict[str, Any]:
    """Optimizer and number format: a user's script has its own."""
    if question.script is not None:
        return {}
    work = question.workload
    return {"optim": _OPTIMIZERS[work.optimizer], "bf16": work.precision is Precision.BF16_MIXED}


def _run_name(question: Question, about: About) -> str:
    name = f"tuner {about.study_id} {about.date} {about.provenance}"
    return printable(f"{name}; {versions_text(about)}")[:LONGEST_RUN_NAME].rstrip("; ,")


def _checkpointing(question: Question, settings: Settings) -> dict[str, Any]:
    """By FSDP's plugin where that can, else by the model; older releases call it otherwise."""
    by_model = checkpoints_in_script(question, settings)
    stated = question.framework.versions.get("transformers")
    renamed = stated is not None and Version(stated) >= Version("5.23")
    name = "activation_checkpointing" if renamed else "gradient_checkpointing"
    if not by_model:
        return {name: False}
    return {name: True, f"{name}_kwargs": {"use_reentrant": False}}


def _fsdp(question: Question, settings: Settings) -> dict[str, Any]:
    full = settings.activation_checkpointing is Checkpointing.FULL
    return {
        "fsdp": _fsdp_field(question, settings),
        "fsdp_config": {
            "version": 2,
            "reshard_after_forward": reshards(settings),
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap": [LAYER_CLASSES[question.workload.model.model_type]],
            "activation_checkpointing": full and not checkpoints_in_script(question, settings),
            "cpu_offload": settings.cpu_offload,
            "cpu_ram_efficient_loading": True,
            "state_dict_type": "SHARDED_STATE_DICT",
        },
    }


def _fsdp_field(question: Question, settings: Settings) -> str | bool:
    """Before 5.17 some of FSDP's configuration was words here."""
    stated = question.framework.versions.get("transformers")
    if stated is None or Version(stated) >= Version("5.17"):
        return True
    words = ["full_shard" if reshards(settings) else "shard_grad_op", "auto_wrap"]
    return " ".join([*words, "offload"] if settings.cpu_offload else words)


def _why_not(question: Question, settings: Settings) -> str | None:
    return refusals.first(
        _other_script(question),
        refusals.model_parallelism("the Trainer", settings, "trainer"),
        refusals.zero1("the Trainer", settings, "trainer"),
        refusals.sharding("the Trainer", question, settings),
        _other_sharding(question, settings),
        _other_dtype(question, settings),
    )


def _other_script(question: Question) -> str | None:
    if question.framework.name is FrameworkName.TRAINER:
        return None
    return refusals.own_script("these are arguments of the Trainer", question)


def _other_sharding(question: Question, settings: Settings) -> str | None:
    if is_passed_over(question, settings):
        return "accelerate ignores FSDP on a CPU; ask again with --knob sharding=ddp"
    if not is_sharded(question, settings):
        return None
    if question.framework.fsdp_version == 1:
        return (
            "in these versions the Trainer shards with FSDP1, and tuner writes FSDP2; ask again"
            " with --framework-version transformers=5.17"
        )
    if settings.sharding is Sharding.HYBRID_SHARD:
        return (
            "TrainingArguments cannot say in JSON over which GPUs hybrid_shard shards; launch the"
            " Trainer with the file of the format accelerate, or ask again with --knob"
            " sharding=ddp,shard_grad_op,full_shard"
        )
    return None


def _other_dtype(question: Question, settings: Settings) -> str | None:
    """FSDP reduces in what it computes in, unless its plugin is told otherwise; DDP in the
    gradients' own format, unless a hook does it."""
    if question.script is not None or not has_data_parallel_ranks(question, settings):
        return None
    work = question.workload
    mixed = work.precision is Precision.BF16_MIXED and is_sharded(question, settings)
    reduced = ReduceDtype.BF16 if mixed else weights(question)
    if work.reduce_dtype is reduced:
        return None
    return (
        f"the Trainer reduces these gradients in {reduced}, and the study has {work.reduce_dtype};"
        f" ask again with --reduce-dtype {reduced}"
    )


def _beside(question: Question, settings: Settings) -> tuple[str, ...]:
    """What no argument says, and no comment."""
    said = other_stack(question, Stack.TORCH)
    return (*([said] if said else []), *_by_hand(question, settings))


def _by_hand(question: Question, settings: Settings) -> tuple[str, ...]:
    """What no argument says."""
    work, size = question.workload, question.cluster.world_size
    load = (
        f"Load the model with dtype={DTYPES[weights(question)]} and attn_implementation='sdpa',"
        " and set model.config.use_cache = False."
    )
    own = "The optimizer, number formats and all else are your script's own."
    return (
        load if question.script is None else own,
        f"Sequences are of {work.sequence_length} tokens;"
        f" {batch_text(question, settings)}, so start {size}"
        f" {'processes' if size > 1 else 'process'}: {' '.join(torchrun(question, 'SCRIPT.py'))}",
    )


def _render(question: Question, settings: Settings, about: About) -> str:
    return json.dumps(arguments(question, settings, about), indent=2) + "\n"


def _render_flags(question: Question, settings: Settings, about: About) -> str:
    how = comments(
        "For a script that reads its TrainingArguments by HfArgumentParser.",
        *_by_hand(question, settings),
    )
    top = header(provenance(question, settings, about), usage(question, FLAGS_FILE_NAME), how)
    flags = list(_flags(arguments(question, settings, about)))
    lines = ["#!/bin/sh", top, "set -eu", *checks(question, FLAGS_FILE_NAME)]
    return "\n".join([*lines, f"exec {command(question, flags)}", ""])


def _flags(values: Mapping[str, Any]) -> Iterator[str]:
    for name, value in values.items():
        if name == "fsdp" and value is True:
            yield "--fsdp"  # with a value it would be words, as before 5.17
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield f"--{name} {shlex.quote(text)}"


def _argv(question: Question, path: str) -> tuple[str, ...]:
    return tuple(torchrun(question, "SCRIPT.py", path))


FORMAT = Format(
    name="trainer",
    file_name=FILE_NAME,
    stack=Stack.TORCH,
    media_type="application/json",
    why_not=_why_not,
    render=_render,
    argv=_argv,
    beside=_beside,
)
FLAGS = Format(
    name="trainer-flags",
    file_name=FLAGS_FILE_NAME,
    stack=Stack.TORCH,
    media_type=MEDIA_TYPE,
    why_not=_why_not,
    render=_render_flags,
    argv=argv,
)
