"""Decides which knobs cannot act in a configuration, which values a knob can have, and which
combinations are refused."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from tuner.core.cluster import Device
from tuner.core.configuration import FSDP, InactiveKnob, Settings, Sharding
from tuner.core.framework import (
    Condition,
    Effect,
    Framework,
    FrameworkName,
    KnobEffect,
    knob_effect,
)
from tuner.core.script import pinned
from tuner.core.study import Question
from tuner.errors import UsageError

# Model types with a tensor-parallel plan that was seen to train like one process.
TENSOR_PARALLEL_MODEL_TYPES = frozenset(
    {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"}
)

# Why other model types have none; the plans of those not listed were not verified.
NO_TENSOR_PARALLEL: Mapping[str, str] = {
    "gpt2": "gpt2 fuses q, k and v, and has no tensor-parallel plan",
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


def fixed_by_framework(question: Question, knob: str) -> Fixed | None:
    """Finds what the framework, or the user's script, does with a knob in all configurations."""
    effect = _effect(question.framework, knob, frozenset())
    if effect.effect is not Effect.DEAD:
        return None if knob == "sync_each_batch" else fixed_by_script(question, knob)
    return Fixed(knob=knob, value=effect.values[0], why=effect.why, by_versions=True)


def fixed_by_script(
    question: Question, knob: str, settings: Settings | None = None
) -> Fixed | None:
    """The one value of a knob that the user's script is not told, in these settings or in all."""
    value, why = pinned(question, knob, settings)
    return Fixed(knob=knob, value=value, why=why, by_versions=True) if why else None


def fixed_tp_size(question: Question) -> Fixed | None:
    """Tells whether there is no tensor parallelism: by framework, model type or configuration."""
    if found := fixed_by_framework(question, "tp_size"):
        return found
    model = question.workload.model
    if model.model_type not in TENSOR_PARALLEL_MODEL_TYPES:
        unknown = f"{model.model_type} has no verified tensor-parallel plan"
        why = NO_TENSOR_PARALLEL.get(model.model_type, unknown)
        return Fixed(knob="tp_size", value=1, why=why)
    for field, why in NO_TENSOR_PARALLEL_WITH.items():
        if value := model.fields.get(field):
            return Fixed(knob="tp_size", value=1, why=f"{field} is {show(value)}, and {why}")
    return None


def canonical_class(question: Question, settings: Settings) -> tuple[Settings, list[Fixed]]:
    """Settings with each inactive knob but ``sync_each_batch`` at its value, and these knobs."""
    sizes = [f for f in (fixed_by_framework(question, "pp_size"), fixed_tp_size(question)) if f]
    settings = replace(settings, **{f.knob: f.value for f in sizes})
    later = []
    if settings.data_parallel_size(question.cluster.world_size) == 1:
        why = "one data-parallel rank has nobody to share with"
        later.append(Fixed(knob="sharding", value=Sharding.DDP, why=why))
    if settings.tp_size == 1:
        why = "with tp_size 1 there is no activation to gather again"
        named = fixed_by_framework(question, "tp_recompute_allgather")
        later.append(named or Fixed(knob="tp_recompute_allgather", value=False, why=why))
    if no_offload := fixed_by_framework(question, "cpu_offload"):
        later.append(no_offload)
    settings = replace(settings, **{f.knob: f.value for f in later})
    if question.script is not None:
        inactive = {f.knob for f in later}
        for knob in ("sharding", "tp_recompute_allgather", "activation_checkpointing"):
            if knob not in inactive and (fixed := fixed_by_script(question, knob, settings)):
                settings = replace(settings, **{knob: fixed.value})
                later.append(fixed)
    return settings, [*sizes, *later]


def fixed_sync(question: Question, settings: Settings) -> Fixed | None:
    """Tells whether ``sync_each_batch`` is inactive or refused in these settings."""
    knob = "sync_each_batch"
    if found := fixed_by_framework(question, knob):
        return found
    if settings.data_parallel_size(question.cluster.world_size) == 1:
        why = "one data-parallel rank has nobody to sync with"
        return Fixed(knob=knob, value=True, why=why)
    if settings.gradient_accumulation_steps == 1:
        why = "with gradient_accumulation_steps 1 there is nothing to put off"
        return Fixed(knob=knob, value=True, why=why)
    replicated = settings.sharding in (Sharding.DDP, Sharding.ZERO1)
    offload = {Condition.CPU_OFFLOAD} if settings.cpu_offload else set()
    conditions = {question.framework.family(replicated=replicated)} | offload
    effect = _effect(question.framework, knob, frozenset(conditions))
    if effect.effect is Effect.LIVE:
        return fixed_by_script(question, knob)
    refused = effect.effect is Effect.REFUSED
    left = [v for v in (True, False) if v not in effect.values] if refused else effect.values
    return Fixed(
        knob=knob,
        value=left[0] if left else None,
        why=effect.why,
        by_versions=True,
        refused=refused,
        when="gradient_accumulation_steps above 1",
    )


