"""Explains predicted memory: where it goes, what is padding, what each knob's next values do."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from math import ceil
from typing import Any

from tuner.core.cluster import Cluster
from tuner.core.configuration import FSDP, Checkpointing, Settings, Sharding
from tuner.core.evaluation import Evaluation
from tuner.core.framework import NOT_PROBED, FrameworkName
from tuner.core.measurement import Basis
from tuner.core.packing import PackingVariant
from tuner.core.study import Question
from tuner.core.words import listed, range_text, share_text, speed_text
from tuner.core.workload import Optimizer, Workload
from tuner.cost.memory.optimizers import state_bytes
from tuner.cost.memory.shards import (
    COMPUTE_BYTES,
    WEIGHT_BYTES,
    axis_sizes,
    host_inputs,
    pinned_bytes,
    shard_ranks,
    shards,
)
from tuner.cost.memory.tensors import counts, trained_elements
from tuner.cost.prediction import Profile, predict, uncovered_settings
from tuner.errors import UsageError
from tuner.explain.english import CATEGORY_WORDS, PHASE_WORDS
from tuner.explain.facts import Fact, KnobChange, fact
from tuner.space import check_settings
from tuner.text import show, size_text

# Categories that the first fact names.
MOST_CATEGORIES = 3
# Part of the peak that a knob must change to be said to change it.
SMALLEST_SHARE = 0.005
# Padding of this share of the device's memory, or more, is told.
TOLD_FROM = 0.01
# One step stronger, and one weaker.
NEXT_SHARDINGS = {
    Sharding.DDP: (Sharding.ZERO1, Sharding.SHARD_GRAD_OP),
    Sharding.ZERO1: (Sharding.DDP,),
    Sharding.SHARD_GRAD_OP: (Sharding.FULL_SHARD, Sharding.DDP),
    Sharding.FULL_SHARD: (Sharding.SHARD_GRAD_OP, Sharding.HYBRID_SHARD),
    Sharding.HYBRID_SHARD: (Sharding.FULL_SHARD, Sharding.SHARD_GRAD_OP),
}

Profiles = Mapping[Settings, Profile]


def memory_facts(
    question: Question,
    settings: Settings,
    profiles: Profiles,
    timed: Callable[[KnobChange], KnobChange] = lambda change: change,
) -> Iterator[Fact]:
    """Says where the memory goes, how much of it is padding, and what each knob's next values would
    do.

    Both figures of a difference are of one basis: dry runs where both layouts have a profile,
    arithmetic for both otherwise. Values that are illegal or inactive here are left out. ``timed``
    adds what is known of a change beside its memory.
    """
    # Of a study's question the restrictions of knobs count for nothing here.
    question = Question(
        workload=question.workload, cluster=question.cluster, framework=question.framework
    )
    profile = profiles.get(settings.layout)
    found = predict(*question.job, settings, profile=profile)
    if found.allocated_bytes.value is None:
        yield fact("memory_unknown", f"What it needs is unknown: {found.why}.", why=found.why)
        return
    largest = sorted(found.breakdown.items(), key=lambda item: -item[1])[:MOST_CATEGORIES]
    sizes = {name: size for name, size in largest if size > 0}
    peak, is_all = found.allocated_bytes.value, len(found.breakdown) <= len(sizes)
    phase = max(found.by_phase, key=lambda name: found.by_phase[name])
    parts = [f"{size_text(size)} of {CATEGORY_WORDS[name]}" for name, size in sizes.items()]
    yield fact(
        "memory_peak",
        f"By {'a dry run' if found.basis is Basis.DRY_RUN else 'arithmetic'} the peak of"
        f" {size_text(peak)} is in {PHASE_WORDS[phase]}: {listed(parts)}"
        f"{'' if is_all else ', and the rest is less'}.",
        basis=found.basis,
        peak_bytes=peak,
        phase=phase,
        largest=sizes,
        is_all=is_all,
    )
    yield from padding(question.workload, question.cluster, settings)
    yield from on_host(question.workload, question.cluster, settings)
    yield from _changes(question, settings, profiles, timed)


def of_workload(workload: Workload, best: Evaluation) -> Iterator[Fact]:
    """Says how much of the model an adapter trains, where arithmetic knows it, and what a packed or
    padded sequence is taken to be of."""
    model, adapter = workload.model, workload.adapter
    if adapter is not None and not adapter.modules_to_save and not model.is_traced:
        trained = trained_elements(model, adapter)
        parameters = counts(model).parameters + trained  # of the model and the adapter
        yield fact(
            "adapter_trained",
            f"Of {parameters:,} parameters the adapter's {trained:,}"
            f" ({share_text(trained / parameters)}) are trained: they alone have gradients, which"
            " are reduced, and optimizer state.",
            trained=trained,
            parameters=parameters,
        )
    if (packing := workload.packing) is None:
        return
    length, row, every = workload.sequence_length, workload.row, best.tokens_per_s_per_gpu
    are_said, useful = packing.documents is not None, every.scaled(packing.useful_share(length))
    if packing.variant is PackingVariant.PADDED:
        text = f"Each sequence of {length:,} tokens is taken to be"
        text += f" {share_text(1 - sum(row) / length)} padding"
        if useful.value is not None:
            text += f": of {speed_text(every.value)} tokens/s per GPU {speed_text(useful.value)}"
            text += f" ({range_text(useful)}, {useful.provenance}) are useful"
        text += "."
    elif are_said:
        number = f"{len(row)} documents" if len(row) > 1 else "one document"
        sizes = f"{min(row):,} to {max(row):,}" if min(row) < max(row) else f"{row[0]:,}"
        text = f"Each sequence is taken for {number} of {sizes} tokens."
    elif packing.variant is PackingVariant.POSITION_IDS:
        text = (
            "No documents are said: each sequence is taken for two, of which transformers"
            " makes a mask; with it attention takes as long whatever the documents are."
        )
    else:
        text = (
            "No documents are said: each sequence is taken for one, of which attention takes the"
            " longest that it can. `--documents` says what they are."
        )
    yield fact(
        "documents_taken",
        text,
        variant=packing.variant,
        are_said=are_said,
        sequence_length=length,
        row=row,
        tokens_per_s_per_gpu=every,
        useful_tokens_per_s_per_gpu=useful,
    )


def padding(workload: Workload, cluster: Cluster, settings: Settings) -> Iterator[Fact]:
    """Says that experts are padded, and what this takes; nothing where it is next to nothing.

    FSDP2 cuts dimension 0 of each parameter, and packed experts have the expert there: every rank
    holds room for whole ones.
    """
    experts = workload.model.experts
    if not experts or not axis_sizes(settings, cluster).is_fsdp:
        return
    units = [layer.unit for layer in shards(workload, settings, cluster).layers]
    padded = [unit.padded - unit.whole for unit in units]
    # What one rank holds through a step, and in its largest gathered layer.
    held, gathered = 0.0, max(padded) * COMPUTE_BYTES[workload.precision]
    if not settings.cpu_offload:  # which holds all of it in host memory
        each = 2 * WEIGHT_BYTES[workload.precision] + state_bytes(workload, cluster)
        held = sum(padded) / shard_ranks(settings, cluster) * each
    if held + gathered >= TOLD_FROM * cluster.gpu.memory_bytes:
        ranks = shard_ranks(settings, cluster)
        each_rank = ceil(experts / ranks)
        yield fact(
            "experts_padded",
            f"FSDP2 splits packed experts by whole experts, so each of the {ranks} ranks that shard"
            f" has room for {each_rank} of {experts}, which is {each_rank * ranks / experts:.3g}"
            f" times their size in all: {size_text(held)} of padding in parameters, gradients and"
            f" optimizer state, and {size_text(gathered)} in each layer that is gathered.",
            experts=experts,
            ranks=ranks,
            each=each_rank,
            held_bytes=held,
            gathered_bytes=gathered,
        )


def on_host(workload: Workload, cluster: Cluster, settings: Settings) -> Iterator[Fact]:
    """Says what of a node's memory inputs of layers take; nothing where they stay on the device."""
    if workload.model.is_traced:  # of which no arithmetic says how wide they are
        return
    if inputs := host_inputs(workload.part(settings.cp_size), settings, cluster):
        # of a rank, with what torch rounds each input up by
        pinned, ranks = pinned_bytes(inputs), cluster.gpus_per_node
        yield fact(
            "inputs_on_host",
            f"`activation_checkpointing=offload` keeps {size_text(sum(inputs))} of layers' inputs"
            " of each rank in host memory: each micro-batch sends them there and fetches them back."
            f" Pinned, in blocks of powers of two, they take {size_text(ranks * pinned)} of a"
            " node's memory.",
            rank_bytes=sum(inputs),
            pinned_bytes=pinned,
            ranks=ranks,
        )


