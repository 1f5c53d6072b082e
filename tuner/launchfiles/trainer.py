"""``TrainingArguments`` of transformers' Trainer as JSON, and as a command with flags.

Field names are those of transformers 5.23 (``training_args.py``); those of 5.2 and 5.17 were read
for what has changed since. Both are read by ``HfArgumentParser``. JSON has no comments:
``run_name``, which loggers show, says where the settings come from, and what no argument can say is
in the command's comments, and printed beside the JSON.
"""

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from tuner.catalog.versions import meets
from tuner.core.cluster import Device
from tuner.core.configuration import NO_MODEL_PARALLELISM, Checkpointing, Settings, Sharding
from tuner.core.framework import FrameworkName
from tuner.core.packing import PackingVariant
from tuner.core.quantity import Provenance
from tuner.core.script import checkpoints_in_script, is_sharded, torchrun
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision, ReduceDtype
from tuner.launchfiles import contract as refusals
from tuner.launchfiles import filled
from tuner.launchfiles.contract import (
    About,
    Format,
    Stack,
    batch_text,
    code,
    comment,
    has_data_parallel_ranks,
    header,
    loss_text,
    other_stack,
    printable,
    provenance,
    reduced_in,
    versions_text,
)
from tuner.launchfiles.fields import Fields, Found, Reader, known_fields
from tuner.launchfiles.fsdp import (
    DTYPES,
    ddp_reduce_dtype,
    dtype_argument,
    is_passed_over,
    loaded,
    options,
    read_fsdp,
    reshards,
    ring_variables,
    weights,
)
from tuner.launchfiles.model_code import (
    adapter_needs,
    attention,
    checkpoints_reentrantly,
    distributed_config,
    head_arguments,
    labels_text,
    packing_text,
    rendered,
)
from tuner.launchfiles.shell import MEDIA_TYPE, argv, checks, command, exports, usage
from tuner.space.rules import EVERY_2_BY_TRAINER, OFFLOAD_BY_MODEL

FILE_NAME = "training_args.json"
FLAGS_FILE_NAME = "trainer.sh"
# Releases whose ``fsdp_config`` has ``version``, ``reshard_after_forward`` and ``state_dict_type``
# (``TrainingArguments.__post_init__``: the wheels of 4.51.3 to 4.57.6, read; 4.52.4 was run).
FSDP2_BY_TRAINER = ">=5.0"
# Characters; Weights & Biases shows no more.
LONGEST_RUN_NAME = 128

# What of a sequence that ranks share no argument tells.
RING = (
    "Each process needs these variables: {}. Batches need an attention_mask, of ones: without it"
    " transformers makes a mask of all pairs of a part's tokens."
)

# ``OptimizerNames`` in training_args.py (the wheels of 4.38.2 to 5.23.0, read): all the same, but
# for torchao's.
_OPTIMIZERS = {
    Optimizer.ADAMW: "adamw_torch",
    Optimizer.ADAMW_FUSED: "adamw_torch_fused",
    Optimizer.ADAMW_8BIT: "adamw_torch_8bit",
    Optimizer.SGD: "sgd",
    Optimizer.ADAMW_BNB_8BIT: "adamw_bnb_8bit",
    Optimizer.PAGED_ADAMW_8BIT: "paged_adamw_8bit",
    Optimizer.LION: "lion_32bit",
    Optimizer.ADAFACTOR: "adafactor",
}
# Releases that have torchao's (in the wheel of 4.49.0, not in that of 4.48.0).
TORCHAO_BY_TRAINER = ">=4.49"


# Liger's loss alone, as it was priced: it would swap norms, rotations and MLPs too. What a model
# type has not is passed over (``_apply_liger_kernel_to_instance``, liger-kernel 0.8.5).
LIGER_CONFIG: Mapping[str, bool] = {
    "fused_linear_cross_entropy": True,
    "cross_entropy": False,
    "rope": False,
    "rms_norm": False,
    "swiglu": False,
    "geglu": False,
}


