"""Gathers what the probes of one configuration have found together."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

from tuner.core.configuration import Checkpointing, Settings
from tuner.core.measurement import Measurement, Memory, Outcome
from tuner.core.quantity import Provenance, Quantity
from tuner.core.study import Probe
from tuner.planner.timing import Luck, is_extrapolated, seen_luck, step_time
from tuner.text import Same


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Settings whose steps were done: the pooled measurements of their probes."""

    settings: Settings
    """What was probed."""
    probes: tuple[Probe, ...]
    """The probes that ended well, by repetition."""
    step_time: Quantity
    """Seconds of an optimizer step; unknown when no time was taken."""
    spread: Quantity
    """The same with the interval of the timed steps alone, which tells settings apart."""
    peak: Quantity
    """Peak allocated bytes on the rank that needed most, over the repetitions."""
    overhead_bytes: int
    """Device memory outside the allocator."""
    extrapolated: bool
    """Whether the time comes from fewer micro-batches than the settings have."""

    @property
    def needed_bytes(self) -> int:
        """Memory that must be free on a device: the peak's upper end, and the overhead."""
        assert self.peak.high is not None
        return int(self.peak.high) + self.overhead_bytes

    @property
    def seconds(self) -> float:
        """The step time's value; infinite when unknown."""
        return float("inf") if self.step_time.value is None else self.step_time.value

    @property
    def memories(self) -> tuple[Memory, ...]:
        """The memory of each probe."""
        return tuple(
            p.measurement.memory for p in self.probes if p.measurement and p.measurement.memory
        )


def findings_of(probes: Iterable[Probe]) -> dict[Settings, Finding]:
    """Gathers what probes that ended well found, by configuration, in any order."""
    by_settings: dict[Settings, list[Probe]] = defaultdict(list)
    for probe in probes:
        measurement = probe.measurement
        if measurement and measurement.outcome is Outcome.OK and measurement.memory:
            by_settings[probe.request.settings].append(probe)
    measured = [[p.measurement for p in found if p.measurement] for found in by_settings.values()]
    luck = seen_luck(measured)  # all settings share the machine
    return {settings: _finding(settings, found, luck) for settings, found in by_settings.items()}


def _finding(settings: Settings, probes: Sequence[Probe], luck: Luck) -> Finding:
    ordered = tuple(sorted(probes, key=lambda p: (p.request.repetition, p.id)))
    measurements = [p.measurement for p in ordered if p.measurement]
    memories = [m.memory for m in measurements if m.memory]
    count = settings.gradient_accumulation_steps
    whole, spread = _times(tuple(map(Same, measurements)), count, luck)
    return Finding(
        settings=settings,
        probes=ordered,
        step_time=whole,
        spread=spread,
        peak=_peak(memories, memory_provenance(measurements)),
        overhead_bytes=max(memory.overhead_bytes for memory in memories),
        extrapolated=is_extrapolated(measurements, count),
    )


# One more probe changes what is known of few settings.
@lru_cache(maxsize=2048)
def _times(
    keys: tuple[Same[Measurement], ...], count: int, luck: Luck
) -> tuple[Quantity, Quantity]:
    """Seconds of a step, and the same with the interval of the timed steps alone."""
    found = [key.value for key in keys]
    spread = step_time(found, count, with_model=False, luck=luck)
    return step_time(found, count, luck=luck), spread


def memory_provenance(measurements: Iterable[Measurement]) -> Provenance:
    """Names the source of the memory of probes: an allocator's figures, of all ranks or of one."""
    emulated = any(m.emulation is not None for m in measurements)
    return Provenance.EMULATED if emulated else Provenance.MEASURED


def _peak(memories: Sequence[Memory], provenance: Provenance) -> Quantity:
    """The highest peak seen, with the smallest that a steady step reached as the lower end."""
    highest = max(memory.allocated_bytes for memory in memories)
    lowest = min(min(memory.allocated_low_bytes, highest) for memory in memories)
    return Quantity(value=highest, low=lowest, high=highest, provenance=provenance)


# A class, and whether it accumulates: within one, memory grows with the micro-batch size.
Family = tuple[Settings, bool]


def family(settings: Settings) -> Family:
    """The family of settings; see :data:`Family`."""
    return settings.settings_class, settings.gradient_accumulation_steps > 1


def heavier(settings: Settings) -> Iterator[Family]:
    """The family of settings, and those that need no less at the same micro-batch size.

    Deferred synchronisation keeps whole gradients between micro-batches, gathered activations that
    are not gathered again stay until backward, and so do all that are not computed again. Of 3,522
    pairs of settings that differ in the last alone, three needed less by arithmetic, by 0.01% at
    most, and of 36 that were dry-run one, by 0.02%: where activations are next to nothing.
    """
    key, accumulates = family(settings)
    syncs = {key.sync_each_batch, False} if accumulates else {key.sync_each_batch}
    gathers = {key.tp_recompute_allgather, False}
    kept = {key.activation_checkpointing, Checkpointing.NONE}
    for sync, gather, keep in product(sorted(syncs), sorted(gathers), sorted(kept)):
        yield (
            replace(
                key,
                sync_each_batch=sync,
                tp_recompute_allgather=gather,
                activation_checkpointing=keep,
            ),
            accumulates,
        )
