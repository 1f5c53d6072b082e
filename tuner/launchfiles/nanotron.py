"""The blocks of nanotron's configuration that the settings decide, alone or in a file of yours.

Fields are those of nanotron's repository on 7 April 2026 (commit 2411b022, which calls itself 0.4):
``ParallelismArgs`` in ``config/parallelism_config.py``; ``TokensArgs`` and ``OptimizerArgs`` in
``config/config.py``. Everything else that nanotron requires (data, model, schedule) is of the
user's own file.
"""

import shlex
from collections.abc import Mapping
from typing import Any

from tuner.core.cluster import Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import FrameworkName
from tuner.core.script import torchrun
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    comments,
    first,
    header,
    lacking,
    printable,
    provenance,
    sync_acts,
    yaml_text,
)
from tuner.launchfiles.editing import merged
from tuner.launchfiles.fields import Fields, Found, Reader

FILE_NAME = "nanotron.yaml"
_OPTIMIZERS = {Optimizer.ADAMW: "adamW", Optimizer.SGD: "sgd"}


def configuration(question: Question, settings: Settings) -> dict[str, Any]:
    """The blocks: fields of nanotron's ``Config``.

    Of a nanotron that was probed as a script of the user's, they are what that was told: all else
    is its own.
    """
    ranks = settings.data_parallel_size(question.cluster.world_size)
    parallel: dict[str, Any] = {"dp": ranks, "tp": settings.tp_size, "pp": settings.pp_size}
    recomputes = {"recompute_layer": settings.activation_checkpointing is Checkpointing.FULL}
    gathers = {"tp_recompute_allgather": settings.tp_recompute_allgather}
    if not settings.splits_layers:  # the release 0.4 refuses the field
        gathers = {}
    tokens = {
        "sequence_length": question.workload.sequence_length,
        "micro_batch_size": settings.micro_batch_size,
        "batch_accumulation_per_replica": settings.gradient_accumulation_steps,
    }
    zero = {"zero_stage": 1 if settings.sharding is Sharding.ZERO1 else 0}
    if question.script is not None:
        told = question.script.knobs
        parallel |= recomputes if "activation_checkpointing" in told else {}
        parallel |= gathers if "tp_recompute_allgather" in told else {}
        blocks = {"parallelism": parallel, "tokens": tokens}
        return {**blocks, "optimizer": zero} if "sharding" in told else blocks
    return {
        "parallelism": {
            **parallel,
            "pp_engine": "1f1b",
            "tp_mode": "REDUCE_SCATTER",
            "tp_linear_async_communication": True,
            **recomputes,
            "expert_parallel_size": 1,
            "context_parallel_size": 1,
            **gathers,
        },
        "tokens": tokens,
        "optimizer": {
            **zero,
            "accumulate_grad_in_fp32": True,
            "optimizer_factory": {"name": _OPTIMIZERS[question.workload.optimizer]},
        },
    }


def _why_not(question: Question, settings: Settings) -> str | None:
    work, name = question.workload, question.framework.name
    known = question.script is None  # else nothing is, of number formats and optimizer
    return first(
        name is not FrameworkName.NANOTRON
        and f"the study is of {name}, whose training step is not nanotron's; ask again with"
        " --framework nanotron",
        settings.sharding not in (Sharding.DDP, Sharding.ZERO1)
        and f"nanotron has no {settings.sharding}; ask again with --knob sharding=ddp,zero1",
        question.cluster.gpu.device is Device.CPU
        and "nanotron trains on GPUs; ask again with --cluster of GPUs",
        known
        and work.precision is not Precision.BF16
        and "nanotron's weights are bf16 with gradients accumulated in fp32, which is asked for"
        f" with --precision bf16, and the study has {work.precision}",
        known
        and work.optimizer not in _OPTIMIZERS
        and f"nanotron has no {work.optimizer}; ask again with --optimizer adamw",
        settings.sync_each_batch
        and sync_acts(question, settings)
        and "nanotron synchronizes gradients at the end of an accumulation only; ask again with"
        " --knob sync_each_batch=false",
        lacking("nanotron", question, settings, "fused_loss"),
        settings.cpu_offload
        and "nanotron has no CPU offload; ask again with --knob cpu_offload=false",
    )


def _render(question: Question, settings: Settings, about: About) -> str:
    command = torchrun(question.cluster, "run_train.py", "--config-file", about.path)
    use = [
        *comments(
            "These blocks go into your configuration, which has the rest (tuner export STUDY"
            " nanotron --into YOURS.yaml puts them there). Start it on each node:"
        ),
        f"#     CUDA_DEVICE_MAX_CONNECTIONS=1 {printable(shlex.join(command))}",
    ]
    notes = ["What your script was not told is not here: it stays as your file has it."]
    if question.script is None:
        notes = ["model.dtype must be bfloat16, which is nanotron's default."]
    if settings.splits_layers:
        notes.append(
            "tp_recompute_allgather needs a nanotron of 5 August 2024 or later from its repository:"
            " the release 0.4 lacks the field and refuses it."
        )
    top = header(provenance(question, settings, about), use, comments(*notes))
    # an empty line ends what merging takes to be this program's
    return f"{top}\n\n{yaml_text(configuration(question, settings))}"


