"""Decides which knobs cannot act in a configuration, which values a knob can have, and which
combinations are refused."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tuner.catalog.versions import Effect, meets
from tuner.core.cluster import Device
from tuner.core.configuration import FSDP, Checkpointing, Settings, Sharding
from tuner.core.framework import (
    NOT_PROBED,
    FrameworkName,
    flag_differs,
    knob_effect,
    no_dtensors,
    usual_tensor_parallel,
)
from tuner.core.script import IN_FILE, Launch, checkpoints_in_script
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Precision, ReduceDtype, Workload
from tuner.errors import UsageError
from tuner.model.shape import SLIDING
from tuner.text import show

# Model types with a tensor-parallel plan that was seen to train like one process.
TENSOR_PARALLEL_MODEL_TYPES = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}
)

# Why other model types have none; the plans of those not listed were not verified.
NO_TENSOR_PARALLEL: Mapping[str, str] = {
    "gpt2": "gpt2 fuses q, k and v, and has no tensor-parallel plan",
    "gpt_bigcode": "gpt_bigcode fuses q, k and v, and has no tensor-parallel plan",
    "mpt": "mpt fuses q, k and v, and has no tensor-parallel plan",
    "phi3": "phi3 fuses q, k and v, and has no verified tensor-parallel plan",
}

# Fields of a model's configuration that must be zero or false, and why.
NO_TENSOR_PARALLEL_WITH: Mapping[str, str] = {
    "attention_dropout": "each rank would need a random stream of its own",
    "router_jitter_noise": "each rank would need a random stream of its own",
    "output_router_logits": "the router's auxiliary loss is not linear in the tokens of a rank",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """A knob that has one value in some settings."""

    knob: str  # its name
    value: Any  # the value; ``None`` when every value is refused
    why: str  # the reason
    by_versions: bool = False
    """Whether the framework decides it, which is worth telling wherever it holds."""
    refused: bool = False  # whether other values are wrong, and not only without effect
    when: str = ""  # of which settings it is so; empty where ``why`` says it, or of all
    among: str = ""  # to which of these a rule of the framework is limited; empty of all


def fixed_by_framework(question: Question, knob: str) -> Fixed | None:
    """Finds what the framework, or the user's script, does with a knob in all configurations."""
    effect = knob_effect(question.framework, knob)
    if effect.effect is not Effect.INACTIVE:
        return None if knob == "sync_each_batch" else fixed_by_script(question, knob)
    return Fixed(knob=knob, value=effect.values[0], why=effect.why, by_versions=True)


def fixed_by_script(
    question: Question, knob: str, settings: Settings | None = None
) -> Fixed | None:
    """The one value of a knob that the user's script is not told, in these settings or in all.

    The knob is not of :data:`BATCH`; ``settings`` have it, where it depends on the others.
    """
    script = question.script
    if script is None or knob in script.knobs:
        return None
    why = f"{{{knob}}} is used nowhere in the script's command"
    if script.launch is Launch.ACCELERATE and knob in IN_FILE:
        by_file = settings is None or knob != "activation_checkpointing"
        if not by_file and settings is not None:
            full = replace(settings, activation_checkpointing=Checkpointing.FULL)
            by_file = not checkpoints_in_script(question, full)
        if question.cluster.gpu.device is Device.CPU:
            why = f"accelerate ignores FSDP on a CPU, and {{{knob}}} is used nowhere in the command"
        elif by_file:
            return None
        else:
            only = (
                "accelerate's file checkpoints only what it shards and what draws no random numbers"
            )
            named = "{activation_checkpointing} is used nowhere in the command"
            why = f"{flag_differs(question.framework) or only}, and {named}"
    asked = question.knobs.get(knob, ())
    if len(asked) == 1:
        why = f"{why}, so it is as stated"
        return Fixed(knob=knob, value=asked[0], why=why, by_versions=True)
    deferred = knob == "sync_each_batch" and question.framework.puts_off
    usual = False if deferred else getattr(Settings(), knob)
    why = f"{why}, so it is taken to be that"
    return Fixed(knob=knob, value=usual, why=why, by_versions=True)


