"""Whether the knobs acted, by the collectives of a step that was tracked."""

from dataclasses import replace

from tuner.measurement import Measurement, Outcome
from tuner.settings import Settings


def check_knobs(settings: Settings, world_size: int, measurement: Measurement) -> Measurement:
    """The measurement, with the outcome ``knob_inactive`` if a live knob did not act.

    Args:
        settings: what was tried.
        world_size: ranks.
        measurement: of the probe; any outcome but ``ok`` is left as it is.
    """
    if measurement.outcome is not Outcome.OK:
        return measurement
    why = _sync_each_batch(settings, world_size, measurement) or _recompute(settings, measurement)
    return replace(measurement, outcome=Outcome.KNOB_INACTIVE, detail=why) if why else measurement


def _sync_each_batch(settings: Settings, world_size: int, measurement: Measurement) -> str:
    """Gradients are reduced after every micro-batch, or after the last only."""
    count = measurement.tracked_accumulation
    if settings.data_parallel_size(world_size) == 1 or count < 2:
        return ""
    expected = count if settings.sync_each_batch else 1
    seen = measurement.reducing_micro_batches
    if seen == expected:
        return ""
    knob = f"sync_each_batch={str(settings.sync_each_batch).lower()}"
    return f"{knob} reduced gradients in {seen} of {count} micro-batches instead of {expected}"


def _recompute(settings: Settings, measurement: Measurement) -> str:
    """Backward gathers what forward scattered, and with recompute what forward gathered too.

    Per micro-batch forward has as many gathers as scatters; checkpointing repeats those of
    the layers, which is one fewer than all. So backward has at least twice as many gathers as
    forward exactly when recompute is on.
    """
    if settings.tp_size == 1:
        return ""
    forward, backward = (_gathers(measurement, phase) for phase in ("forward", "backward"))
    if (backward >= 2 * forward) is settings.tp_recompute_allgather:
        return ""
    knob = f"tp_recompute_allgather={str(settings.tp_recompute_allgather).lower()}"
    return f"{knob} gathered {backward} times in backward and {forward} times in forward"


def _gathers(measurement: Measurement, phase: str) -> int:
    return sum(
        c.count
        for c in measurement.collectives
        if (c.op, c.axis, c.phase) == ("all_gather", "tp", phase)
    )