def arguments(question: Question, settings: Settings, about: About) -> dict[str, Any]:
    """Fields of ``TrainingArguments``; of a user's script those that its probes were told."""
    work, stated = question.workload, question.framework.versions.get("transformers")
    release = None if stated is None else Version(stated)
    # in a file without comments the name alone says which study it is of (:func:`told_by_name`)
    sizes = {"tp_size": settings.tp_size, "cp_size": settings.cp_size}
    ways = "".join(f" {knob}={size}" for knob, size in sizes.items() if size > 1)
    name = f"tuner {about.study_id} {about.date} {about.provenance}{ways}"
    name = f"{name}; {versions_text(about)}"
    values: dict[str, Any] = {
        "run_name": printable(name)[:LONGEST_RUN_NAME].rstrip("; ,"),
        "per_device_train_batch_size": settings.micro_batch_size,
        "gradient_accumulation_steps": settings.gradient_accumulation_steps,
        "accelerator_config": {
            "gradient_accumulation_kwargs": {"sync_each_batch": settings.sync_each_batch}
        },
    }
    if question.script is None:
        values["optim"] = _OPTIMIZERS[work.optimizer]
        split = bool(distributed_config(question, settings))
        by_model = split and is_sharded(question, settings)  # transformers casts what it shards
        values["bf16"] = work.precision is Precision.BF16_MIXED and not by_model
    # by FSDP's plugin where that can, else by the model; older releases call it otherwise
    renamed = release is not None and release >= Version("5.23")
    own = "activation_checkpointing" if renamed else "gradient_checkpointing"
    values[own] = checkpoints_in_script(question, settings)
    if values[own]:
        values[f"{own}_kwargs"] = {"use_reentrant": checkpoints_reentrantly(question, settings)}
        if settings.activation_checkpointing is Checkpointing.EVERY_2:
            values[f"{own}_kwargs"]["every_n_layers"] = 2
        if settings.activation_checkpointing is Checkpointing.OFFLOAD:
            values[f"{own}_kwargs"]["offload"] = True
    if settings.fused_loss and question.script is None:
        values["use_liger_kernel"] = True
        values["liger_kernel_config"] = dict(LIGER_CONFIG)
    if is_sharded(question, settings) and not settings.splits_layers:
        values["fsdp"] = True
        if release is not None and release < Version("5.17"):  # some of its options were words
            words = ["full_shard" if reshards(settings) else "shard_grad_op", "auto_wrap"]
            values["fsdp"] = " ".join([*words, "offload"] if settings.cpu_offload else words)
        names = {"offload_params": "cpu_offload"}
        found = {names.get(k, k): v for k, v in options(question, settings).items()}
        layer = found["transformer_layer_cls_to_wrap"]
        values["fsdp_config"] = {**found, "transformer_layer_cls_to_wrap": [layer]}
    elif has_data_parallel_ranks(question, settings) and not settings.splits_layers:
        values["ddp_find_unused_parameters"] = False  # none are; looking for them takes time
    if question.cluster.gpu.device is Device.CPU:
        values["use_cpu"] = True
    if question.script is None and work.packing is not None and work.packing.restarts:
        values["remove_unused_columns"] = False  # the collator takes documents
    return values