def fixed_tp_size(question: Question) -> Fixed | None:
    """Tells whether there is no tensor parallelism: by framework, model type or configuration."""
    work, found = question.workload, fixed_by_framework(question, "tp_size")
    if found is None and (why := _not_split(work)):
        found = Fixed(knob="tp_size", value=1, why=why)
    usual = usual_tensor_parallel(question.framework.name)
    if found is None and question.framework.puts_off and question.script is None:
        # a plan of its own for lm_head, and a loss of parts of logits, are not written
        other = "transformers' plans gather logits; tensor_parallel must be gathered_logits"
        found = None if work.tensor_parallel is usual else Fixed(knob="tp_size", value=1, why=other)
    if found is None or work.splits_sequence or work.tensor_parallel is usual:
        return found
    return replace(found, why=f"{found.why}; tensor_parallel {work.tensor_parallel} has no effect")


def fixed_cp_size(question: Question) -> Fixed | None:
    """Tells whether there is no context parallelism: by framework, device, or what is trained,
    where torch's ring attention does not split it (``context_parallel`` of torch 2.13)."""
    work, model, fields = question.workload, question.workload.model, question.workload.model.fields
    by_framework = fixed_by_framework(question, "cp_size")
    whys = {
        "ring attention has kernels for GPUs alone, so it is neither run nor priced on CPUs":
            question.cluster.gpu.device is not Device.CUDA,
        f"its ring attention is arithmetic, which knows no {model.type_and_task}":
            work.is_traced or not model.is_causal_lm,
        "ring attention takes no documents of their own, and no mask of them":
            work.packing is not None,
        f"{model.model_type} computes attention by operators, which no ring splits":
            model.has_capped_scores or model.has_biased_scores,
        "ring attention takes no mask, and layers with a window need one":
            any(kind.attention == SLIDING for kind in model.layer_kinds),
        "each rank would need a random stream of its own for dropout":
            fields.get("attention_dropout") or fields.get("attn_pdrop"),
        "the router's auxiliary loss is not linear in the tokens of a rank":
            fields.get("output_router_logits"),
    }  # fmt: skip
    why = next((why for why, holds in whys.items() if holds), "")
    return by_framework or (Fixed(knob="cp_size", value=1, why=why) if why else None)


def _not_split(work: Workload) -> str:
    """Why no tensor parallelism splits what is trained; empty where it can."""
    model = work.model
    if work.adapter is not None:
        return "adapters are not split: peft's tensor parallelism is not probed here"
    if work.frozen:
        return "a model trained in part is not split: that is not probed here"
    if work.packing is not None:
        return "packed sequences are not split: that is not probed here"
    if not model.is_causal_lm:
        return f"{model.type_and_task} has no verified tensor-parallel plan"
    if model.model_type not in TENSOR_PARALLEL_MODEL_TYPES:
        unknown = f"{model.model_type} has no verified tensor-parallel plan"
        return NO_TENSOR_PARALLEL.get(model.model_type, unknown)
    for field, why in NO_TENSOR_PARALLEL_WITH.items():
        if value := model.fields.get(field):
            return f"{field} is {show(value)}, and {why}"
    if model.experts and not work.splits_sequence:
        split = f"experts are not split with tensor_parallel {work.tensor_parallel}"
        return f"{split}, only with sequence_parallel"
    return ""


