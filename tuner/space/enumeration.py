"""Enumerates the legal settings, or checks some, and says which knobs are inactive in them."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice, product
from operator import attrgetter
from typing import Any

from tuner.catalog.versions import Condition, Effect
from tuner.core.configuration import (
    KNOBS,
    OTHERS_CHOSEN,
    Checkpointing,
    InactiveKnob,
    Settings,
    Sharding,
)
from tuner.core.framework import FrameworkName, knob_effect
from tuner.core.study import Question
from tuner.errors import UsageError
from tuner.space.rules import (
    PLAIN_CHECKPOINTING,
    SHARDINGS,
    Fixed,
    broken_rule,
    canonical_class,
    check_has,
    check_possible,
    fixed_by_framework,
    fixed_by_script,
    fixed_cp_size,
    fixed_tp_size,
    logits_matter,
    no_checkpointing,
    possible,
    split_by,
)
from tuner.text import show, show_all

_CLASS_KNOBS = (
    "pp_size",
    "cp_size",
    "tp_size",
    "sharding",
    "tp_recompute_allgather",
    "activation_checkpointing",
    "cpu_offload",
    "fused_loss",
)

# How many legal settings each fixed knob holds for, by sharding.
_Ledger = dict[Fixed, Counter[Sharding]]


@dataclass(frozen=True, kw_only=True)
class Space:
    """All legal settings of a question, inactive knobs collapsed."""

    legal: tuple[Settings, ...]  # in a fixed order, each once; never empty
    dead_knobs: tuple[InactiveKnob, ...]
    """Knobs that do not act: anywhere, or where versions decide it, or though asked for."""

    def differing_in(self, knob: str) -> Mapping[Any, Mapping[Any, int]]:
        """Configurations that differ in this knob alone, and in accumulation, which makes up the
        global batch: their places in :attr:`legal` by the knob's value, by the values that they
        share (:data:`OTHERS_CHOSEN`)."""
        if knob not in self._groups:
            rest, value = OTHERS_CHOSEN[knob], attrgetter(knob)
            groups: dict[Any, dict[Any, int]] = defaultdict(dict)
            for place, one in enumerate(self.legal):
                groups[rest(one)][value(one)] = place
            self._groups[knob] = dict(groups)
        return self._groups[knob]

    def changed(self, one: Settings, knob: str, *, puts_off: bool) -> Mapping[Any, int]:
        """Places of the configurations that differ from a legal one in this knob alone, by its
        value, its own included.

        Where one micro-batch becomes several by that, gradients are synchronised as the framework
        does by itself: ``puts_off``, as :attr:`~tuner.core.framework.Framework.puts_off`. Where
        several become one, ``sync_each_batch`` has no effect left, and is not compared.
        """
        groups, others = self.differing_in(knob), OTHERS_CHOSEN[knob]
        found = groups[others(one)]
        if one.gradient_accumulation_steps > 1:
            synced = groups.get(others(replace(one, sync_each_batch=True)), {}).items()
            whole = {n: p for n, p in synced if self.legal[p].gradient_accumulation_steps == 1}
            return {**whole, **found}
        if not puts_off:
            return found
        deferred = groups.get(others(replace(one, sync_each_batch=False)), {})
        return {value: deferred.get(value, place) for value, place in found.items()}

    # What is said of a study after every probe asks for them again.
    @cached_property
    def places(self) -> Mapping[Settings, int]:
        """Where each configuration stands in :attr:`legal`."""
        return {one: place for place, one in enumerate(self.legal)}

    @cached_property
    def _groups(self) -> dict[str, dict[Any, dict[Any, int]]]:
        return {}


_LIMITED_TO = {
    Condition.TENSOR_PARALLEL: "tp_size above 1",
    Condition.CPU_OFFLOAD: "cpu_offload",
}


def fixed_sync(question: Question, settings: Settings) -> Fixed | None:
    """Tells whether ``sync_each_batch`` is inactive or refused in these settings."""
    knob = "sync_each_batch"
    if found := fixed_by_framework(question, knob):
        return found
    if settings.sharing_size(question.cluster.world_size) == 1:
        why = "it acts with two data-parallel ranks or more, and there is one"
        return Fixed(knob=knob, value=True, why=why)
    if settings.gradient_accumulation_steps == 1:
        why = "with gradient_accumulation_steps 1 there is nothing to put off"
        return Fixed(knob=knob, value=True, why=why)
    replicated = settings.sharding in (Sharding.DDP, Sharding.ZERO1)
    conditions = {question.framework.family(replicated=replicated)}
    conditions |= {Condition.CPU_OFFLOAD} if settings.cpu_offload else set()
    conditions |= {Condition.TENSOR_PARALLEL} if settings.splits_layers else set()
    effect = knob_effect(question.framework, knob, frozenset(conditions))
    if effect.effect is Effect.LIVE:
        return fixed_by_script(question, knob)
    limited = (
        words
        for condition, words in _LIMITED_TO.items()
        if knob_effect(question.framework, knob, frozenset(conditions - {condition})) != effect
    )
    refused = effect.effect is Effect.REFUSED
    left = [v for v in (True, False) if v not in effect.values] if refused else effect.values
    return Fixed(
        knob=knob,
        value=left[0] if left else None,
        why=effect.why,
        by_versions=True,
        refused=refused,
        when="gradient_accumulation_steps above 1",
        among=next(limited, ""),
    )


def fixed_all_reduce(question: Question, settings: Settings) -> Fixed | None:
    """Tells whether ``defer_all_reduce`` is inactive; the other knobs are canonical."""
    knob = "defer_all_reduce"
    if settings.sharding is not Sharding.HYBRID_SHARD:
        why = "only hybrid_shard, over several nodes, has replicas of shards to reduce over"
        return Fixed(knob=knob, value=False, why=why)
    if settings.gradient_accumulation_steps == 1:
        why = "with gradient_accumulation_steps 1 there is nothing to put off"
        return Fixed(knob=knob, value=False, why=why)
    if not settings.sync_each_batch:
        why = "with sync_each_batch false all reductions are put off"
        return Fixed(knob=knob, value=False, why=why)
    family = question.framework.family(replicated=False)
    effect = knob_effect(question.framework, knob, frozenset({family}))
    if effect.effect is Effect.LIVE:
        return fixed_by_script(question, knob)
    return Fixed(knob=knob, value=effect.values[0], why=effect.why, by_versions=True)


def sentence(
    fixed: Fixed, *, asked: Collection[Any] = (), only: Collection[str] = (), apart: bool = False
) -> str:
    """Says to a user which knob is inactive, and why; ``asked`` are values that were asked for.

    It is about ``only`` these shardings, or all where there are none; ``apart`` says whether the
    knob is fixed at other values in other settings.
    """
    limits = [", ".join(only), fixed.among]
    where = f" with {' and '.join(filter(None, limits))}" if any(limits) else ""
    if fixed.value is None:
        return f"gradient_accumulation_steps is 1{where}: {fixed.why}"
    if apart and fixed.when:
        where += f"{' and' if where else ' with'} {fixed.when}"
    instead = f", not {show_all(asked)} as asked" if asked and fixed.value not in asked else ""
    comma = "," if instead and where else ""
    return f"{fixed.knob} is {show(fixed.value)}{instead}{comma}{where}: {fixed.why}"


def enough_micro_batches(settings: Settings, accumulation: int) -> bool:
    """The 1F1B schedule's condition, asserted in nanotron pipeline_parallel/engine.py."""
    return accumulation >= settings.pp_size - 1