def _why_not(question: Question, settings: Settings) -> str | None:
    work, how = question.workload, settings.activation_checkpointing
    is_trainer, own = question.framework.name is FrameworkName.TRAINER, question.script is not None
    on_cpu = question.cluster.gpu.device is Device.CPU
    old = question.framework.too_old("transformers", TORCHAO_BY_TRAINER)
    needed, else_ = {
        Checkpointing.EVERY_2: (EVERY_2_BY_TRAINER, "checkpoints all layers or none"),
        Checkpointing.OFFLOAD: (OFFLOAD_BY_MODEL, "keeps inputs of layers on the device"),
    }.get(how, ("", ""))
    release = question.framework.versions.get("transformers")
    return refusals.first(
        not is_trainer and refusals.own_script("these are arguments of the Trainer", question),
        refusals.tensors("the Trainer", settings, "trainer", question),
        refusals.lacking("the Trainer", question, settings, "pipelines", framework="trainer"),
        settings.fused_loss
        and not is_trainer
        and "the Trainer computes the loss by Liger's kernels, and these settings by code of the"
        " script's; ask again with --framework trainer or --knob fused_loss=false",
        refusals.fsdp2("the Trainer", question, settings, "trainer"),
        _other_sharding(question, settings),
        _other_dtype(question, settings),
        how is Checkpointing.SELECTIVE
        and "the Trainer's arguments cannot name what selective checkpointing keeps; ask again with"
        " --knob activation_checkpointing=none,every_2,full",
        needed
        and release
        and not meets(release, needed)
        and f"in this version the Trainer {else_}; ask again with"
        f" --framework-version transformers={needed.strip('>=')}",
        refusals.lacking("the Trainer", question, settings, "varlen"),
        # on GPUs the Trainer moves the model there first
        on_cpu and refusals.lacking("the Trainer", question, settings, "fused_adamw"),
        not own
        and work.packing is not None
        and work.packing.variant is PackingVariant.BLOCK_DIAGONAL
        and f"the mask of packing {work.packing.variant} is made by a function on the device, which"
        " no argument says; take the format accelerate",
        not own
        and work.optimizer not in _OPTIMIZERS
        and f"the Trainer has no {work.optimizer}; take the format accelerate",
        not own
        and work.optimizer is Optimizer.ADAMW_8BIT
        and old
        and f"transformers {old} has no adamw_torch_8bit; ask again with --framework-version"
        f" transformers={TORCHAO_BY_TRAINER.strip('>=')}, or with --optimizer adamw_bnb_8bit",
    )


def _why_no_flags(question: Question, settings: Settings) -> str | None:
    """``HfArgumentParser`` takes no dictionary of ``liger_kernel_config`` from a command line:
    transformers 5.23 ends with "invalid dict value"."""
    return refusals.first(
        _why_not(question, settings),
        settings.fused_loss
        and question.script is None
        and "no flag takes liger_kernel_config; take the format trainer",
    )


def _other_sharding(question: Question, settings: Settings) -> str | None:
    newer = f"ask again with --framework-version transformers={FSDP2_BY_TRAINER.strip('>=')}"
    other = "launch the Trainer with the file of the format accelerate, or "
    if refusals.lacking("accelerate", question, settings, "liger"):  # which has another loss
        other = ""
    if is_passed_over(question, settings):
        return refusals.first(
            settings.splits_layers
            and "accelerate splits layers on GPUs alone; ask again with --knob tp_size=1",
            "accelerate ignores FSDP on a CPU; ask again with --knob sharding=ddp",
        )
    if not is_sharded(question, settings) or settings.splits_layers:
        return None
    passed_over = no_fsdp2(question)
    return refusals.first(
        # update_fsdp_plugin_peft in transformers/distributed/fsdp.py, 5.23
        question.workload.adapter is not None
        and "the Trainer shards each matrix of an adapter by itself, not with its layer; take the"
        " format accelerate, or ask again with --knob sharding=ddp",
        question.framework.fsdp_version == 1
        and f"in these versions the Trainer shards with FSDP1, and tuner writes FSDP2; {newer}",
        passed_over and f"{passed_over}; {other}{newer}",
        settings.sharding is Sharding.HYBRID_SHARD
        and "TrainingArguments cannot say in JSON over which GPUs hybrid_shard shards;"
        f" {other}ask again with --knob sharding=ddp,shard_grad_op,full_shard",
    )