def canonical_class(question: Question, settings: Settings) -> tuple[Settings, list[Fixed]]:
    """Settings with each inactive knob at its value, and these knobs; ``sync_each_batch`` and
    ``defer_all_reduce``, which depend on accumulation, are left as they are."""
    sizes = [f for f in (fixed_by_framework(question, "pp_size"), fixed_tp_size(question)) if f]
    if settings.cp_size > 1 or "cp_size" in question.knobs:  # else it is not spoken of
        sizes += [f for f in [fixed_cp_size(question)] if f]
    settings = replace(settings, **{f.knob: f.value for f in sizes})
    later = []
    if settings.sharing_size(question.cluster.world_size) == 1:
        why = "it acts with two data-parallel ranks or more, and there is one"
        later.append(Fixed(knob="sharding", value=Sharding.DDP, why=why))
    if not settings.splits_layers or not question.workload.splits_sequence:
        why = "with tp_size 1 there is no activation to gather again"
        if settings.splits_layers:
            why = "without sequence parallelism activations are whole, and none is gathered"
        named = fixed_by_framework(question, "tp_recompute_allgather")
        later.append(named or Fixed(knob="tp_recompute_allgather", value=False, why=why))
    if no_offload := fixed_by_framework(question, "cpu_offload"):
        later.append(no_offload)
    elif question.workload.adapter is not None:
        why = "of a frozen model in host memory nothing is predicted yet"
        later.append(Fixed(knob="cpu_offload", value=False, why=why))
    tells_loss = settings.fused_loss or "fused_loss" in question.knobs or logits_matter(question)
    if tells_loss and (why := _no_fused_loss(question, settings)):
        later.append(Fixed(knob="fused_loss", value=False, why=why))
    settings = replace(settings, **{f.knob: f.value for f in later})
    if question.script is not None:
        inactive = {f.knob for f in later}
        told = ["sharding", "tp_recompute_allgather", "activation_checkpointing"]
        told += ["fused_loss"] if tells_loss else []
        for knob in told:
            if knob not in inactive and (fixed := fixed_by_script(question, knob, settings)):
                settings = replace(settings, **{knob: fixed.value})
                later.append(fixed)
    return settings, [*sizes, *later]


def logits_matter(question: Question) -> bool:
    """Tells whether logits are so large that ``fused_loss`` is searched where nobody asks for it.

    The loss of a user's script is its own.
    """
    work, gpu = question.workload, question.cluster.gpu
    logits = BYTES_PER_LOGIT * work.sequence_length * work.model.vocab_size
    large = logits >= LOGITS_MATTER * gpu.memory_bytes
    return question.script is None and gpu.device is Device.CUDA and large


def _no_fused_loss(question: Question, settings: Settings) -> str:
    """Why the loss is not computed part by part in these settings; empty where it can be."""
    if settings.splits_layers or settings.pp_size > 1:
        return "with model parallelism a rank has a part of the logits, whose loss is another"
    if question.workload.adapter is not None:
        return "it makes a gradient of the output head, which is frozen beside an adapter"
    if question.script is not None:
        return ""
    if question.workload.model.fields.get("logits_scaling"):
        return "the model divides its logits, which a loss without whole logits does not do here"
    if question.workload.frozen:
        return "what it takes where parts of the model are frozen is not known here"
    if question.workload.model.is_traced:
        return "what this type of model does with its logits before the loss is not known here"
    framework = question.framework
    if framework.name is FrameworkName.TRAINER:
        return no_liger(question)
    if framework.name is FrameworkName.NANOTRON:
        return "nanotron's loss is its own"
    if framework.name is FrameworkName.DEEPSPEED:
        return "no file of DeepSpeed's says it, and it is not predicted"
    old, oldest = framework.too_old("transformers", LOSS_OF_MODEL), LOSS_OF_MODEL.strip(">=")
    why = f"in transformers {old} a model's loss cannot be replaced; in {oldest} or newer it can"
    return old and why


