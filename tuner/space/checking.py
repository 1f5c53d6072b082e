"""Checks settings that somebody wrote down against the rules."""

from collections.abc import Collection
from dataclasses import replace

from tuner.errors import UsageError
from tuner.settings import Settings
from tuner.space.dead import (
    DeadKnob,
    Fixed,
    canonical_class,
    fixed_sync,
    sentence,
    show,
    show_all,
)
from tuner.space.rules import broken_rule, check_has, check_possible, enough_micro_batches
from tuner.study import Question

SIZES = ("tp_size", "pp_size")
"""Knobs that are refused where they are dead: without them these are other settings."""


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
) -> tuple[DeadKnob, ...]:
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
        DeadKnob(knob=one.knob, why=sentence(one, asked=_asked(one, settings)))
        for one in fixed
        if getattr(settings, one.knob) != one.value and (one.knob in given or one.refused)
    )


def _asked(fixed: Fixed, settings: Settings) -> tuple[object, ...]:
    """The value that was written; none where a value was left out because others are refused."""
    return () if fixed.refused else (getattr(settings, fixed.knob),)


def _checked(
    question: Question, settings: Settings, given: Collection[str]
) -> tuple[Settings, list[Fixed]]:
    """The canonical form, and the knobs that are dead in it."""
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
    _check_restrictions(question, checked, dead={one.knob for one in fixed if not one.refused})
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


def _check_restrictions(question: Question, settings: Settings, dead: Collection[str]) -> None:
    for knob, values in question.knobs.items():
        value = getattr(settings, knob)
        if knob not in dead and value not in values:
            raise UsageError(knob, show(value), f"is restricted to {show_all(values)}")
