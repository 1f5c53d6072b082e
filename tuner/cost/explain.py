"""The words of memory's explanation: names of categories and phases, and each knob's reason."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from tuner.core.cluster import Cluster
from tuner.core.configuration import FSDP, Checkpointing, Settings, Sharding
from tuner.core.framework import Framework, FrameworkName
from tuner.core.measurement import Basis
from tuner.core.study import Question
from tuner.core.workload import Optimizer, Workload
from tuner.cost.allocated import Profile
from tuner.cost.memory.shards import (
    COMPUTE_BYTES,
    WEIGHT_BYTES,
    is_fsdp,
    shard_ranks,
    shards,
    state_bytes,
)
from tuner.cost.prediction import Prediction, predict, uncovered_settings
from tuner.errors import UsageError
from tuner.space import check_settings
from tuner.text import size_text

# How a category is called in a sentence.
CATEGORY_WORDS: Mapping[str, str] = {
    "parameters": "parameters",
    "gradients_sharded": "sharded gradients",
    "gradients_unsharded": "unsharded gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "gathered_parameters": "gathered or cast parameters",
    "logits_and_loss": "logits and loss",
    "ddp_buckets": "DDP's buckets",
    "temporaries": "temporaries",
    "library_workspaces": "cuBLAS's workspaces",
    "unsplit_blocks": "blocks larger than their tensors",
}

# How a phase is called in a sentence.
PHASE_WORDS: Mapping[str, str] = {
    "forward": "forward",
    "loss": "the loss",
    "backward": "backward",
    "optimizer": "the optimizer's step",
}

EIGHT_BIT = "its two moments take a byte each per parameter, and no copy of all is made"
NOT_EIGHT_BIT = "its two moments are kept in the parameters' precision"

_STATES = frozenset(
    {"parameters", "gradients_sharded", "gradients_unsharded", "optimizer_state"}
    | {"gathered_parameters", "ddp_buckets"}
)
_GRADIENTS = frozenset({"gradients_sharded", "gradients_unsharded"})
_OF_TOKENS = frozenset({"activations", "logits_and_loss", "temporaries"})
# The categories that the reason of each knob speaks of.
ABOUT: Mapping[str, frozenset[str]] = {
    "sync_each_batch": _GRADIENTS,
    "tp_recompute_allgather": _OF_TOKENS,
    "activation_checkpointing": _OF_TOKENS,
    "sharding": _STATES | {"temporaries"},
    "micro_batch_size": _OF_TOKENS,
    "tp_size": frozenset(CATEGORY_WORDS),
    "pp_size": frozenset(CATEGORY_WORDS),
    "cpu_offload": _STATES,
    "optimizer": frozenset({"optimizer_state", "temporaries"}),
}


def reason(
    question: Question,
    settings: Settings,
    other: Settings,
    knob: str,
    differences: Mapping[str, float],
) -> str:
    """Why a knob's other value takes more memory, or less.

    It is the knob's own reason where that is what changes most, and in its direction. Otherwise
    it is the category that changes most, and what else decides it.

    Args:
        question: what they are for.
        settings: as they are.
        other: with the other value, and whatever changes with it.
        knob: the one that differs.
        differences: bytes by category at the peak, of the other less the settings' own.
    """
    name, saves = _largest(differences)
    expected = _should_save(settings, other, knob)
    unsplit = knob == "tp_size" and question.workload.model.experts and name in _STATES
    padded = not saves and name in _STATES and _more_padded(question, settings, other)
    if expected in (saves, None) and name in ABOUT[knob] and not unsplit and not padded:
        return _own(question, settings, other, knob, saves=saves)
    return _bare(differences) + _cause(question, settings, other, name)


def optimizer_reason(other: Optimizer, differences: Mapping[str, float]) -> str:
    """The same for the other of AdamW's two precisions of state."""
    name, saves = _largest(differences)
    eight_bit = other is Optimizer.ADAMW_8BIT
    if saves is not eight_bit or name not in ABOUT["optimizer"]:
        return _bare(differences)
    return EIGHT_BIT if eight_bit else NOT_EIGHT_BIT


def _largest(differences: Mapping[str, float]) -> tuple[str, bool]:
    """The category that changes most in the direction of the whole, and whether that is down."""
    saves = sum(differences.values()) < 0
    return max(differences, key=lambda name: differences[name] * (-1 if saves else 1)), saves


def _bare(differences: Mapping[str, float]) -> str:
    """Only what changes."""
    name, saves = _largest(differences)
    size = size_text(abs(differences[name]))
    return f"{size} {'less' if saves else 'more'} of {CATEGORY_WORDS[name]} at the peak"


