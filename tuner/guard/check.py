"""Checks whether a configuration trains what one process trains, and keeps the result.

A step's collectives and recomputations are held against what the configuration must cause.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any, NamedTuple

from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.measurement import CheckState, Collective, Measurement, Outcome, Phase
from tuner.core.workload import Precision, Workload
from tuner.cost.memory.shards import WEIGHT_BYTES, axis_sizes, shards
from tuner.cost.time.collectives import step_collectives
from tuner.guard.replica import GUARD_FORMAT, STEPS, Replica
from tuner.serialization import Plain
from tuner.text import show, size_text

# Operator, mesh axis and phase of a collective.
Kind = tuple[str, str, str]
# Calls of one optimizer step.
Counts = Counter[Kind]


# Phases that a running step does not tell apart.
_SEEN_IN = {Phase.LOSS: Phase.FORWARD}
_RESHARDS = {
    Sharding.FULL_SHARD: Sharding.SHARD_GRAD_OP,
    Sharding.SHARD_GRAD_OP: Sharding.FULL_SHARD,
}


def caused(workload: Workload, settings: Settings, cluster: Cluster) -> Counts:
    """Counts what :func:`tuner.cost.time.collectives.step_collectives` lists, by kind."""
    counts: Counts = Counter()
    for one in step_collectives(workload, settings, cluster):
        phase = _SEEN_IN.get(one.phase, one.phase)
        counts[str(one.op), str(one.axis), str(phase)] += one.count
    return counts


def counted(collectives: Iterable[Collective]) -> Counts:
    counts: Counts = Counter()
    for one in collectives:
        counts[one.op, one.axis, one.phase] += one.count
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Acted:
    """Evidence that a knob acted."""

    knob: str  # its name
    value: object  # the value that it acted as if it had
    why: str  # what was seen


def inactive_knob(
    workload: Workload, settings: Settings, cluster: Cluster, found: Measurement
) -> Acted | None:
    """The knob that did not act, where what one optimizer step was seen to do shows one.

    What shows one knob alone decides on it (:func:`_shown`). On the others the counts of
    collectives do, and the nearest, not equal ones: how many buckets DDP makes of a model depends
    on the order in which gradients come.

    The settings have the number of micro-batches of the step that rank 0 has counted. ``None``
    when no other value of one knob is nearer than the settings' own.
    """
    shown = _shown(workload, settings, cluster, found)
    for one in shown.values():
        if one is not None:
            return one
    if workload.is_traced:  # of which no arithmetic says what it must cause
        return None
    expected, seen = caused(workload, settings, cluster), counted(found.collectives)

    def distance_of(counts: Counts) -> int:
        return sum(abs(counts[kind] - seen[kind]) for kind in counts | seen)

    best, nearest = distance_of(expected), None
    for knob, value in _others(settings, cluster):
        other = Settings.from_dict({**settings.as_dict(), knob: value})
        distance = distance_of(caused(workload, other, cluster))
        if knob not in shown and distance < best:
            why = difference(expected, seen)
            best, nearest = distance, Acted(knob=knob, value=value, why=why)
    return nearest


def difference(expected: Counts, seen: Counts) -> str:
    """Says what was counted otherwise than it must be; empty when nothing was."""
    kinds = sorted(kind for kind in expected | seen if expected[kind] != seen[kind])
    parts = [f"{seen[k]} {k[0]} over {k[1]} in {k[2]} instead of {expected[k]}" for k in kinds]
    return "; ".join(parts)


def _shown(
    workload: Workload, settings: Settings, cluster: Cluster, found: Measurement
) -> dict[str, Acted | None]:
    """The knobs that more than the number of collectives shows; ``None`` where one acts as set."""
    seen = []
    count, reduced = settings.gradient_accumulation_steps, found.reducing_micro_batches
    if count > 1 and reduced:  # whatever the number of buckets
        why = f"{reduced} of {count} micro-batches reduced gradients"
        seen.append(Acted(knob="sync_each_batch", value=reduced > 1, why=why))
    passes, again = workload.model.layers * count, found.recomputed_layers
    # without splits no collective shows it; frozen layers may be passed over by backward
    if again is not None and not workload.freezes_layers:
        seen.append(_recomputed(settings, passes, again, found))
    if found.whole_logits is not None:
        why = f"the output head returned {'' if found.whole_logits else 'no '}logits"
        seen.append(Acted(knob="fused_loss", value=not found.whole_logits, why=why))
    if settings.cpu_offload and found.memory and cluster.gpu.device is not Device.CPU:
        held_bytes = found.memory.by_category.get("parameters", 0)
        own_bytes = WEIGHT_BYTES[workload.precision] * shards(workload, settings, cluster).shard
        why = f"the device held {size_text(held_bytes)} of parameters between steps"
        # buffers stay on the device
        seen.append(Acted(knob="cpu_offload", value=2 * held_bytes < own_bytes, why=why))
    return {one.knob: None if getattr(settings, one.knob) == one.value else one for one in seen}


def _recomputed(settings: Settings, passes: int, again: int, found: Measurement) -> Acted:
    """What ``activation_checkpointing`` did: of all layers' forward passes ``again`` were computed
    again; which of their matrix products, and what went to the host, may not be counted."""
    own = settings.activation_checkpointing

    def distance(value: Checkpointing) -> tuple[int, bool]:
        wanted = value.layers_again(passes // settings.gradient_accumulation_steps)
        off = abs(wanted * settings.gradient_accumulation_steps - again)
        return off, value is not own  # of one layer both are all

    value = min((Checkpointing.NONE, Checkpointing.EVERY_2, Checkpointing.FULL), key=distance)
    why = f"backward computed {again} of {passes} layers again"
    if value is not Checkpointing.FULL:
        pass
    elif found.recomputed_products == 0:
        value, why = Checkpointing.SELECTIVE, f"{why}, but none of their matrix products"
    elif found.host_bytes or (found.host_bytes is None and own is Checkpointing.OFFLOAD):
        value, why = Checkpointing.OFFLOAD, f"{why}, from inputs that were in host memory"
    elif own is Checkpointing.OFFLOAD:
        why += ", and none of their inputs was in host memory"
    return Acted(knob="activation_checkpointing", value=value, why=why)


def _others(settings: Settings, cluster: Cluster) -> Iterator[tuple[str, object]]:
    """Every other value of a knob that changes what is communicated."""
    parallel = settings.data_parallel_size(cluster.world_size) > 1
    if parallel and settings.gradient_accumulation_steps > 1:
        yield "sync_each_batch", not settings.sync_each_batch
    sizes = axis_sizes(settings, cluster)
    if (
        sizes.replicate > 1
        and settings.gradient_accumulation_steps > 1
        and settings.sync_each_batch
    ):
        yield "defer_all_reduce", not settings.defer_all_reduce
    if sizes.tp > 1:
        yield "tp_recompute_allgather", not settings.tp_recompute_allgather
        whole = (Checkpointing.NONE, Checkpointing.EVERY_2, Checkpointing.FULL)
        own = settings.activation_checkpointing
        yield from (("activation_checkpointing", value) for value in whole if value is not own)
    if parallel and settings.sharding in _RESHARDS:
        yield "sharding", _RESHARDS[settings.sharding]


# Largest relative difference of a loss or gradient norm from the reference's.
#
# In fp32 agreement is within 5e-7, and faults were 7e-4 and more. The largest that were seen of the
# classes of two ranks (three shardings with gradients put off and not, tensor parallelism with
# recomputation and not; torch 2.13, accelerate 1.15, transformers 5.23, on a CPU):
#
# replica of              fp32     bf16     bf16_mixed
# tinyllama-1.1b, AdamW   1.7e-07  1.0e-03  1.2e-03
# mixtral-8x7b, AdamW     2.0e-07  2.2e-03  1.3e-03
# tinyllama-1.1b, SGD     1.6e-07  5.4e-04  7.5e-04
# mixtral-8x7b, SGD       9.8e-08  1.3e-03  1.8e-03
#
# Against a reference that accumulated as the replicas do it was 3.7e-3 at most. So bf16 shows
# faults of casting, and of other kinds the large ones only: fp32 decides. Under SGD the faults of
# buffers that the tests plant are off by 0.2 and more.
TOLERANCE: Mapping[Precision, float] = {
    Precision.FP32: 1e-5,
    Precision.BF16: 1e-2,
    Precision.BF16_MIXED: 1e-2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    relative: float  # of the worst loss or gradient norm of the step
    quantity: str  # ``loss`` or ``gradient norm``
    step: int  # optimizer step, from 0


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardCheck(Plain):
    form = GUARD_FORMAT

    key: str  # of the replica in these versions (:meth:`tuner.guard.replica.Replica.key`)
    family: str  # of the model's structure and versions (:func:`tuner.guard.replica.family_of`)
    result: CheckState  # the check
    outcome: Outcome
    """Of the replica, as a probe has one: ``ok``, ``wrong_result``, ``knob_inactive``, ..."""
    model_type: str = ""  # the architecture, as transformers spells it
    detail: str = ""
    """Why it failed, or was not judged; or what is odd about one that passed. One line."""
    structure: str = ""  # what was trained, in words
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The replica's (``Settings.as_dict``)."""
    ranks: int = 1  # that trained
    precision: str = ""
    """Number format of the replica; empty of a probe, whose counts do not depend on it."""
    knob: str = ""  # the knob that is to blame by what was counted; empty where counts show none
    program: str = ""  # what was run, as :attr:`tuner.core.study.Question.program` has it
    study: str = ""  # the study whose probe it is of, in the place of a replica
    worst: float | None = None
    """The largest relative difference of all compared steps; ``None`` where none was compared."""
    versions: Mapping[str, str] = field(default_factory=dict)  # of the stack that trained
    notes: tuple[str, ...] = ()  # what the replica leaves out
    date: str | None = None  # when it was kept, UTC in ISO 8601


