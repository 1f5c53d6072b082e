"""Decides which values a knob can have, and which combinations are refused."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from tuner.core.cluster import Device
from tuner.core.configuration import FSDP, InactiveKnob, Settings, Sharding
from tuner.core.framework import FrameworkName
from tuner.core.study import Question
from tuner.errors import UsageError
from tuner.space.inactive import (
    Fixed,
    canonical_class,
    fixed_by_framework,
    fixed_sync,
    fixed_tp_size,
    sentence,
    show,
    show_all,
)

# What each framework can split over the data-parallel ranks.
SHARDINGS: Mapping[FrameworkName, tuple[Sharding, ...]] = {
    FrameworkName.TORCH: (Sharding.DDP, *FSDP),
    FrameworkName.ACCELERATE: (Sharding.DDP, *FSDP),
    FrameworkName.TRAINER: (Sharding.DDP, *FSDP),
    # nanotron config/config.py: optimizer.zero_stage is 0 or 1.
    FrameworkName.NANOTRON: (Sharding.DDP, Sharding.ZERO1),
}


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def check_possible(question: Question, knob: str, value: Any) -> None:
    """Refuse a value that no settings of this question can have while the knob is live.

    Raises:
        UsageError: with the reason.
    """
    if knob == "sharding":
        _check_sharding(question, value)
    sizes = [(what, size) for what, size in split_by(question, knob) if size % value]
    if sizes:
        wrong = " and ".join(f"{what} ({size})" for what, size in sizes)
        raise UsageError(knob, value, f"must divide {wrong}")
    if knob == "cpu_offload" and value and question.cluster.gpu.device is Device.CPU:
        raise UsageError(knob, "true", "refused on CPUs, where device and host memory are one")


def possible(question: Question, knob: str, values: Collection[Any]) -> tuple[Any, ...]:
    """Selects those of ``values`` that :func:`check_possible` lets pass."""
    passed = []
    for value in values:
        try:
            check_possible(question, knob, value)
        except UsageError:
            continue
        passed.append(value)
    return tuple(passed)


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


def _check_sharding(question: Question, value: Sharding) -> None:
    check_has(question, value)
    if value is Sharding.HYBRID_SHARD and question.cluster.nodes == 1:
        raise UsageError("sharding", value, "needs more than one node: it shards within each")


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

    Args:
        question: what they are for.
        settings: as parsed. An accumulation of 1 counts as left out, and is derived.
        given: names of knobs that were written; with ``gradient_accumulation_steps`` among
            them, an accumulation of 1 is taken as it is. A knob that is not among them has
            the only value that is not refused.

    Raises:
        UsageError: they break a rule, contradict each other or the question's restrictions.
    """
    return _checked(question, settings, given)[0]


def settings_notes(
    question: Question, settings: Settings, *, given: Collection[str]
) -> tuple[InactiveKnob, ...]:
    """The knobs that :func:`check_settings` changes, with the reasons.

    Args:
        question: what they are for.
        settings: as parsed.
        given: names of knobs that were written. Of those left out, only what has another value
            than its default because that is refused is told.

    Raises:
        UsageError: as :func:`check_settings`.
    """
    _, fixed = _checked(question, settings, given)
    return tuple(
        InactiveKnob(knob=one.knob, why=sentence(one, asked=_asked(one, settings)))
        for one in fixed
        if getattr(settings, one.knob) != one.value and (one.knob in given or one.refused)
    )


def _asked(fixed: Fixed, settings: Settings) -> tuple[object, ...]:
    """The value that was written; none where a value was left out because others are refused."""
    return () if fixed.refused else (getattr(settings, fixed.knob),)


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
        _check_sync(sync, checked, given)
        fixed = [*fixed, sync]
        checked = replace(checked, sync_each_batch=sync.value)
    _check_restrictions(question, checked, inactive={one.knob for one in fixed if not one.refused})
    return checked, fixed


def _check_sync(sync: Fixed, settings: Settings, given: Collection[str]) -> None:
    """Refuse a value that was written and is wrong, and any where there is no right one."""
    asked = settings.sync_each_batch
    if sync.refused and asked != sync.value and ("sync_each_batch" in given or sync.value is None):
        raise UsageError("sync_each_batch", show(asked), sync.why)


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


def _check_restrictions(question: Question, settings: Settings, inactive: Collection[str]) -> None:
    for knob, values in question.knobs.items():
        value = getattr(settings, knob)
        if knob not in inactive and value not in values:
            raise UsageError(knob, show(value), f"is restricted to {show_all(values)}")
