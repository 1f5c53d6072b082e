"""Where a step's memory goes, and what each knob would save or cost, in plain sentences."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from tuner.cluster import Cluster
from tuner.cost.categories import Basis
from tuner.cost.coverage import uncovered_settings
from tuner.cost.explain_words import (
    CATEGORY_WORDS,
    PHASE_WORDS,
    beside,
    optimizer_reason,
    reason,
)
from tuner.cost.padding import padding_words
from tuner.cost.prediction import Prediction, Profile, predict
from tuner.errors import UsageError
from tuner.framework import Framework, FrameworkName
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.sizes import size_text
from tuner.space import check_settings
from tuner.study import Question
from tuner.workload import Optimizer, Workload

MOST_CATEGORIES = 3
"""Categories that the first sentence names."""
SMALLEST_SHARE = 0.005
"""Part of the peak that a knob must change to be said to change it."""
ORDER = (Sharding.DDP, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD)
"""Shardings by what is split; a step in it is one stronger or weaker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What another value of one knob does to the peak."""

    knob: str
    """Its name, or ``optimizer``."""
    value: str
    """The other value, as a user writes it."""
    change_bytes: float
    """Added to the peak; negative where it saves."""
    reason: str
    """The physical reason; empty where nothing changes."""
    beside: str
    """Other knobs that change with it and matter, such as ``gradient_accumulation_steps=2``."""
    basis: Basis
    """What both figures were computed from."""
    dry_run_peak: bool = False
    """Whether the sentence's basis is worth telling: the settings themselves were dry-run."""

    def __str__(self) -> str:
        also = f", with {self.beside}," if self.beside else ""
        told = f"`{self.knob}={self.value}`{also} would"
        if not self.change_bytes:
            return f"{told} hardly change the peak: it is not what the peak is made of"
        verb = "add" if self.change_bytes > 0 else "save"
        by = " (both by arithmetic)" if self.dry_run_peak and self.basis is Basis.ARITHMETIC else ""
        return f"{told} {verb} {size_text(abs(self.change_bytes))}{by}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    question: Question
    profiles: Mapping[Settings, Profile]

    def predict(self, settings: Settings, *, dry: bool) -> Prediction:
        profile = self.profiles.get(settings.settings_class) if dry else None
        q = self.question
        return predict(q.workload, q.cluster, q.framework, settings, profile=profile)


def explain_memory(
    workload: Workload,
    cluster: Cluster,
    framework: Framework | FrameworkName,
    settings: Settings,
    *,
    profiles: Mapping[Settings, Profile],
) -> tuple[str, ...]:
    """Where the memory goes, what of it is padding, and a sentence for each knob's next values.

    Both figures of a difference are of one basis: dry runs where both classes have a profile,
    arithmetic for both otherwise. Values that are illegal or dead in these settings are left out.

    Args:
        workload: what is trained.
        cluster: where.
        framework: with which stack.
        settings: legal ones.
        profiles: dry runs by class (:attr:`tuner.settings.Settings.settings_class`).
    """
    if isinstance(framework, FrameworkName):
        framework = Framework(name=framework)
    question = Question(workload=workload, cluster=cluster, framework=framework)
    asked = _Asked(question=question, profiles=profiles)
    found = asked.predict(settings, dry=True)
    if found.allocated_bytes.value is None:
        return (f"What it needs is unknown: {found.why}.",)
    told = [_whole(found)]
    if padding := padding_words(workload, cluster, settings):
        told.append(f"{padding}.")
    changes = memory_changes(question, settings, profiles=profiles)
    return (*told, *(f"{change}." for change in changes))


def memory_changes(
    question: Question, settings: Settings, *, profiles: Mapping[Settings, Profile]
) -> tuple[Change, ...]:
    """What each legal neighbouring value of each live knob would do to the peak."""
    asked = _Asked(question=question, profiles=profiles)
    with suppress(UsageError):  # so that a dead knob has its canonical value
        settings = check_settings(question, settings)
    if _uncovered(question, settings):
        return ()
    changes = (_change(asked, settings, other, knob) for knob, other in _others(question, settings))
    return (*changes, *_eight_bit(asked, settings))


def compared_classes(question: Question, settings: Settings) -> tuple[Settings, ...]:
    """The classes whose dry runs :func:`explain_memory` can use for ``settings``, each once."""
    others = [settings, *(other for _, other in _others(question, settings))]
    return tuple(dict.fromkeys(one.settings_class for one in others))


def _others(question: Question, settings: Settings) -> Iterator[tuple[str, Settings]]:
    """Settings with a neighbouring value of one live knob, and which."""
    for knob, value in _neighbors(settings):
        other = _legal(question, settings, knob, value)
        if other is not None and not _uncovered(question, other):
            yield knob, other


def _uncovered(question: Question, settings: Settings) -> str:
    q = question
    return uncovered_settings(q.workload, q.framework, q.cluster, settings)