def no_liger(question: Question) -> str:
    """Why Liger's kernels cannot compute the loss, by the Trainer or by a script that patches its
    model, of whose releases nothing is known; empty where they can."""
    by_trainer = question.framework.name is FrameworkName.TRAINER
    how = "Liger's kernels compute it"
    if by_trainer:
        how = "the Trainer does it by Liger's kernels (use_liger_kernel)"
    if question.cluster.gpu.device is not Device.CUDA:
        return f"{how}, which run on GPUs only"
    if (model_type := question.workload.model.model_type) not in LIGER_MODEL_TYPES:
        return f"{how}, which have none for {model_type}"
    if not by_trainer:
        return ""
    versions = question.framework.versions
    liger, transformers = versions.get("liger-kernel"), versions["transformers"]
    if not meets(transformers, LIGER_BY_TRAINER):
        oldest = LIGER_BY_TRAINER.strip(">=")
        return f"{how}, and transformers {transformers} cannot be told which; {oldest} can"
    needed = LIGER if meets(transformers, "<5") else LIGER_OF_TRANSFORMERS_5
    if liger is None:
        say = "--framework-version liger-kernel=0.8.5"
        return f"{how}, and liger-kernel is neither installed nor stated: {say}"
    if not meets(liger, needed):
        return f"{how}, and liger-kernel {liger} is not covered; {needed.strip('>=')} or newer is"
    return ""


# What each framework can split over the data-parallel ranks.
SHARDINGS: Mapping[FrameworkName, tuple[Sharding, ...]] = {
    FrameworkName.TORCH: (Sharding.DDP, *FSDP),
    FrameworkName.ACCELERATE: (Sharding.DDP, *FSDP),
    FrameworkName.TRAINER: (Sharding.DDP, *FSDP),
    # nanotron config/config.py: optimizer.zero_stage is 0 or 1.
    FrameworkName.NANOTRON: (Sharding.DDP, Sharding.ZERO1),
    FrameworkName.DEEPSPEED: (Sharding.DDP, Sharding.ZERO1, *FSDP),
}


# Releases of transformers that have each decoder layer decide whether it is checkpointed
# (``GradientCheckpointingLayer`` in modeling_layers.py; of all model types that are covered in the
# wheel of 4.53.3, read).
EVERY_2_BY_LAYER = ">=4.53"
# Releases whose Trainer takes ``every_n_layers`` among the arguments of checkpointing
# (``_inner_training_loop`` in trainer.py; the wheels of 5.15.0 to 5.23.0, read).
EVERY_2_BY_TRAINER = ">=5.16"
# Releases whose models take ``offload`` with checkpointing (``gradient_checkpointing_enable`` in
# modeling_utils.py), and whose Trainer hands it on (the wheels of 5.16.0 to 5.23.0, read).
OFFLOAD_BY_MODEL = ">=5.17"
# Releases of torch that have all operators which selective checkpointing names: fused kernels of
# attention since 2.5, ``_grouped_mm`` since 2.8 at the latest; 2.11 is the oldest that exported
# modules are for.
SELECTIVE_BY_TORCH = ">=2.11"
# Releases of transformers whose models call a ``loss_function`` that may be replaced: they have its
# setter (``PreTrainedModel.loss_function`` in modeling_utils.py), and all model types call it (the
# wheels of 4.45.2 to 4.51.0, read; before 4.48 some do not, GPT-2 and GPT-NeoX before 4.49).
LOSS_OF_MODEL = ">=4.49"
# Share of a GPU's memory from which logits of one sequence matter, at transformers' bytes for each.
# Of Llama-3.1-8B, Llama-3.2-1B, Qwen3-0.6B and GPT-2 on 8 H100 or L4, at 1k to 32k tokens, the
# fastest predicted to fit was up to 18% faster with ``fused_loss`` where they take a quarter or
# more, between 1% faster and 3% slower where they take less than a sixth; of Qwen3-8B on 8 H100 it
# was 6% faster at 18%, of Llama-3.1-8B on 4 A100 3% at 15%.
LOGITS_MATTER = 0.125
BYTES_PER_LOGIT = 12
# Releases of transformers whose Trainer passes ``liger_kernel_config`` on, without which Liger
# swaps norms, rotations and MLPs too (``trainer.py`` and ``training_args.py``; the wheels of 4.49.0
# to 5.23.0, read).
LIGER_BY_TRAINER = ">=4.53"
# Releases of liger-kernel that are covered, and those for transformers 5 (pull request 994).
LIGER = ">=0.6.5"
LIGER_OF_TRANSFORMERS_5 = ">=0.7"
# Model types of which these patch the loss (``MODEL_TYPE_TO_APPLY_LIGER_FN`` in
# transformers/monkey_patch.py; tags v0.6.5 to v0.8.2 and the wheel of 0.8.5, read).
LIGER_MODEL_TYPES = frozenset({
    "gemma", "gemma2", "gemma3_text", "llama", "mistral", "mixtral", "olmo2", "phi3", "qwen2",
    "qwen3", "qwen3_moe", "smollm3",
})  # fmt: skip
# Releases of accelerate that make fp32 of trained parameters alone under FSDP2 and mixed precision
# (``fsdp2_prepare_model`` in utils/fsdp_utils.py; the wheels of 1.8.0 to 1.15.0, read).
FROZEN_STAYS_NARROW = ">=1.13"
# Releases of torch whose FSDP2 asks one number format of trained parameters alone, and not of
# those that are frozen beside them (``FSDPParamGroup._init_mp_dtypes``: pull request 154103, in the
# release notes of 2.8.0; 2.7.1 was seen to end with "FSDP expects uniform original parameter
# dtype").
FROZEN_DTYPE_IS_FREE = ">=2.8"
# Releases of transformers whose plans are those that are predicted (catalog/versions.toml).
TENSORS_BY_TRANSFORMERS = "5.21"
# The values that any stack has; a user's script is taken to have these alone.
PLAIN_CHECKPOINTING = (Checkpointing.NONE, Checkpointing.FULL)