def _change_fact(
    change: KnobChange,
    told: KnobChange,
    reason: str,
    *,
    beside: str = "",
    basis: Basis = Basis.ARITHMETIC,
    of_dry_run: bool,
) -> Fact:
    """Says what another value of a knob does to the peak, with the other knobs that change
    ``beside`` it and matter; ``told`` is the change with what more is known of it."""
    also = f", with {beside}," if beside else ""
    text = f"`{change.knob}={show(change.value)}`{also} would"
    if change.memory_bytes:
        verb = "add" if change.memory_bytes > 0 else "save"
        by = " (both by arithmetic)" if of_dry_run and basis is Basis.ARITHMETIC else ""
        text += f" {verb} {size_text(abs(change.memory_bytes))}{by}: {reason}."
    else:
        text += " hardly change the peak: it is not what the peak is made of."
    more = {"beside": beside, "basis": basis, "of_dry_run": of_dry_run}
    return fact("knob_predicted", text, changes=(told,), reason=reason, **more)


def _changes(
    question: Question,
    settings: Settings,
    profiles: Profiles,
    timed: Callable[[KnobChange], KnobChange],
) -> Iterator[Fact]:
    """Says what each legal neighbouring value of each active knob would do to the peak."""
    with suppress(UsageError):  # so that an inactive knob has its canonical value
        settings = check_settings(question, settings)
    if _uncovered(question, settings):
        return
    for knob, other in _others(question, settings):
        mine, theirs = profiles.get(settings.layout), profiles.get(other.layout)
        if mine is None or theirs is None:
            if question.workload.is_traced:
                continue  # there is no arithmetic for both
            mine = theirs = None
        before = predict(*question.job, settings, profile=mine)
        after = predict(*question.job, other, profile=theirs)
        change, apart = _difference(before, after)
        found = KnobChange(
            knob=knob,
            value=getattr(other, knob),
            instead_of=getattr(settings, knob),
            memory_bytes=change,
            configuration=other,
        )
        yield _change_fact(
            found,
            timed(found),
            _reason(question, settings, other, knob, apart) if change else "",
            beside=_beside(settings, other, knob),
            basis=Basis.ARITHMETIC if mine is None else Basis.DRY_RUN,
            of_dry_run=settings.layout in profiles,
        )
    # The other of AdamW's two precisions of state: by arithmetic, for it is another workload.
    workload = question.workload
    optimizer = {
        Optimizer.ADAMW: Optimizer.ADAMW_8BIT,
        Optimizer.ADAMW_FUSED: Optimizer.ADAMW_8BIT,
        Optimizer.ADAMW_8BIT: Optimizer.ADAMW,
        Optimizer.ADAMW_BNB_8BIT: Optimizer.ADAMW,
    }.get(workload.optimizer)
    if optimizer is None or question.framework.name in NOT_PROBED or workload.is_traced:
        return
    changed = replace(question, workload=replace(workload, optimizer=optimizer))
    before, after = (predict(*one.job, settings) for one in (question, changed))
    change, apart = _difference(before, after)
    if not change:
        return  # as beside an adapter; its time is not known
    name, saves = _largest(apart)
    eight_bit = optimizer is Optimizer.ADAMW_8BIT
    reason = "its two moments are kept in the parameters' precision"
    if eight_bit:
        reason = "its two moments take a byte each per parameter, and no copy of all is made"
    if saves is not eight_bit or name not in ABOUT["optimizer"]:
        reason = _bare(apart)
    own = workload.optimizer
    found = KnobChange(knob="optimizer", value=optimizer, instead_of=own, memory_bytes=change)
    of_dry_run = settings.layout in profiles
    yield _change_fact(found, timed(found), reason, of_dry_run=of_dry_run)


