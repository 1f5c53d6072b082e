"""Memory of a step of torch, accelerate and trainer by arithmetic: its peak, by phase and category.

The step is followed event by event in :mod:`tuner.cost.step_memory`; this module asks for one
micro-batch size. Sources beside the code that is named there: Rajbhandari et al. 2020, "ZeRO"
(https://arxiv.org/abs/1910.02054) for what data parallelism shards, Korthikanti et al. 2022
(https://arxiv.org/abs/2205.05198) for sequence parallelism.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Phase
from tuner.core.workload import Workload
from tuner.cost.shards import (
    COMPUTE_BYTES,
    REDUCE_BYTES,
    WEIGHT_BYTES,
    is_fsdp,
    shards,
    state_bytes,
)
from tuner.cost.step_memory import step_moments
from tuner.cost.wrapping import Moment

__all__ = [
    "COMPUTE_BYTES",
    "REDUCE_BYTES",
    "WEIGHT_BYTES",
    "MemoryBound",
    "StepMemory",
    "memory_bound",
    "step_memory",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Memory of one optimizer step on the rank that needs most."""

    moments: Mapping[Phase, Moment]
    """The highest moment of each phase."""
    micro_batch_size: int
    """Sequences at once."""

    @property
    def phase(self) -> Phase:
        """The phase of the peak."""
        return max(self.moments, key=lambda phase: self.in_phase(phase))

    @property
    def total_bytes(self) -> float:
        """The peak."""
        return self.in_phase(self.phase)

    @property
    def by_phase(self) -> dict[Phase, float]:
        """The highest of each phase, in bytes."""
        return {phase: self.in_phase(phase) for phase in self.moments}

    def in_phase(self, phase: Phase) -> float:
        """The highest of one phase, in bytes."""
        return self.moments[phase].total(self.micro_batch_size)

    def breakdown(self, phase: Phase | None = None) -> Mapping[str, float]:
        """Bytes by category at a phase's highest moment, by default at the peak."""
        return self.moments[phase or self.phase].breakdown(self.micro_batch_size)


def step_memory(workload: Workload, settings: Settings, cluster: Cluster) -> StepMemory:
    """The memory of one settings. ``pp_size`` divides the layers; nothing else of it is followed.

    Raises:
        ZeroDivisionError: settings of more ranks than the cluster has.
    """
    size, count = settings.micro_batch_size, settings.gradient_accumulation_steps
    moments = step_moments(workload, settings.settings_class, count > 1, cluster)
    highest: dict[Phase, Moment] = {}
    for moment in moments:
        known = highest.get(moment.phase)
        if known is None or moment.total(size) > known.total(size):
            highest[moment.phase] = moment
    ordered = {phase: highest[phase] for phase in Phase}
    return StepMemory(moments=ordered, micro_batch_size=size)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """Holds what puts probes in order of memory."""

    floor_bytes: int
    """What the step's peak cannot be below."""
    total_bytes: int
    """Estimate of the step's peak."""


def memory_bound(workload: Workload, settings: Settings, cluster: Cluster) -> MemoryBound:
    """The bound for one settings; it does not fall when only the micro-batch size grows.

    Raises:
        ZeroDivisionError: settings of more ranks than the cluster has.
    """
    total = step_memory(workload, settings, cluster).total_bytes
    floor = min(_floor(workload, settings, cluster), total)
    return MemoryBound(floor_bytes=int(floor), total_bytes=int(total))


def _floor(workload: Workload, settings: Settings, cluster: Cluster) -> float:
    """Parameters, optimizer state, and gradients as they must be between two micro-batches."""
    held, on_device = shards(workload, settings, cluster), not settings.cpu_offload
    sharded = is_fsdp(settings, cluster)
    weights = WEIGHT_BYTES[workload.precision]
    own = on_device * weights * (held.shard if sharded else held.whole)
    state = held.shard if settings.sharding is not Sharding.ZERO1 else 0.0
    state *= on_device * state_bytes(workload)
    return own + state + max(own, _waits(workload, settings, held.whole, sharded=sharded))


def _waits(workload: Workload, settings: Settings, whole: float, *, sharded: bool) -> float:
    """Bytes of whole gradients that wait for the step's last micro-batch."""
    if settings.gradient_accumulation_steps == 1:
        return 0.0
    if not sharded:
        return WEIGHT_BYTES[workload.precision] * whole
    assert workload.reduce_dtype is not None
    return 0.0 if settings.sync_each_batch else REDUCE_BYTES[workload.reduce_dtype] * whole