class Judgement(NamedTuple):
    """Outcome of a replica's training, with the reason."""

    outcome: Outcome  # as of a probe
    detail: str = ""  # why, in one line
    knob: str = ""  # the knob that is to blame by what was counted; empty where counts show none


def judge(replica: Replica, found: Measurement, reference: Measurement) -> Judgement:
    """The outcome of a replica, and why.

    Collectives that differ from the list and that no other value of a knob explains are told and
    fail nothing: a release may communicate otherwise and train the same.

    ``found`` is what its ranks found, ``reference`` what one process found.
    """
    if found.outcome is not Outcome.OK:
        return Judgement(found.outcome, found.detail)
    workload, settings, cluster = replica.workload, replica.settings, replica.cluster
    if inactive := inactive_knob(workload, settings, cluster, found):
        detail = f"{inactive.knob} acts as {show(inactive.value)}: {inactive.why}"
        return Judgement(Outcome.KNOB_INACTIVE, detail, inactive.knob)
    other = difference(caused(workload, settings, cluster), counted(found.collectives))
    tolerance = TOLERANCE[workload.precision]
    # the worst of the first step that differs by more than the tolerance
    apart = (step for step in deviations(found, reference) if step.relative > tolerance)
    worst = next(apart, None)
    if worst is None:
        why = f"it communicates otherwise than is priced: {other}" if other else ""
        return Judgement(Outcome.OK, why)
    return Judgement(
        Outcome.WRONG_RESULT,
        f"{worst.quantity} of optimizer step {worst.step} is off by {worst.relative:.1e} of one"
        f" process's, {tolerance:.0e} at most",
    )


def deviations(found: Measurement, reference: Measurement) -> list[Deviation]:
    """The worst difference of each compared optimizer step, in order."""

    def relative(found: Sequence[float], wanted: Sequence[float]) -> list[float]:
        """Relative differences of the compared steps; infinite where there is no number."""
        got = list(found[:STEPS]) + [inf] * (STEPS - len(found))
        pairs = zip(got, wanted[:STEPS], strict=True)
        return [abs(a - b) / abs(b) if b and isfinite(a) else inf for a, b in pairs]

    losses = relative(found.losses, reference.losses)
    norms = relative(found.gradient_norms, reference.gradient_norms)
    return [
        Deviation(
            relative=max(loss, norm), quantity="loss" if loss >= norm else "gradient norm", step=i
        )
        for i, (loss, norm) in enumerate(zip(losses, norms, strict=True))
    ]


def check_state_of(outcome: Outcome) -> CheckState:
    """Derives the result from an outcome; accidents say nothing."""
    if outcome is Outcome.OK:
        return CheckState.PASSED
    wrong = (Outcome.WRONG_RESULT, Outcome.KNOB_INACTIVE, Outcome.NON_FINITE)
    return CheckState.FAILED if outcome in wrong else CheckState.NOT_CHECKED