def beside(settings: Settings, other: Settings, knob: str) -> str:
    """The other knobs that change with one, as a user writes them; empty when none matters.

    A number of micro-batches matters where there is one only: gradients then wait for nothing.
    """
    counts = {settings.gradient_accumulation_steps, other.gradient_accumulation_steps}
    alike = {knob} | (set() if 1 in counts and len(counts) > 1 else {_COUNT})
    if 1 in counts:
        alike |= {"sync_each_batch"}  # which is dead there
    old, new = settings.as_dict(), other.as_dict()
    changed = (name for name in new if name not in alike and new[name] != old[name])
    return ", ".join(f"{name}={_text(new[name])}" for name in changed)


_COUNT = "gradient_accumulation_steps"
# Shardings by what a rank holds, most first.
_STRENGTH = (
    *(Sharding.DDP, Sharding.ZERO1, Sharding.SHARD_GRAD_OP),
    *(Sharding.HYBRID_SHARD, Sharding.FULL_SHARD),
)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _should_save(settings: Settings, other: Settings, knob: str) -> bool | None:
    """Tells whether a knob's own reason is one to need less; ``None`` where it has reasons for
    both.
    """
    if knob == "sharding":
        if {settings.sharding, other.sharding} == {Sharding.HYBRID_SHARD, Sharding.SHARD_GRAD_OP}:
            return None
        return _STRENGTH.index(other.sharding) > _STRENGTH.index(settings.sharding)
    old, new = getattr(settings, knob), getattr(other, knob)
    if knob in ("tp_size", "pp_size"):
        return bool(new > old)
    if knob == "micro_batch_size":
        return bool(new < old)
    if knob == "activation_checkpointing":
        return bool(new is Checkpointing.FULL)
    return bool(new)  # sync_each_batch, tp_recompute_allgather, cpu_offload


def _cause(question: Question, settings: Settings, other: Settings, name: str) -> str:
    """Names what makes a category larger or smaller beside the knob's own doing; empty if not
    known.
    """
    old, new = settings.gradient_accumulation_steps, other.gradient_accumulation_steps
    if name in _GRADIENTS and old == 1 < new:
        return ", for those of one micro-batch wait for the next"
    if name in _GRADIENTS and new == 1 < old:
        return ", for with one micro-batch none wait for the next"
    experts, (old, new) = question.workload.model.experts, _shards(question, settings, other)
    if name in _STATES and old != new and 0 < experts < max(old, new):
        return (
            f", for tensors of {experts} experts are padded to a multiple of the ranks that shard"
            f" them, {new} instead of {old}"
        )
    world = question.cluster.world_size
    old, new = settings.data_parallel_size(world), other.data_parallel_size(world)
    if name in _STATES and old != new:
        return f", for what tp_size does not split is split over {new} ranks instead of {old}"
    return ""


def _more_padded(question: Question, settings: Settings, other: Settings) -> bool:
    """Tells whether experts are split over more ranks than before, and than there are experts."""
    old, new = _shards(question, settings, other)
    return 0 < question.workload.model.experts < new and old < new


def _shards(question: Question, settings: Settings, other: Settings) -> tuple[int, int]:
    """Ranks that shard in both."""
    return shard_ranks(settings, question.cluster), shard_ranks(other, question.cluster)


def _own(question: Question, settings: Settings, other: Settings, knob: str, *, saves: bool) -> str:
    """The reason that a knob is there for."""
    if knob == "sync_each_batch":
        return _sync(other)
    if knob == "tp_recompute_allgather":
        return (
            "backward gathers the input of each layer's linears again, and only this rank's part"
            " of it is kept"
            if other.tp_recompute_allgather
            else "the gathered input of each layer's linears is kept for backward"
        )
    if knob == "activation_checkpointing":
        return (
            "only each layer's input is kept, and backward computes the rest again"
            if other.activation_checkpointing is Checkpointing.FULL
            else "everything that backward needs of each layer is kept, not only its input"
        )
    if knob == "sharding":
        return _sharding(question, other, saves=saves)
    if knob == "micro_batch_size":
        times = "twice" if other.micro_batch_size > settings.micro_batch_size else "half"
        return f"activations and logits are of {times} as many tokens at once"
    return _sizes(other, knob)


def _sync(other: Settings) -> str:
    if other.sharding not in FSDP:
        return "every rank keeps whole gradients either way"
    if other.sync_each_batch:
        return "FSDP reduces each micro-batch's gradients at once, and keeps its own shard of them"
    return "FSDP keeps the unsharded gradients until the last micro-batch"