def compared_layouts(question: Question, settings: Settings) -> tuple[Settings, ...]:
    """The layouts whose dry runs :func:`memory_facts` can use, each once."""
    others = [settings, *(other for _, other in _others(question, settings))]
    return tuple(dict.fromkeys(one.layout for one in others))


def _uncovered(question: Question, settings: Settings) -> str:
    q = question
    return uncovered_settings(q.workload, q.framework, q.cluster, settings)


def _difference(before: Evaluation, after: Evaluation) -> tuple[float, dict[str, float]]:
    """Bytes that the peak grows by, 0 where that is next to nothing; and those of each category,
    though the peaks may be in different phases."""
    old, new = before.allocated_bytes.value, after.allocated_bytes.value
    assert old is not None
    assert new is not None
    names, change = {**before.breakdown, **after.breakdown}, new - old
    apart = {n: after.breakdown.get(n, 0.0) - before.breakdown.get(n, 0.0) for n in names}
    return change if abs(change) > SMALLEST_SHARE * old else 0.0, apart


def _others(question: Question, settings: Settings) -> Iterator[tuple[str, Settings]]:
    for knob, value in _neighbors(settings):
        other = _legal(question, settings, knob, value)
        if other is not None and not _uncovered(question, other):
            yield knob, other


def _neighbors(settings: Settings) -> Iterator[tuple[str, Any]]:
    yield "sync_each_batch", not settings.sync_each_batch
    yield "defer_all_reduce", not settings.defer_all_reduce
    yield "tp_recompute_allgather", not settings.tp_recompute_allgather
    own = settings.activation_checkpointing
    ends = [Checkpointing.NONE, Checkpointing.FULL]
    ends += [Checkpointing.OFFLOAD] if own is Checkpointing.FULL else []
    yield from (("activation_checkpointing", value) for value in ends if value is not own)
    yield from (("sharding", value) for value in NEXT_SHARDINGS[settings.sharding])
    for knob in ("micro_batch_size", "tp_size", "pp_size"):
        size = getattr(settings, knob)
        yield knob, 2 * size
        if not size % 2:
            yield knob, size // 2
    yield "fused_loss", not settings.fused_loss
    if settings.cpu_offload:
        yield "cpu_offload", False