def no_fsdp2(question: Question) -> str:
    """Why the Trainer's arguments choose no FSDP2 in the stated release; empty where they do."""
    old = question.framework.too_old("transformers", FSDP2_BY_TRAINER)
    why = "passes over the arguments that choose FSDP2, and would shard with FSDP1"
    return old and f"transformers {old} {why}"


def _other_dtype(question: Question, settings: Settings) -> str | None:
    """FSDP reduces in what it computes in, unless its plugin is told otherwise; DDP in the
    gradients' own format, or in bf16 by a hook of torch's (:func:`_hook`)."""
    if question.script is not None or not has_data_parallel_ranks(question, settings):
        return None
    work = question.workload
    mixed = work.precision is Precision.BF16_MIXED and is_sharded(question, settings)
    mixed = mixed and not settings.splits_layers  # what it splits transformers reduces in fp32
    reduced = ReduceDtype.BF16 if mixed else weights(question)
    asked = reduced_in(question, settings)
    if asked is reduced or _hook(question, settings):
        return None
    return (
        f"the Trainer reduces these gradients in {reduced}, and the study has {asked};"
        f" ask again with --reduce-dtype {reduced}"
    )


def _beside(question: Question, settings: Settings) -> tuple[str, ...]:
    """Lists what neither an argument nor a comment says."""
    said = other_stack(question, Stack.TORCH)
    return (*([said] if said else []), *_by_hand(question, settings))


def _by_hand(question: Question, settings: Settings) -> tuple[str, ...]:
    """Lists what no argument says; below the first line of a text is code."""
    work, size = question.workload, question.cluster.world_size
    given = "" if work.model.is_causal_lm else f"{work.model.task.auto_class}, "
    given += head_arguments(question)
    load = (
        f"Load the model with {given}{dtype_argument(question)}={DTYPES[loaded(question)]} and"
        f" attn_implementation='{attention(question)}', and set model.config.use_cache = False."
    )
    how = "after TrainingArguments, which choose this rank's device"
    if work.adapter is not None or work.frozen:
        needs = f" ({needs})" if (needs := adapter_needs(question)) else ""
        code_of_it = rendered("model.py.j2", question, settings, split="")
        load = f"Make the model so, {how}{needs}:\n{code_of_it}"
    elif distributed_config(question, settings):
        load = f"Load the model, {how}, so:\n{rendered('model.py.j2', question, settings)}"
    own = "The optimizer, number formats and all else are your script's own."
    hook, loss = _hook(question, settings), _loss(question, settings)
    command = " ".join(torchrun(question.cluster, "SCRIPT.py"))
    ring = " ".join(f"{name}={value}" for name, value in ring_variables(question, settings).items())
    return (
        load if question.script is None else own,
        *packing_text(question),
        *[f"Of its rows {said}." for said in [labels_text(question)] if said],
        *[RING.format(ring)] * bool(ring),
        *([hook] if hook else []),
        *([loss] if loss else []),
        f"Sequences are of {work.sequence_length} tokens;"
        f" {batch_text(question, settings)}, so start {size}"
        f" {'processes' if size > 1 else 'process'}: {command}",
    )


def _hook(question: Question, settings: Settings) -> str:
    """Says how DDP is made to reduce fp32 gradients in bf16, where the study does; else empty.

    A lambda, as DDP refuses the hook by its name on a CPU (``DistributedDataParallel.
    _check_comm_hook``, torch 2.13). ``model_wrapped`` is DDP's once training begins
    (``Trainer._inner_training_loop``, transformers 5.23).
    """
    is_own = question.script is not None
    if is_own or ddp_reduce_dtype(question, settings) is not ReduceDtype.BF16:
        return ""
    return (
        "DDP reduces these gradients in fp32, and the study in bf16: give the Trainer a callback"
        " whose on_train_begin calls trainer.model_wrapped.register_comm_hook(None, lambda group,"
        " bucket: bf16_compress_hook(group, bucket)), with bf16_compress_hook of"
        " torch.distributed.algorithms.ddp_comm_hooks.default_hooks."
    )