def _whole(found: Prediction) -> str:
    """Where the memory goes."""
    total = found.allocated_bytes.value or 0.0
    largest = sorted(found.breakdown.items(), key=lambda item: -item[1])[:MOST_CATEGORIES]
    parts = [f"{size_text(size)} of {CATEGORY_WORDS[name]}" for name, size in largest if size > 0]
    listed = ", ".join(parts[:-1]) + " and " + parts[-1] if len(parts) > 1 else parts[0]
    phase = max(found.by_phase, key=lambda name: found.by_phase[name])
    by = "a dry run" if found.basis is Basis.DRY_RUN else "arithmetic"
    return (
        f"By {by} the peak of {size_text(total)} is in {PHASE_WORDS[phase]}: {listed}"
        f"{', and the rest is less' if len(found.breakdown) > len(parts) else ''}."
    )


def _neighbors(settings: Settings) -> Iterator[tuple[str, Any]]:
    """Knobs and the values that are next to theirs."""
    yield "sync_each_batch", not settings.sync_each_batch
    yield "tp_recompute_allgather", not settings.tp_recompute_allgather
    full = settings.activation_checkpointing is Checkpointing.FULL
    yield "activation_checkpointing", Checkpointing.NONE if full else Checkpointing.FULL
    yield from (("sharding", value) for value in _shardings(settings.sharding))
    for knob in ("micro_batch_size", "tp_size", "pp_size"):
        size = getattr(settings, knob)
        yield knob, 2 * size
        if not size % 2:
            yield knob, size // 2
    if settings.cpu_offload:
        yield "cpu_offload", False


def _shardings(sharding: Sharding) -> Iterator[Sharding]:
    """One step stronger and one weaker."""
    if sharding in (Sharding.DDP, Sharding.ZERO1):
        yield Sharding.ZERO1 if sharding is Sharding.DDP else Sharding.DDP
    if sharding is Sharding.HYBRID_SHARD:
        yield Sharding.FULL_SHARD
        yield Sharding.SHARD_GRAD_OP
    if sharding in ORDER:
        place = ORDER.index(sharding)
        yield from ORDER[place + 1 : place + 2]
        yield from ORDER[max(0, place - 1) : place]
    if sharding is Sharding.FULL_SHARD:
        yield Sharding.HYBRID_SHARD


def _legal(question: Question, settings: Settings, knob: str, value: Any) -> Settings | None:
    """The settings with one other value, if that is legal and acts."""
    wanted = replace(settings, **{knob: value})
    if knob != "sync_each_batch":
        wanted = replace(wanted, gradient_accumulation_steps=1)  # derived anew
    if knob == "tp_size" and value == 1:
        wanted = replace(wanted, tp_recompute_allgather=False)
    try:
        checked = check_settings(question, wanted)
    except UsageError:
        return None
    return checked if getattr(checked, knob) == value else None


def _change(asked: _Asked, settings: Settings, other: Settings, knob: str) -> Change:
    known = asked.profiles
    dry = settings.settings_class in known and other.settings_class in known
    before, after = (asked.predict(s, dry=dry) for s in (settings, other))
    change, value = _difference(before, after), getattr(other, knob)
    apart = _by_category(before, after)
    return Change(
        knob=knob,
        value=str(value).lower() if isinstance(value, bool) else str(value),
        change_bytes=change,
        reason=reason(asked.question, settings, other, knob, apart) if change else "",
        beside=beside(settings, other, knob),
        basis=Basis.DRY_RUN if dry else Basis.ARITHMETIC,
        dry_run_peak=settings.settings_class in known,
    )


def _difference(before: Prediction, after: Prediction) -> float:
    """Bytes that the peak grows by; 0 where that is next to nothing."""
    old, new = before.allocated_bytes.value, after.allocated_bytes.value
    assert old is not None
    assert new is not None
    return new - old if abs(new - old) > SMALLEST_SHARE * old else 0.0


def _by_category(before: Prediction, after: Prediction) -> dict[str, float]:
    """The same by category; the peaks may be in different phases."""
    old, new = before.breakdown, after.breakdown
    return {name: new.get(name, 0.0) - old.get(name, 0.0) for name in {**old, **new}}


def _eight_bit(asked: _Asked, settings: Settings) -> Iterator[Change]:
    """The other of AdamW's two precisions of state: by arithmetic, for it is another workload."""
    workload, q = asked.question.workload, asked.question
    other = {
        Optimizer.ADAMW: Optimizer.ADAMW_8BIT,
        Optimizer.ADAMW_8BIT: Optimizer.ADAMW,
    }.get(workload.optimizer)
    if other is None or q.framework.name is FrameworkName.NANOTRON:
        return
    changed = replace(q, workload=replace(workload, optimizer=other))
    before = asked.predict(settings, dry=False)
    after = _Asked(question=changed, profiles={}).predict(settings, dry=False)
    change, apart = _difference(before, after), _by_category(before, after)
    yield Change(
        knob="optimizer",
        value=str(other),
        change_bytes=change,
        reason=optimizer_reason(other, apart) if change else "",
        beside="",
        basis=Basis.ARITHMETIC,
        dry_run_peak=settings.settings_class in asked.profiles,
    )