def _legal(question: Question, settings: Settings, knob: str, value: Any) -> Settings | None:
    """The configuration with one other value, if that is legal and acts."""
    wanted = replace(settings, **{knob: value})
    if knob not in ("sync_each_batch", "defer_all_reduce"):
        wanted = replace(wanted, gradient_accumulation_steps=1)  # derived anew
        if settings.gradient_accumulation_steps == 1:  # of several as usual, or as asked
            usual = not question.framework.puts_off
            allowed = question.knobs.get("sync_each_batch", (usual,))
            wanted = replace(wanted, sync_each_batch=usual if usual in allowed else allowed[0])
    if knob == "tp_size" and value == 1:
        wanted = replace(wanted, tp_recompute_allgather=False)
    try:
        checked = check_settings(question, wanted)
    except UsageError:
        return None
    return checked if getattr(checked, knob) == value else None


# -- reasons ----------------------------------------------------------------------------------

_STATES = frozenset(
    {"parameters", "gradients_sharded", "gradients_unsharded", "optimizer_state"}
    | {"gathered_parameters", "ddp_buckets"}
)
_GRADIENTS = frozenset({"gradients_sharded", "gradients_unsharded"})
_OF_TOKENS = frozenset({"activations", "logits_and_loss", "temporaries"})
# The categories that the reason of each knob speaks of.
ABOUT: Mapping[str, frozenset[str]] = {
    "sync_each_batch": _GRADIENTS,
    "defer_all_reduce": _GRADIENTS,
    "tp_recompute_allgather": _OF_TOKENS,
    "activation_checkpointing": _OF_TOKENS,
    "sharding": _STATES | {"temporaries"},
    "micro_batch_size": _OF_TOKENS,
    "tp_size": frozenset(CATEGORY_WORDS),
    "pp_size": frozenset(CATEGORY_WORDS),
    "cpu_offload": _STATES,
    "fused_loss": frozenset({"logits_and_loss"}),
    "optimizer": frozenset({"optimizer_state", "temporaries"}),
}