def _sharding(question: Question, other: Settings, *, saves: bool) -> str:
    ranks = shard_ranks(other, question.cluster)
    if other.sharding is Sharding.DDP:
        return "every rank holds all parameters, gradients and optimizer state"
    if other.sharding is Sharding.ZERO1:
        ranks = other.data_parallel_size(question.cluster.world_size)
        return f"optimizer state is split over {ranks} ranks"
    if other.sharding is Sharding.HYBRID_SHARD:
        return f"parameters, gradients and optimizer state are split over {ranks} ranks of a node"
    if other.sharding is Sharding.FULL_SHARD:
        return (
            f"parameters are split over {ranks} ranks, and a layer's are gathered only while it"
            " computes"
        )
    if saves:
        return f"parameters, gradients and optimizer state are split over {ranks} ranks"
    return "gathered parameters stay from forward to backward"


def _sizes(other: Settings, knob: str) -> str:
    if knob == "cpu_offload":
        return "parameters, gradients and optimizer state are on the device, not in host memory"
    what = "the layers" if knob == "pp_size" else "each layer and its activations"
    size = other.pp_size if knob == "pp_size" else other.tp_size
    part = f"1/{size} of {what}" if size > 1 else f"all of {what}"
    return f"each rank holds {part}"


# Padding of this share of the device's memory, or more, is told.
TOLD_FROM = 0.01


def padding_words(workload: Workload, cluster: Cluster, settings: Settings) -> str:
    """Says that experts are padded, and what this takes; empty where it is nothing, or next to
    nothing.

    FSDP2 cuts dimension 0 of each parameter, and packed experts have the expert there: every rank
    holds room for whole ones.
    """
    if not workload.model.experts or not is_fsdp(settings, cluster):
        return ""
    held, gathered = padding_bytes(workload, cluster, settings)
    if held + gathered < TOLD_FROM * cluster.gpu.memory_bytes:
        return ""
    experts, ranks = workload.model.experts, shard_ranks(settings, cluster)
    each = ceil(experts / ranks)
    times = each * ranks / experts
    return (
        f"FSDP2 splits packed experts by whole experts, so each of the {ranks} ranks that shard has"
        f" room for {each} of {experts}, which is {times:.3g} times their size in all:"
        f" {size_text(held)} of padding in parameters, gradients and optimizer state, and"
        f" {size_text(gathered)} in each layer that is gathered"
    )


def padding_bytes(workload: Workload, cluster: Cluster, settings: Settings) -> tuple[float, float]:
    """Bytes of padding that one rank holds through a step, and in its largest gathered layer."""
    units = [layer.unit for layer in shards(workload, settings, cluster).layers]
    padding = [unit.padded - unit.whole for unit in units]
    weight = WEIGHT_BYTES[workload.precision]
    held = 0.0
    if not settings.cpu_offload:  # which holds all of it in host memory
        held = sum(padding) / shard_ranks(settings, cluster) * (2 * weight + state_bytes(workload))
    return held, max(padding) * COMPUTE_BYTES[workload.precision]


# Categories that the first sentence names.
MOST_CATEGORIES = 3
# Part of the peak that a knob must change to be said to change it.
SMALLEST_SHARE = 0.005
# Shardings by what is split; a step in it is one stronger or weaker.
ORDER = (Sharding.DDP, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakChange:
    """Effect of another value of one knob on the peak."""

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
class _ExplainKey:
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
    """Says where the memory goes, how much of it is padding, and what each knob's next values would
    do.

    Both figures of a difference are of one basis: dry runs where both classes have a profile,
    arithmetic for both otherwise. Values that are illegal or dead in these settings are left out.

    Args:
        workload: what is trained.
        cluster: where.
        framework: with which stack.
        settings: legal ones.
        profiles: dry runs by class (:attr:`tuner.core.configuration.Settings.settings_class`).
    """
    if isinstance(framework, FrameworkName):
        framework = Framework(name=framework)
    question = Question(workload=workload, cluster=cluster, framework=framework)
    asked = _ExplainKey(question=question, profiles=profiles)
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
) -> tuple[PeakChange, ...]:
    """Computes what each legal neighbouring value of each active knob would do to the peak."""
    asked = _ExplainKey(question=question, profiles=profiles)
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
    """Says where the memory goes."""
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


def _change(asked: _ExplainKey, settings: Settings, other: Settings, knob: str) -> PeakChange:
    known = asked.profiles
    dry = settings.settings_class in known and other.settings_class in known
    before, after = (asked.predict(s, dry=dry) for s in (settings, other))
    change, value = _difference(before, after), getattr(other, knob)
    apart = _by_category(before, after)
    return PeakChange(
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


def _eight_bit(asked: _ExplainKey, settings: Settings) -> Iterator[PeakChange]:
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
    after = _ExplainKey(question=changed, profiles={}).predict(settings, dry=False)
    change, apart = _difference(before, after), _by_category(before, after)
    yield PeakChange(
        knob="optimizer",
        value=str(other),
        change_bytes=change,
        reason=optimizer_reason(other, apart) if change else "",
        beside="",
        basis=Basis.ARITHMETIC,
        dry_run_peak=settings.settings_class in asked.profiles,
    )