def no_checkpointing(question: Question, value: Checkpointing) -> str:
    """Why the stack cannot be told this value of ``activation_checkpointing``; empty if it can."""
    name, model = question.framework.name, question.workload.model
    if value is Checkpointing.NONE:
        return ""
    if model.known_type is not None and not model.known_type.checkpoints:
        return f"transformers' class of {model.type_and_task} has no gradient checkpointing"
    if value in PLAIN_CHECKPOINTING:
        return ""
    if name is FrameworkName.NANOTRON:
        return "nanotron computes all layers again, or none (recompute_layer)"
    if name is FrameworkName.DEEPSPEED:
        return "of DeepSpeed's step all layers computed again, or none, is predicted"
    if value is Checkpointing.SELECTIVE:
        if name is FrameworkName.TRAINER:
            return "no argument of the Trainer names what is kept; it takes a function of Python's"
        old = question.framework.too_old("torch", SELECTIVE_BY_TORCH)
        oldest = SELECTIVE_BY_TORCH.strip(">=")
        return old and f"torch {old} lacks operators that it names; {oldest} or newer has them"
    if value is Checkpointing.OFFLOAD and question.cluster.gpu.device is Device.CPU:
        return "device and host memory of CPUs are one"
    needed = EVERY_2_BY_TRAINER if name is FrameworkName.TRAINER else EVERY_2_BY_LAYER
    told = "which layers"
    if value is Checkpointing.OFFLOAD:
        needed, told = OFFLOAD_BY_MODEL, "where their inputs wait"
    old = question.framework.too_old("transformers", needed)
    return old and f"transformers {old} cannot be told {told}; {needed.strip('>=')} or newer can"