FORMAT = Format(
    name="nanotron",
    file_name=FILE_NAME,
    stack=Stack.NANOTRON,
    packages=("nanotron", "torch"),
    why_not=_why_not,
    render=_render,
    argv=lambda question, path: torchrun(question.cluster, "run_train.py", "--config-file", path),
    merge=merged,
)


NAME = "nanotron"
# What the file can say otherwise.
FREE: Mapping[str, tuple[Any, ...]] = {
    "sharding": ("ddp", "zero1"), "tp_size": (), "pp_size": (), "tp_recompute_allgather": (),
    "micro_batch_size": (), "gradient_accumulation_steps": (),
    "activation_checkpointing": ("none", "full"),
}  # fmt: skip
# Fields that other files do not have.
MARKS = frozenset({"parallelism", "tokens"})
# Of a Llama's configuration; transformers has the same names.
SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size", "max_position_embeddings", "tie_word_embeddings",
)  # fmt: skip
TOP = ("parallelism", "tokens", "optimizer", "model")
PARALLEL = (
    "dp", "tp", "pp", "tp_recompute_allgather", "recompute_layer", "expert_parallel_size",
    "context_parallel_size", "tp_mode", "pp_engine",
)  # fmt: skip
# What is read of the file and of its parts.
TOKENS = ("sequence_length", "micro_batch_size", "batch_accumulation_per_replica")


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file, or raises ``UsageError`` for a field."""
    fields = Fields(values)
    parallel, tokens = fields.part("parallelism"), fields.part("tokens")
    for part, known in ((fields, TOP), (parallel, PARALLEL), (tokens, TOKENS)):
        part.refuse_misspelt(known)
    sizes = {name: _required(parallel, name) for name in ("dp", "tp", "pp")}
    for name in ("expert_parallel_size", "context_parallel_size"):
        parallel.refuse(name, "must be 1: another is not predicted")
    if sizes["tp"] > 1:
        parallel.choice("tp_mode", {"reduce_scatter": True}, "reduce_scatter")
    if sizes["pp"] > 1:
        parallel.choice("pp_engine", {"1f1b": True}, "1f1b")
    micro = _required(tokens, "micro_batch_size")
    steps = tokens.whole("batch_accumulation_per_replica", 1) or 1
    knobs: dict[str, Any] = {
        "sharding": str(_sharding(fields.part("optimizer"))),
        "tp_size": sizes["tp"],
        "pp_size": sizes["pp"],
        "tp_recompute_allgather": parallel.flag("tp_recompute_allgather", default=True),
        "micro_batch_size": micro,
        "gradient_accumulation_steps": steps,
        "sync_each_batch": False,  # it knows nothing else
        "activation_checkpointing": str(
            Checkpointing.FULL if parallel.flag("recompute_layer") else Checkpointing.NONE
        ),
        "cpu_offload": False,
    }
    if sizes["tp"] == 1:
        del knobs["tp_recompute_allgather"]  # it does nothing
    return Found(
        format_name=NAME,
        free=FREE,
        knobs=knobs,
        may=_may(fields, micro * steps * sizes["dp"]),
        ranks=sizes["dp"] * sizes["tp"] * sizes["pp"],
        ranks_field="parallelism.dp x tp x pp",
    )


def _may(fields: Fields, batch: int) -> dict[str, tuple[Any, ...]]:
    model = fields.part("model")
    model.choice("dtype", {"bfloat16": True}, "bfloat16")
    factory = fields.part("optimizer").part("optimizer_factory")
    names = {name.lower(): optimizer for optimizer, name in _OPTIMIZERS.items()}
    may: dict[str, tuple[Any, ...]] = {
        "framework": ("nanotron",),
        "precision": ("bf16",),
        "sequence_length": (_required(fields.part("tokens"), "sequence_length"),),
        "global_batch_size": (batch,),
        "optimizer": (str(factory.choice("name", names, "adamw")),),
    }
    if model.part("model_config").values:
        own = model.part("model_config")  # as transformers' configuration has it
        if not own.flag("is_llama_config", default="is_qwen2_config" not in own):
            allowed = "must be true: other models are named with --model"
            raise own.error("is_llama_config", allowed)
        own.refuse("moe_config", "is not predicted")
        sizes = {name: own.values[name] for name in SIZES if name in own}
        may["model"] = ({"model_type": "llama", **sizes},)
    return may


def _sharding(fields: Fields) -> Sharding:
    fields.refuse_misspelt(("zero_stage", "accumulate_grad_in_fp32", "optimizer_factory"))
    stage = fields.values.get("zero_stage", 0)
    if stage not in (0, 1) or not isinstance(stage, int) or isinstance(stage, bool):
        raise fields.error("zero_stage", "must be 0 or 1: nanotron has no other")
    if not fields.flag("accumulate_grad_in_fp32", default=True):
        allowed = "must be true: gradients in bf16 are not predicted"
        raise fields.error("accumulate_grad_in_fp32", allowed)
    return Sharding.ZERO1 if stage == 1 else Sharding.DDP


def _required(fields: Fields, name: str) -> int:
    size = fields.whole(name)
    if size is None:
        raise fields.error(name, "must be there")
    return size


READER = Reader(
    name=NAME,
    marks=MARKS,
    read=read,
    tuned=lambda question, settings, values: configuration(question, settings),
)