def _loss(question: Question, settings: Settings) -> str:
    """Says how the Trainer is given the study's loss; empty where that is transformers' own.

    It divides the loss of such a function by nothing (``Trainer.training_step``, transformers
    5.23).
    """
    if settings.fused_loss and question.script is None:
        return (
            "The loss is Liger's fused linear cross entropy (loss_kernel liger); norms, rotations"
            " and MLPs are the model's own, as they were priced."
        )
    said = loss_text(question)
    if question.script is not None or not said:
        return ""
    return (
        f"The study's loss is {said}: give the Trainer a compute_loss_func of (outputs, labels,"
        " num_items_in_batch) that sums it over outputs.logits and labels, these moved left by a"
        " token and padded with -100, and divides by num_items_in_batch."
    )


def _render_flags(question: Question, settings: Settings, about: About) -> str:
    how = comment("For a script that reads its TrainingArguments by HfArgumentParser.")
    for text in _by_hand(question, settings):
        said, _, pasted = text.partition("\n")
        how += [*comment(said), *(code(pasted) if pasted else ())]
    top = header(provenance(question, settings, about), usage(question, about.path), how)
    flags = []
    for name, value in arguments(question, settings, about).items():
        text = value if isinstance(value, str) else json.dumps(value)
        # with a value fsdp would be words, as before 5.17
        bare = name == "fsdp" and value is True
        flags.append("--fsdp" if bare else f"--{name} {shlex.quote(text)}")
    told = exports(ring_variables(question, settings))
    lines = ["#!/bin/sh", top, "set -eu", *told, *checks(question)]
    return "\n".join([*lines, f"exec {command(question, flags)}", ""])


FORMAT = Format(
    name="trainer",
    file_name=FILE_NAME,
    stack=Stack.TORCH,
    packages=("accelerate", "torch", "transformers"),
    media_type="application/json",
    why_not=_why_not,
    render=lambda *parts: json.dumps(arguments(*parts), indent=2) + "\n",
    argv=lambda question, path: torchrun(question.cluster, "SCRIPT.py", path),
    beside=_beside,
)
FLAGS = Format(
    name="trainer-flags",
    file_name=FLAGS_FILE_NAME,
    stack=Stack.TORCH,
    packages=("accelerate", "torch", "transformers"),
    media_type=MEDIA_TYPE,
    why_not=_why_no_flags,
    render=_render_flags,
    argv=argv,
)