def check_possible(question: Question, knob: str, value: Any) -> None:
    """Refuse a value that no settings of this question can have while the knob is live. Raises
    UsageError: with the reason."""
    if knob == "sharding":
        check_has(question, value)
        if value is Sharding.HYBRID_SHARD and question.cluster.nodes == 1:
            raise UsageError("sharding", value, "needs more than one node: it shards within each")
        model, known = question.workload.model, question.workload.model.known_type
        shards = known is None or known.shards or question.script is not None
        if value is not Sharding.DDP and not shards:
            # ``fsdp2_prepare_model`` in utils/fsdp_utils.py (accelerate 1.15), torch 2.13
            why = f"of {model.type_and_task} a parameter is tied across two groups, which FSDP2"
            raise UsageError("sharding", value, f"{why} refuses; it must be ddp")
    if knob == "activation_checkpointing" and (why := no_checkpointing(question, value)):
        raise UsageError(knob, value, f"cannot be had here: {why}")
    splits_heads = knob == "tp_size" and fixed_tp_size(question) is None
    if splits_heads or (knob == "pp_size" and fixed_by_framework(question, knob) is None):
        _check_divides(knob, value, split_by(question, knob))
    if knob == "cp_size" and fixed_cp_size(question) is None:
        # a rank has a part from the head and one from the tail (``_create_default_load_balancer``)
        tokens = question.workload.sequence_length
        halves = (("half of the sequence_length", tokens // 2 if tokens % 2 == 0 else 1),)
        _check_divides(knob, value, (*halves, ("GPUs", question.cluster.world_size)))
    if knob == "cpu_offload" and value and question.cluster.gpu.device is Device.CPU:
        raise UsageError(knob, "true", "refused on CPUs, where device and host memory are one")


def _check_divides(knob: str, value: int, sizes: Iterable[tuple[str, int]]) -> None:
    if wrong := [f"{what} ({size})" for what, size in sizes if size % value]:
        raise UsageError(knob, value, f"must divide {' and '.join(wrong)}")


def possible(question: Question, knob: str, values: Iterable[Any]) -> tuple[Any, ...]:
    """Picks the values of a knob that some configuration of the question can have."""
    passed = []
    for value in values:
        with suppress(UsageError):
            check_possible(question, knob, value)
            passed.append(value)
    return tuple(passed)


def split_by(question: Question, knob: str) -> tuple[tuple[str, int], ...]:
    """Names what a parallel size, ``tp_size`` or ``pp_size``, must divide where it is active.

    Experts are not split by ``tp_size``: each rank runs them on its own tokens.
    """
    model, cluster = question.workload.model, question.cluster
    if knob == "pp_size":
        return ("layers", model.layers), ("GPUs", cluster.world_size)
    has_dense = model.sparse_layers < model.layers
    dense = (("intermediate_size", model.intermediate_size),) if has_dense else ()
    return (
        ("heads", model.heads),
        ("kv_heads", model.kv_heads),
        *dense,
        ("sequence_length", question.workload.sequence_length),
        ("gpus_per_node", cluster.gpus_per_node),
    )


def check_has(question: Question, value: Sharding) -> None:
    """Refuse a sharding that the framework does not have, also where sharding is inactive. Raises
    UsageError: with those that it has."""
    name = question.framework.name
    if value not in SHARDINGS[name]:
        raise UsageError("sharding", value, f"{name} has {', '.join(SHARDINGS[name])}")


def broken_rule(question: Question, settings: Settings) -> UsageError | None:
    """The rule that a canonical class breaks, if it does."""
    cluster, tp = question.cluster, settings.tp_size
    if cluster.world_size % (tp * settings.pp_size):
        given = f"{tp} x {settings.pp_size}"
        return UsageError("tp_size x pp_size", given, f"must divide {cluster.world_size} GPUs")
    if settings.cp_size > 1 and (broken := _no_ring_with(question, settings)):
        return broken
    if why := _no_sharded_adapter(question, settings):
        return UsageError("sharding", settings.sharding, f"must be ddp with an adapter{why}")
    sharded, work = settings.sharding in FSDP, question.workload
    own = question.script is not None or question.framework.name in NOT_PROBED
    why = no_dtensors(work.optimizer, question.framework, splits=tp > 1)
    if why and not own and (sharded or tp > 1):
        why = f"with optimizer {work.optimizer}: {why}"
        if sharded:
            return UsageError("sharding", settings.sharding, f"must be ddp {why}")
        return UsageError("tp_size", tp, f"must be 1 {why}")
    if (
        tp > 1
        and not own
        and question.framework.puts_off
        and (broken := _no_plan_for(question, settings))
    ):
        return broken
    if settings.sharding is Sharding.HYBRID_SHARD and cluster.gpus_per_node == tp:
        allowed = "needs more than one data-parallel rank in a node"
        return UsageError("sharding", settings.sharding, allowed)
    if settings.cpu_offload and settings.sharding not in FSDP:
        allowed = f"needs a sharding of {', '.join(FSDP)} over several data-parallel ranks"
        return UsageError("cpu_offload", "true", allowed)
    if settings.activation_checkpointing is Checkpointing.SELECTIVE and tp > 1:
        # kept products of the linears that lead out of a block would be whole on every rank, and
        # what is sent would be sent again
        allowed = f"with tp_size {tp} it must be one of none, every_2, full, offload"
        return UsageError("activation_checkpointing", "selective", allowed)
    replicas = settings.data_parallel_size(cluster.world_size)
    torch = question.framework.name not in NOT_PROBED
    if torch and settings.sharding is Sharding.DDP and replicas > 1 and tp > 1:
        allowed = (
            f"with tp_size {tp} and {replicas} data-parallel ranks it must be one of"
            f" {', '.join(FSDP)}: DistributedDataParallel takes no DTensor parameters"
        )
        return UsageError("sharding", settings.sharding, allowed)
    return None


def why_only_ddp(question: Question) -> str:
    """Why nothing can be sharded, where the framework could; empty where something can."""
    has = SHARDINGS[question.framework.name]
    if question.cluster.world_size == 1 or Sharding.FULL_SHARD not in has:
        return ""
    full = Settings(sharding=Sharding.FULL_SHARD)
    try:
        check_possible(question, "sharding", full.sharding)
    except UsageError as error:
        return f"sharding: {error.allowed}"
    broken = broken_rule(question, full)
    return f"sharding {broken.allowed}" if broken and broken.field == "sharding" else ""


def _no_ring_with(question: Question, settings: Settings) -> UsageError | None:
    """What is not predicted, or cannot be had, beside context parallelism: the model is sharded
    over its ranks too (``dp_shard_cp`` in accelerate's parallelism_config.py, 1.15)."""
    cp, within = settings.cp_size, question.cluster.gpus_per_node
    beside = f"with cp_size {cp} it must be"
    if settings.splits_layers:
        return UsageError("tp_size", settings.tp_size, f"{beside} 1: both are not predicted")
    if settings.sharding not in FSDP:
        allowed = f"{beside} one of {', '.join(FSDP)}: DistributedDataParallel has no such mesh"
        return UsageError("sharding", settings.sharding, allowed)
    if settings.sharding is Sharding.HYBRID_SHARD and (cp >= within or within % cp):
        allowed = f"{beside} another: cp_size must divide the {within} GPUs of a node, and be less"
        return UsageError("sharding", settings.sharding, allowed)
    if settings.activation_checkpointing is Checkpointing.SELECTIVE:
        allowed = f"{beside} one of none, every_2, full, offload: its ring is not what is kept"
        return UsageError("activation_checkpointing", "selective", allowed)
    return None


def _no_plan_for(question: Question, settings: Settings) -> UsageError | None:
    """What transformers does not do to a model that it splits (``DistributedConfig``, 5.21 to 5.24,
    read and run): it shards it too, in one way, and accelerate and the Trainer take it so."""
    work, tp = question.workload, settings.tp_size
    beside = f"with tp_size {tp} of transformers' plans"
    if settings.data_parallel_size(question.cluster.world_size) == 1:
        # seen on two CPU ranks with transformers 5.23: no strategy of DTensor's embedding makes
        # a gradient in parts of the vocabulary; FSDP2 takes this rank's part at once
        allowed = f"must leave several data-parallel ranks to shard over {beside}: alone it leaves"
        allowed += " the embedding's gradient whole on every rank, which is not predicted here"
        return UsageError("tp_size", tp, allowed)
    if settings.sharding is not Sharding.FULL_SHARD:
        why = {
            Sharding.DDP: "DistributedDataParallel takes no DTensor parameters",
            Sharding.SHARD_GRAD_OP: "transformers frees what it has gathered after each layer",
            Sharding.HYBRID_SHARD: "replicas of it (dp_replicate_size, transformers 5.23) are not"
            " probed here",
        }[settings.sharding]
        allowed = f"{beside} it must be full_shard: {why}"
        return UsageError("sharding", settings.sharding, allowed)
    if settings.cpu_offload:
        return UsageError("cpu_offload", "true", f"is not probed here {beside}")
    weights = ReduceDtype.BF16 if work.precision is Precision.BF16 else ReduceDtype.FP32
    reduced = work.reduced_in(sharded=True, split=True)
    if reduced is not weights:
        allowed = f"{beside} gradients are reduced in {weights}; ask with --reduce-dtype {weights}"
        return UsageError("reduce_dtype", reduced, allowed)
    # one kernel takes no DTensors beside plain tensors: the Trainer puts norms and biases together
    biased = work.model.fields.get("attention_bias") or work.model.model_type == "qwen2"
    by_trainer = question.framework.name is FrameworkName.TRAINER
    if by_trainer and biased and work.optimizer is Optimizer.ADAMW_FUSED:
        allowed = f"must be adamw {beside}: the fused kernel takes no biases that are split beside"
        return UsageError("optimizer", work.optimizer, f"{allowed} norms that are not")
    return None


def _no_sharded_adapter(question: Question, settings: Settings) -> str:
    """Why FSDP2 does not shard the adapter, if there is one, as probed; empty where it does."""
    if settings.sharding not in FSDP or question.workload.adapter is None:
        return ""
    if question.workload.adapter.eight_bits:
        return " beside int8: bitsandbytes 0.50 keeps whole matrices beside what FSDP2 shards"
    if question.framework.name is FrameworkName.TRAINER:
        # update_fsdp_plugin_peft in transformers/distributed/fsdp.py, 5.23
        return (
            ": the Trainer shards each of its matrices by itself, which is not probed here; with"
            " --framework accelerate they are sharded with their layer"
        )
    framework = question.framework
    if framework.fsdp_version == 1:
        # benchmarks/adapters.py counts what peft's own wrapping keeps (``fsdp_auto_wrap_policy`` in
        # peft/utils/other.py); without it a unit that is trained in part has gradients of all of it
        return (
            f": accelerate {framework.versions.get('accelerate')} shards by FSDP1, which keeps what"
            " is frozen otherwise than is predicted here; 1.6 or newer has FSDP2"
        )
    if question.workload.precision is not Precision.BF16_MIXED:
        return ""
    if old := framework.too_old("accelerate", FROZEN_STAYS_NARROW):
        oldest = FROZEN_STAYS_NARROW.strip(">=")
        return (
            f" and bf16_mixed: accelerate {old} makes fp32 of what is frozen too; {oldest} or"
            " newer does not"
        )
    if old := framework.too_old("torch", FROZEN_DTYPE_IS_FREE):
        oldest = FROZEN_DTYPE_IS_FREE.strip(">=")
        return (
            f" and bf16_mixed: FSDP2 of torch {old} refuses fp32 adapters beside what is frozen"
            f" in bf16; {oldest} or newer takes them"
        )
    return ""