def _reason(
    question: Question,
    settings: Settings,
    other: Settings,
    knob: str,
    differences: Mapping[str, float],
) -> str:
    """Says why a knob's other value takes more memory, or less.

    It is the knob's own reason where that is what changes most, and in its direction. Otherwise
    it is the category that changes most, and what else decides it.
    """
    name, saves = _largest(differences)
    expected = _should_save(settings, other, knob)
    unsplit = knob == "tp_size" and question.workload.model.experts and name in _STATES
    # Experts that are split over more ranks than before, and than there are experts.
    old, new = _shards(question, settings, other)
    padded = not saves and name in _STATES and old < new > question.workload.model.experts > 0
    if expected in (saves, None) and name in ABOUT[knob] and not unsplit and not padded:
        return _own(question, settings, other, knob, saves=saves)
    return _bare(differences) + _cause(question, settings, other, name)


def _largest(differences: Mapping[str, float]) -> tuple[str, bool]:
    """The category that changes most in the direction of the whole, and whether that is down."""
    saves = sum(differences.values()) < 0
    return max(differences, key=lambda name: differences[name] * (-1 if saves else 1)), saves


def _bare(differences: Mapping[str, float]) -> str:
    name, saves = _largest(differences)
    size = size_text(abs(differences[name]))
    return f"{size} {'less' if saves else 'more'} of {CATEGORY_WORDS[name]} at the peak"


def _beside(settings: Settings, other: Settings, knob: str) -> str:
    """The other knobs that change with one, as a user writes them; empty when none matters.

    A number of micro-batches matters where there is one only: gradients then wait for nothing.
    """
    counts = {settings.gradient_accumulation_steps, other.gradient_accumulation_steps}
    alike = {knob} | (set() if 1 in counts and len(counts) > 1 else {_COUNT})
    if 1 in counts:
        alike |= {"sync_each_batch", "defer_all_reduce"}  # which are inactive there
    old, new = settings.all_values(), other.all_values()
    changed = (name for name in new if name not in alike and new[name] != old[name])
    return ", ".join(f"{name}={show(new[name])}" for name in changed)


_COUNT = "gradient_accumulation_steps"
# Shardings by what a rank holds, most first.
_STRENGTH = (
    *(Sharding.DDP, Sharding.ZERO1, Sharding.SHARD_GRAD_OP),
    *(Sharding.HYBRID_SHARD, Sharding.FULL_SHARD),
)


def _should_save(settings: Settings, other: Settings, knob: str) -> bool | None:
    """Tells whether a knob's own reason is one to need less; ``None`` where it has reasons for
    both.
    """
    if knob == "sharding":
        if {settings.sharding, other.sharding} == {Sharding.HYBRID_SHARD, Sharding.SHARD_GRAD_OP}:
            return None
        return _STRENGTH.index(other.sharding) > _STRENGTH.index(settings.sharding)
    if knob == "defer_all_reduce":
        return None
    old, new = getattr(settings, knob), getattr(other, knob)
    if knob in ("tp_size", "pp_size"):
        return bool(new > old)
    if knob == "micro_batch_size":
        return bool(new < old)
    if knob == "activation_checkpointing":
        ladder = list(Checkpointing)
        return ladder.index(new) > ladder.index(old)
    return bool(new)  # sync_each_batch, tp_recompute_allgather, cpu_offload, fused_loss


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