@lru_cache(maxsize=256)
def _effect(framework: Framework, knob: str, conditions: frozenset[Condition]) -> KnobEffect:
    return knob_effect(framework, knob, conditions)


def sentence(
    fixed: Fixed, *, asked: Collection[Any] = (), only: Collection[str] = (), apart: bool = False
) -> str:
    """Says to a user which knob is inactive, and why; ``asked`` are values that were asked for.

    It is about ``only`` these shardings, or all where there are none; ``apart`` says whether the
    knob is fixed at other values in other settings.
    """
    where = f" with {', '.join(only)}" if only else ""
    if fixed.value is None:
        return f"gradient_accumulation_steps is 1{where}: {fixed.why}"
    if apart and fixed.when:
        where += f"{' and' if where else ' with'} {fixed.when}"
    instead = f", not {show_all(asked)} as asked" if asked and fixed.value not in asked else ""
    comma = "," if instead and where else ""
    return f"{fixed.knob} is {show(fixed.value)}{instead}{comma}{where}: {fixed.why}"


def show(value: object) -> str:
    """A knob's value as a user writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def show_all(values: Collection[Any], most: int = 12) -> str:
    """Values as a user writes them, at most ``most`` of them."""
    shown = [show(value) for value in values]
    return ", ".join(shown[:most]) + (", ..." if len(shown) > most else "")


# What each framework can split over the data-parallel ranks.
SHARDINGS: Mapping[FrameworkName, tuple[Sharding, ...]] = {
    FrameworkName.TORCH: (Sharding.DDP, *FSDP),
    FrameworkName.ACCELERATE: (Sharding.DDP, *FSDP),
    FrameworkName.TRAINER: (Sharding.DDP, *FSDP),
    # nanotron config/config.py: optimizer.zero_stage is 0 or 1.
    FrameworkName.NANOTRON: (Sharding.DDP, Sharding.ZERO1),
}


def divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def check_possible(question: Question, knob: str, value: Any) -> None:
    """Refuse a value that no settings of this question can have while the knob is live.

    Raises:
        UsageError: with the reason.
    """
    if knob == "sharding":
        check_has(question, value)
        if value is Sharding.HYBRID_SHARD and question.cluster.nodes == 1:
            raise UsageError("sharding", value, "needs more than one node: it shards within each")
    sizes = [(what, size) for what, size in split_by(question, knob) if size % value]
    if sizes:
        wrong = " and ".join(f"{what} ({size})" for what, size in sizes)
        raise UsageError(knob, value, f"must divide {wrong}")
    if knob == "cpu_offload" and value and question.cluster.gpu.device is Device.CPU:
        raise UsageError(knob, "true", "refused on CPUs, where device and host memory are one")


def split_by(question: Question, knob: str) -> tuple[tuple[str, int], ...]:
    """Names what a parallel size must divide; nothing for other knobs, or where it is inactive.

    Experts are not split by ``tp_size``: each rank runs them on its own tokens.
    """
    model, cluster = question.workload.model, question.cluster
    if knob == "pp_size" and fixed_by_framework(question, knob) is None:
        return ("layers", model.layers), ("GPUs", cluster.world_size)
    if knob != "tp_size" or fixed_tp_size(question) is not None:
        return ()
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
    """Refuse a sharding that the framework does not have, also where sharding is inactive.

    Raises:
        UsageError: with those that it has.
    """
    name = question.framework.name
    if value not in SHARDINGS[name]:
        raise UsageError("sharding", value, f"{name} has {', '.join(SHARDINGS[name])}")


def broken_rule(question: Question, settings: Settings) -> UsageError | None:
    """The rule that a canonical class breaks, if it does."""
    cluster, tp = question.cluster, settings.tp_size
    if cluster.world_size % (tp * settings.pp_size):
        given = f"{tp} x {settings.pp_size}"
        return UsageError("tp_size x pp_size", given, f"must divide {cluster.world_size} GPUs")
    if settings.sharding is Sharding.HYBRID_SHARD and cluster.gpus_per_node == tp:
        allowed = "needs more than one data-parallel rank in a node"
        return UsageError("sharding", settings.sharding, allowed)
    if settings.cpu_offload and settings.sharding not in FSDP:
        allowed = f"needs a sharding of {', '.join(FSDP)} over several data-parallel ranks"
        return UsageError("cpu_offload", "true", allowed)
    replicas = settings.data_parallel_size(cluster.world_size)
    torch = question.framework.name is not FrameworkName.NANOTRON
    if torch and settings.sharding is Sharding.DDP and replicas > 1 and tp > 1:
        allowed = (
            f"with tp_size {tp} and {replicas} data-parallel ranks it must be one of"
            f" {', '.join(FSDP)}: DistributedDataParallel takes no DTensor parameters"
        )
        return UsageError("sharding", settings.sharding, allowed)
    return None


def enough_micro_batches(settings: Settings, accumulation: int) -> bool:
    """The 1F1B schedule's condition, asserted in nanotron pipeline_parallel/engine.py."""
    return accumulation >= settings.pp_size - 1