NAME = "trainer"
# What the Trainer's arguments can say otherwise.
FREE: Mapping[str, tuple[Any, ...]] = {
    "sharding": ("ddp", "shard_grad_op", "full_shard"), "micro_batch_size": (),
    "gradient_accumulation_steps": (), "sync_each_batch": (),
    "activation_checkpointing": ("none", "every_2", "full"), "fused_loss": (),
}  # fmt: skip
# Fields that other files do not have.
MARKS = frozenset({"per_device_train_batch_size", "accelerator_config", "fsdp", "output_dir"})
# Its size where none is said, of training and of evaluation.
MICRO_BATCH = 8
# Fields that have it evaluate between the steps, and that of the sequences which it takes at once.
EVALUATION = (
    ("eval_strategy", "evaluation_strategy", "eval_on_start"),
    "per_device_eval_batch_size",
)
# The Trainer's ``adamw_8bit`` is bitsandbytes', by another name, in all those releases.
OPTIMIZERS = {
    **{name: optimizer for optimizer, name in _OPTIMIZERS.items()},
    "adamw_8bit": Optimizer.ADAMW_BNB_8BIT,
}


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file, or raises ``UsageError`` for a field."""
    fields = Fields(values)
    known = known_fields()["trainer"]
    fields.refuse_misspelt({*known["read"], *known["refused"]})
    for name, why in known["refused"].items():
        fields.refuse(name, why, but=(False, 0, "no"))
    knobs: dict[str, Any] = {"sharding": str(Sharding.DDP), "cpu_offload": False}
    classes: tuple[str, ...] = ()
    words = fields.values.get("fsdp")
    words = words.split() if isinstance(words, str) else words
    if words and str(words).lower() not in ("false", "['false']"):
        knobs, classes = _read_fsdp(fields, words)
    own = fields.any_of("activation_checkpointing", "gradient_checkpointing")
    by_plugin = "activation_checkpointing" in knobs
    full = Checkpointing.FULL if fields.flag(own) else Checkpointing.NONE
    knobs.setdefault("activation_checkpointing", str(full))
    if fields.flag(own):
        given = fields.part(f"{own}_kwargs")
        if given.flag("offload"):
            knobs["activation_checkpointing"] = str(Checkpointing.OFFLOAD)
            allowed = "must be 1 with offload: others are not predicted"
            given.refuse("every_n_layers", allowed, but=(1,))
        given.refuse("every_n_layers", "must be 1 or 2: others are not predicted", but=(1, 2))
        if given.whole("every_n_layers", 1) == 2:
            knobs["activation_checkpointing"] = str(Checkpointing.EVERY_2)
    sync = fields.part("accelerator_config")
    sync.refuse_misspelt(("split_batches", "gradient_accumulation_kwargs"))
    sync.refuse("split_batches", "must be false: a micro-batch is then of all ranks", but=(False,))
    kept = sync.part("gradient_accumulation_kwargs")
    kept.refuse_misspelt(("sync_each_batch",))
    sizes = {
        "micro_batch_size": "per_device_train_batch_size",
        "gradient_accumulation_steps": "gradient_accumulation_steps",
    }
    knobs |= {
        **NO_MODEL_PARALLELISM,
        "micro_batch_size": fields.whole(sizes["micro_batch_size"], MICRO_BATCH),
        "gradient_accumulation_steps": fields.whole(sizes["gradient_accumulation_steps"], 1),
        "sync_each_batch": kept.flag("sync_each_batch"),
    }
    beside: dict[str, tuple[Any, ...]] = {}  # of scripts that train causal language models
    if "model_name_or_path" in fields:
        beside["model"] = (fields.text("model_name_or_path"),)
    if (length := fields.whole("block_size")) is not None:
        beside["sequence_length"] = (length,)
    fields.pass_over_evaluation(*EVALUATION, knobs["micro_batch_size"], MICRO_BATCH)
    fused, notes = _read_liger(fields)
    if fused:
        knobs["fused_loss"] = True
    optimizer = fields.choice("optim", OPTIMIZERS, "adamw_torch_fused")
    found = Found(
        format_name=NAME,
        knobs=knobs,
        # a model may be split, and then sharded, as it is loaded; a ring is told by variables
        unsaid=frozenset(knob for knob, name in sizes.items() if name not in fields)
        | ({"cp_size"} if words else UNSAID),
        may={
            "framework": ("trainer",) if fused else ("trainer", "accelerate", "torch"),
            "precision": ("bf16_mixed",) if fields.flag("bf16") else ("bf16", "fp32"),
            "optimizer": (str(optimizer),),
            **beside,
        },
        free=FREE,
        layer_classes=classes,
        fsdp_checkpointing=by_plugin,
        notes=notes,
        uncounted=tuple(fields.uncounted),
    )
    return filled.of_trainer(fields, found, UNSAID) if "deepspeed" in fields else found


def _read_liger(fields: Fields) -> tuple[bool, tuple[str, ...]]:
    """Tells whether Liger's kernels fuse the loss, with a note where they do more."""
    config = fields.part("liger_kernel_config")
    if not fields.flag("use_liger_kernel"):
        return False, ()
    config.refuse("cross_entropy", "must be false: Liger's loss of whole logits is not predicted")
    others = [name for name in LIGER_CONFIG if not LIGER_CONFIG[name] and name != "cross_entropy"]
    swapped = [name for name in others if config.flag(name, True)]
    note = (
        f"Liger's kernels of norms, rotations or MLPs (liger_kernel_config leaves"
        f" {', '.join(swapped)} on) are not predicted: the figures are of the model's own"
    )
    return config.flag("fused_linear_cross_entropy", True), (note,) if swapped else ()


