"""Collectives that settings must cause, held against those that were counted."""

from collections import Counter
from collections.abc import Iterable, Iterator

from tuner.cluster import Cluster
from tuner.cost.categories import Phase
from tuner.cost.collectives import step_collectives
from tuner.measurement import Collective
from tuner.settings import Checkpointing, Settings, Sharding
from tuner.workload import Workload

Kind = tuple[str, str, str]
"""Operator, mesh axis and phase of a collective."""
Counts = Counter[Kind]
"""Calls of one optimizer step."""

_SEEN_IN = {Phase.LOSS: Phase.FORWARD}
"""Phases that a running step does not tell apart."""
_RESHARDS = {
    Sharding.FULL_SHARD: Sharding.SHARD_GRAD_OP,
    Sharding.SHARD_GRAD_OP: Sharding.FULL_SHARD,
}


def caused(workload: Workload, settings: Settings, cluster: Cluster) -> Counts:
    """What :func:`tuner.cost.collectives.step_collectives` lists, by kind."""
    counts: Counts = Counter()
    for one in step_collectives(workload, settings, cluster):
        phase = _SEEN_IN.get(one.phase, one.phase)
        counts[str(one.op), str(one.axis), str(phase)] += one.count
    return counts


def counted(collectives: Iterable[Collective]) -> Counts:
    """What a rank saw, by kind."""
    counts: Counts = Counter()
    for one in collectives:
        counts[one.op, one.axis, one.phase] += one.count
    return counts


def inactive_knob(
    workload: Workload, settings: Settings, cluster: Cluster, seen: Counts
) -> tuple[str, object] | None:
    """The knob, and the value it acts as if it had, where that explains what was seen better.

    The nearest counts decide, not equal ones: how many buckets DDP makes of a model depends on
    the order in which gradients come.

    Args:
        workload: what is trained.
        settings: with the number of micro-batches of the step that was counted.
        cluster: where.
        seen: the calls of one optimizer step of rank 0.

    Returns:
        ``None`` when no other value of one knob is nearer than the settings' own.
    """
    best, found = _distance(caused(workload, settings, cluster), seen), None
    for knob, value in _others(settings, cluster):
        other = Settings.from_dict({**settings.as_dict(), knob: value})
        distance = _distance(caused(workload, other, cluster), seen)
        if distance < best:
            best, found = distance, (knob, value)
    return found


def difference(expected: Counts, seen: Counts) -> str:
    """What was counted otherwise than it must be, in words; empty when nothing was."""
    kinds = sorted(kind for kind in expected | seen if expected[kind] != seen[kind])
    parts = [f"{seen[k]} {k[0]} over {k[1]} in {k[2]} instead of {expected[k]}" for k in kinds]
    return "; ".join(parts)


def _others(settings: Settings, cluster: Cluster) -> Iterator[tuple[str, object]]:
    """Every other value of a knob that changes what is communicated."""
    parallel = settings.data_parallel_size(cluster.world_size) > 1
    if parallel and settings.gradient_accumulation_steps > 1:
        yield "sync_each_batch", not settings.sync_each_batch
    if settings.tp_size > 1:
        yield "tp_recompute_allgather", not settings.tp_recompute_allgather
        full = settings.activation_checkpointing is Checkpointing.FULL
        yield "activation_checkpointing", Checkpointing.NONE if full else Checkpointing.FULL
    if parallel and settings.sharding in _RESHARDS:
        yield "sharding", _RESHARDS[settings.sharding]


def _distance(expected: Counts, seen: Counts) -> int:
    return sum(abs(expected[kind] - seen[kind]) for kind in expected | seen)
