"""Holds a step's collectives and recomputations against what the configuration must cause."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.measurement import Collective, Measurement, Phase
from tuner.core.workload import Workload
from tuner.cost.memory.shards import WEIGHT_BYTES, axis_sizes, shards
from tuner.cost.time.collectives import step_collectives
from tuner.text import size_text

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
    """Counts what a rank saw, by kind."""
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