def _read_fsdp(fields: Fields, words: object) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Options of FSDP; ``fsdp`` as words, as before 5.17, must say the same."""
    told = isinstance(words, list) and "true" not in [str(word).lower() for word in words]
    known = {"full_shard", "shard_grad_op", "auto_wrap", "offload"}
    given = {str(word) for word in words} if told and isinstance(words, list) else set()
    if given - known:
        raise fields.error("fsdp", f"must be of {', '.join(sorted(known))}")
    options = fields.part("fsdp_config")
    flat = options.any_of("fsdp_min_num_params", "min_num_params")
    options.refuse(flat, known_fields()["trainer"]["refused"]["fsdp_min_num_params"], but=(0, "0"))
    found, classes = read_fsdp(options, given, nodes=None, by_release=True)
    fields.uncounted += options.uncounted
    sharding = "shard_grad_op" if "shard_grad_op" in given else "full_shard"
    if told and (sharding, "offload" in given) != (found["sharding"], found["cpu_offload"]):
        raise fields.error("fsdp", "does not say what fsdp_config says")
    return found, classes


# Of a model that is split and sharded as it is loaded arguments say nothing, nor of a ring.
UNSAID = frozenset({"sharding", "tp_size", "cp_size"})


def told_by_name(values: Mapping[str, Any]) -> tuple[str, dict[str, int]] | None:
    """The study that exported arguments say they are of, and how many GPUs split a layer, or a
    sequence, where several do."""
    name = str(values.get("run_name"))
    found = re.match(r"tuner (\S+) \S+ \w+((?: [tc]p_size=\d+)*)(?:;|$)", name)
    if found is None:
        return None
    pairs = (one.split("=") for one in found[2].split())
    return found[1], {knob: int(size) for knob, size in pairs}


_BY_MODEL = ("gradient_checkpointing", "activation_checkpointing")  # the second since 5.23
_BY_PLUGIN = ("activation_checkpointing", "fsdp_activation_checkpointing")
# What an answer says of them.
_TUNED = (
    "per_device_train_batch_size", "gradient_accumulation_steps", "accelerator_config", *_BY_MODEL,
    *(f"{name}_kwargs" for name in _BY_MODEL), "use_liger_kernel", "liger_kernel_config", "fsdp",
    "fsdp_config",
)  # fmt: skip


def tuned(question: Question, settings: Settings, values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that say the settings, in a file that has ``values``."""
    if "deepspeed" in Fields(values):
        return filled.tuned_by_trainer(question, settings)
    about = About(study_id="", date="", provenance=Provenance.PREDICTED)
    found = arguments(question, settings, about)
    words = values.get("fsdp")
    if isinstance(words, str | list) and found.get("fsdp") is True:  # as the file has it
        said = ["full_shard" if reshards(settings) else "shard_grad_op", "auto_wrap"]
        said += ["offload"] if settings.cpu_offload else []
        found["fsdp"] = said if isinstance(words, list) else " ".join(said)
    options = found.get("fsdp_config")
    written = Fields(values).part("fsdp_config").values
    if options and any(map(values.get, _BY_MODEL)) and not any(map(written.get, _BY_PLUGIN)):
        recomputes = options.pop("activation_checkpointing")  # the Trainer takes one of the two
        found |= {name: found[name] or recomputes for name in _BY_MODEL if name in found}
    return {name: found[name] for name in _TUNED if name in found}


READER = Reader(name=NAME, marks=MARKS, read=read, tuned=tuned)