def divisors(number: int) -> tuple[int, ...]:
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return tuple(sorted({*small, *(number // d for d in small)}))


def enumerate_space(question: Question) -> Space:
    """Every legal settings of the question, and the knobs that do not act in it.

    A restriction of a knob holds where the knob is live; where it is inactive, the knob has its
    canonical value, and ``dead_knobs`` says so if that is not what was asked for. Raises
    UsageError: a restriction names an impossible value, can be met nowhere or leaves nothing, or no
    settings can make the global batch."""
    space = _space(question)
    if not space.legal:
        raise _nothing_legal(question)
    return space


def legal_settings(question: Question) -> Iterator[Settings]:
    """Those of :func:`enumerate_space`, where it does not matter why there are none, nor whether a
    restriction is of a knob that does not act: with impossible values there are just none."""
    return (one for found in _classes(question) for one in _members(question, found, {}))


def count_settings(question: Question, most: int) -> int:
    """How many legal settings a question has, counted to one more than ``most``."""
    return sum(1 for _ in islice(legal_settings(question), most + 1))


# A study is planned again after every probe, and its space stays the same.
@lru_cache(maxsize=4)
def _space(question: Question) -> Space:
    for knob, values in question.knobs.items():
        for value in values:
            check_possible(question, knob, value)
    legal, ledger = _enumerate(question)
    if not legal:
        return Space(legal=(), dead_knobs=())
    for knob, asked_values in question.knobs.items():
        # a knob that is inactive everywhere cannot have another value
        if not any(getattr(settings, knob) in asked_values for settings in legal):
            reasons = dict.fromkeys(fixed.why for fixed in ledger if fixed.knob == knob)
            why = f"cannot be had here: {'; '.join(reasons)}"
            raise UsageError(knob, show_all(asked_values), why)
    return Space(legal=tuple(legal), dead_knobs=tuple(_dead_knobs(question, legal, ledger)))


def _enumerate(question: Question) -> tuple[list[Settings], _Ledger]:
    legal: list[Settings] = []
    ledger: _Ledger = {}
    for one_class, fixed in _classes(question).items():
        members = list(_members(question, one_class, ledger))
        legal.extend(members)
        for one in fixed:
            ledger.setdefault(one, Counter())[one_class.sharding] += len(members)
    return legal, ledger


def _classes(question: Question) -> dict[Settings, list[Fixed]]:
    found: dict[Settings, list[Fixed]] = {}
    for settings, fixed in _combined(question):
        if settings not in found and broken_rule(question, settings) is None:
            found[settings] = fixed
    return found


def _combined(question: Question) -> Iterator[tuple[Settings, list[Fixed]]]:
    """Canonical classes of all values together, with those that break a rule."""
    fixed_sizes = [fixed_by_framework(question, "pp_size"), fixed_tp_size(question)]
    fixed_sizes += [fixed_cp_size(question)] if "cp_size" in question.knobs else []
    sizes = {one.knob: (one.value,) for one in fixed_sizes if one}  # whatever else is combined
    options = [sizes.get(knob) or _options(question, knob) for knob in _CLASS_KNOBS]
    for values in product(*options):
        raw = Settings(**dict(zip(_CLASS_KNOBS, values, strict=True)))
        yield canonical_class(question, raw)


def _options(question: Question, knob: str) -> tuple[Any, ...]:
    """Values of one knob to combine: those asked for, else all, that are possible."""
    cluster = question.cluster
    defaults: Mapping[str, tuple[Any, ...]] = {
        "pp_size": divisors(cluster.world_size),
        "cp_size": (1,),  # only when asked for: it is for sequences that do not fit whole
        "tp_size": divisors(cluster.gpus_per_node),
        "sharding": SHARDINGS[question.framework.name],
        "tp_recompute_allgather": (False, True),
        # A user's script is known to tell two apart at most: others have to be named. So has
        # ``offload``: it is slower than ``full``, and takes host memory, of which nothing is said.
        "activation_checkpointing": PLAIN_CHECKPOINTING
        if question.script is not None
        else tuple(
            value
            for value in Checkpointing
            if value is not Checkpointing.OFFLOAD and not no_checkpointing(question, value)
        ),
        "cpu_offload": (False,),  # only when asked for: it is slow, and takes host memory
        # else only when asked for: the script's loss must be changed
        "fused_loss": (False, True) if logits_matter(question) else (False,),
    }
    return possible(question, knob, question.knobs.get(knob, defaults[knob]))


def _members(question: Question, one_class: Settings, ledger: _Ledger) -> Iterator[Settings]:
    """The legal settings of a class: micro-batch sizes, and when gradients are synchronized."""
    batch = question.workload.global_batch_size
    ranks = one_class.data_parallel_size(question.cluster.world_size)
    if batch % ranks:
        return
    micros = question.knobs.get("micro_batch_size")
    counts = question.knobs.get("gradient_accumulation_steps")
    # the Trainer has no argument for it, and would need a callback
    told = question.script is not None or question.framework.name is not FrameworkName.TRAINER
    deferrals = (False, True) if told else (False,)
    for micro in divisors(batch // ranks):
        count = batch // ranks // micro
        wanted = (micros is None or micro in micros) and (counts is None or count in counts)
        if not wanted or not enough_micro_batches(one_class, count):
            continue
        one = replace(one_class, micro_batch_size=micro, gradient_accumulation_steps=count)
        wanted_syncs = question.knobs.get("sync_each_batch", (True, False))
        fixed = fixed_sync(question, one)
        if fixed is not None:
            keep = fixed.value is not None and (not fixed.refused or fixed.value in wanted_syncs)
            ledger.setdefault(fixed, Counter())[one.sharding] += keep
            wanted_syncs = (fixed.value,) if keep else ()
        for sync in wanted_syncs:
            synced = replace(one, sync_each_batch=sync)
            deferring = question.knobs.get("defer_all_reduce", deferrals)
            if all_reduce := fixed_all_reduce(question, synced):
                ledger.setdefault(all_reduce, Counter())[one.sharding] += 1
                deferring = (all_reduce.value,)
            for defers in deferring:
                yield replace(synced, defer_all_reduce=defers)


def _dead_knobs(
    question: Question, legal: list[Settings], ledger: _Ledger
) -> Iterator[InactiveKnob]:
    shardings = {settings.sharding for settings in legal}
    for knob in KNOBS:
        entries = {fixed: where for fixed, where in ledger.items() if fixed.knob == knob}
        everywhere = sum(where.total() for where in entries.values()) == len(legal)
        asked = question.knobs.get(knob, ())
        apart = len({fixed.value for fixed in entries}) > 1
        for fixed, where in entries.items():
            unasked = asked and fixed.value not in asked and where.total() > 0
            if fixed.by_versions or (everywhere and where.total()) or unasked:
                only = () if set(where) >= shardings else sorted(where)
                why = sentence(fixed, asked=asked, only=only, apart=apart)
                yield InactiveKnob(knob=knob, why=why)
        sized = knob in ("tp_size", "pp_size") and not entries and not asked
        if sized and _options(question, knob) == (1,):  # it could act, but has one possible value
            sizes = ", ".join(f"{what} ({size})" for what, size in split_by(question, knob))
            why = f"{knob} is 1: no larger number divides all of {sizes}"
            yield InactiveKnob(knob=knob, why=why)


def _nothing_legal(question: Question) -> UsageError:
    """Names the restriction, or else the global batch, that leaves no legal configuration."""
    known = question.knobs
    lifted = {
        knob: _enumerate(replace(question, knobs={k: v for k, v in known.items() if k != knob}))[0]
        for knob in known
    }
    blamed = [knob for knob, legal in lifted.items() if legal]
    if blamed:
        knob, *others = blamed
        values = sorted({getattr(settings, knob) for settings in lifted[knob]})
        lift = f" (or lift the restriction of {', '.join(others)})" if others else ""
        broken = (broken_rule(question, settings) for settings, _ in _combined(question))
        rules = (rule.allowed for rule in broken if rule and rule.field == knob)
        why = next(rules, "leaves no legal settings")
        allowed = f"{why}; the rest allows {show_all(values)}{lift}"
        if knob in SIZES and (sizes := _data_parallel_sizes(question)):
            allowed += f", or a global batch near {question.workload.global_batch_size} that is a"
            allowed += f" multiple of {min(sizes)}: {_nearest_batches(question, sizes)}"
        return UsageError(knob, show_all(question.knobs[knob]), allowed)
    if question.knobs and _enumerate(replace(question, knobs={}))[0]:
        given = "; ".join(f"{knob}={show_all(v)}" for knob, v in question.knobs.items())
        return UsageError("knob", given, "no settings satisfy all of these restrictions")
    sizes = _data_parallel_sizes(question) or _data_parallel_sizes(replace(question, knobs={}))
    multiples = " or ".join(f"{size} (at {sizes[size]})" for size in sorted(sizes))
    allowed = f"must be a multiple of a possible data-parallel size: {multiples}; nearest:"
    allowed += f" {_nearest_batches(question, sizes)}"
    return UsageError("global_batch_size", question.workload.global_batch_size, allowed)


def _data_parallel_sizes(question: Question) -> dict[int, str]:
    """The data-parallel sizes that may be, whatever the global batch is, with what makes each."""
    world = question.cluster.world_size
    return {
        one_class.data_parallel_size(world): f"tp_size {one_class.tp_size}"
        + (f", pp_size {one_class.pp_size}" if one_class.pp_size > 1 else "")
        + (f", cp_size {one_class.cp_size}" if one_class.cp_size > 1 else "")
        for one_class in _classes(question)
    }


def _nearest_batches(question: Question, sizes: Iterable[int]) -> str:
    """The global batches next to the question's that one of the data-parallel sizes divides."""
    batch = question.workload.global_batch_size
    below = max(batch // size * size for size in sizes)
    above = min(-(-batch // size) * size for size in sizes)
    return f"{below} or {above}" if below else f"{above}"


# Knobs that are refused where they are inactive: without them these are other settings.
SIZES = ("tp_size", "pp_size", "cp_size")


def check_settings(
    question: Question, settings: Settings, *, given: Collection[str] = ()
) -> Settings:
    """The canonical form of settings that somebody wrote down; see :func:`settings_notes`.

    An accumulation of 1 counts as left out, and is derived, unless the knobs that were ``given``
    hold it. A knob that is not among them has the only value that is not refused. Raises
    UsageError: they break a rule, contradict each other or the question's restrictions."""
    return _checked(question, settings, given)[0]


def settings_notes(
    question: Question, settings: Settings, *, given: Collection[str]
) -> tuple[InactiveKnob, ...]:
    """The knobs that :func:`check_settings` changes, with the reasons.

    Of those that were not ``given``, only what has another value than its default because that is
    refused is told. Raises UsageError: as :func:`check_settings`."""
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
            raise UsageError(one.knob, wanted, f"cannot be had here: {one.why}")
    for knob in ("sharding", *SIZES, "activation_checkpointing", "cpu_offload"):
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
    if all_reduce := fixed_all_reduce(question, checked):
        fixed = [*fixed, all_reduce]
        checked = replace(checked, defer_all_reduce=all_reduce.value)
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