def _shards(question: Question, settings: Settings, other: Settings) -> tuple[int, int]:
    return shard_ranks(settings, question.cluster), shard_ranks(other, question.cluster)


# What another value of a switch does: where it is turned on, and where it is turned off.
SWITCHED = {
    "sync_each_batch": (
        "FSDP reduces each micro-batch's gradients at once, and keeps its own shard of them",
        "FSDP keeps the unsharded gradients until the last micro-batch",
    ),
    "defer_all_reduce": (
        "sums of reduced shards wait for the last micro-batch in the format that they are reduced"
        " in",
        "each micro-batch's reduced shards are added to the gradients",
    ),
    "tp_recompute_allgather": (
        "backward gathers the input of each layer's linears again, and only this rank's part of it"
        " is kept",
        "the gathered input of each layer's linears is kept for backward",
    ),
    "fused_loss": (
        "logits are made and left a part of the tokens at a time",
        "the logits of all tokens are there at once, and what the loss makes of them",
    ),
}
# What is kept with checkpointing, beside all that backward needs.
KEPT = {
    Checkpointing.SELECTIVE: "not only matrix products and attention",
    Checkpointing.EVERY_2: "and not of every second one alone",
    Checkpointing.FULL: "not only its input",
    Checkpointing.OFFLOAD: "and on the device",
}


def _kept(old: Checkpointing, new: Checkpointing) -> str:
    """What is kept of each layer with the new value, beside the old."""
    if new is Checkpointing.OFFLOAD:
        return "the input of each layer waits for backward in host memory"
    if old is Checkpointing.OFFLOAD and new is Checkpointing.FULL:
        return "the input of each layer is kept on the device"
    if new is Checkpointing.FULL:
        return "only each layer's input is kept, and backward computes the rest again"
    return f"everything that backward needs of each layer is kept, {KEPT[old]}"


def _own(question: Question, settings: Settings, other: Settings, knob: str, *, saves: bool) -> str:
    if knob == "sync_each_batch" and other.sharding not in FSDP:
        return "every rank keeps whole gradients either way"
    if knob in SWITCHED:
        on, off = SWITCHED[knob]
        return on if getattr(other, knob) else off
    if knob == "activation_checkpointing":
        return _kept(settings.activation_checkpointing, other.activation_checkpointing)
    if knob == "sharding":
        return _sharding(question, other, saves=saves)
    if knob == "micro_batch_size":
        times = "twice" if other.micro_batch_size > settings.micro_batch_size else "half"
        return f"activations and logits are of {times} as many tokens at once"
    if knob == "cpu_offload":
        return "parameters, gradients and optimizer state are on the device, not in host memory"
    what = "the layers" if knob == "pp_size" else "each layer and its activations"
    size = getattr(other, knob)
    return f"each rank holds {f'1/{size} of {what}' if size > 1 else f'all of {what}'}"


def _sharding(question: Question, other: Settings, *, saves: bool) -> str:
    ranks = shard_ranks(other, question.cluster)
    if other.sharding is Sharding.DDP:
        return "every rank holds all parameters, gradients and optimizer state"
    replicas = other.data_parallel_size(question.cluster.world_size)
    if other.sharding is Sharding.ZERO1:
        return f"optimizer state is split over {replicas} ranks"
    if question.framework.name is FrameworkName.DEEPSPEED:
        if other.sharding is Sharding.SHARD_GRAD_OP:
            split = f"gradients and optimizer state are split over {replicas} ranks"
            return f"{split}, parameters are whole"
        split = f"parameters, gradients and optimizer state are split over {replicas} ranks"
        within = other.sharding is Sharding.HYBRID_SHARD
        return f"{split}, and parameters once more within a node" if within else split
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