# Knobs that are refused where they are inactive: without them these are other settings.
SIZES = ("tp_size", "pp_size")


def check_settings(
    question: Question, settings: Settings, *, given: Collection[str] = ()
) -> Settings:
    """The canonical form of settings that somebody wrote down; see :func:`settings_notes`.

    An accumulation of 1 counts as left out, and is derived, unless the knobs that were ``given``
    hold it. A knob that is not among them has the only value that is not refused.

    Raises:
        UsageError: they break a rule, contradict each other or the question's restrictions.
    """
    return _checked(question, settings, given)[0]


def settings_notes(
    question: Question, settings: Settings, *, given: Collection[str]
) -> tuple[InactiveKnob, ...]:
    """The knobs that :func:`check_settings` changes, with the reasons.

    Of those that were not ``given``, only what has another value than its default because that is
    refused is told.

    Raises:
        UsageError: as :func:`check_settings`.
    """
    _, fixed = _checked(question, settings, given)
    notes = []
    for one in fixed:
        written = getattr(settings, one.knob)
        if written != one.value and (one.knob in given or one.refused):
            # none was written where a value was left out because others are refused
            why = sentence(one, asked=() if one.refused else (written,))
            notes.append(InactiveKnob(knob=one.knob, why=why))
    return tuple(notes)


def _checked(
    question: Question, settings: Settings, given: Collection[str]
) -> tuple[Settings, list[Fixed]]:
    """The canonical form, and the knobs that are inactive in it."""
    check_has(question, settings.sharding)
    checked, fixed = canonical_class(question, settings)
    for one in fixed:
        wanted = getattr(settings, one.knob)
        if one.knob in SIZES and wanted != one.value:
            raise UsageError(one.knob, show(wanted), f"cannot be had here: {one.why}")
    for knob in ("sharding", "tp_size", "pp_size", "cpu_offload"):
        check_possible(question, knob, getattr(checked, knob))
    if broken := broken_rule(question, checked):
        raise broken
    count = _accumulation(question, checked, strict="gradient_accumulation_steps" in given)
    checked = replace(checked, gradient_accumulation_steps=count)
    sync = fixed_sync(question, checked)
    if sync is not None:
        asked = checked.sync_each_batch
        unless = "sync_each_batch" in given or sync.value is None
        if sync.refused and asked != sync.value and unless:
            raise UsageError("sync_each_batch", show(asked), sync.why)
        fixed = [*fixed, sync]
        checked = replace(checked, sync_each_batch=sync.value)
    inactive = {one.knob for one in fixed if not one.refused}
    for knob, values in question.knobs.items():
        value = getattr(checked, knob)
        if knob not in inactive and value not in values:
            raise UsageError(knob, show(value), f"is restricted to {show_all(values)}")
    return checked, fixed


def _accumulation(question: Question, settings: Settings, *, strict: bool) -> int:
    """The accumulation that makes the global batch, checked against a given one."""
    batch = question.workload.global_batch_size
    ranks = settings.data_parallel_size(question.cluster.world_size)
    if batch % ranks:
        allowed = f"must be a multiple of the data-parallel size, {ranks}"
        raise UsageError("global_batch_size", batch, allowed)
    per_rank, micro = batch // ranks, settings.micro_batch_size
    if per_rank % micro:
        allowed = f"must divide {per_rank} = global batch {batch} / data-parallel size {ranks}"
        raise UsageError("micro_batch_size", micro, allowed)
    derived, wanted = per_rank // micro, settings.gradient_accumulation_steps
    if wanted != derived and (strict or wanted != 1):
        raise UsageError(
            "gradient_accumulation_steps",
            wanted,
            f"must be {derived}: global batch {batch} = micro batch {micro} x accumulation"
            f" x data-parallel size {ranks}",
        )
    if not enough_micro_batches(settings, derived):
        allowed = f"must be at least pp_size - 1 = {settings.pp_size - 1}"
        raise UsageError("gradient_accumulation_steps", derived, allowed)
    return derived
