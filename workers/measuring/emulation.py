"""Makes rank 0's findings alone into the cluster's: communication gets its price."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from tuner.catalog.gpus import cuda_bytes
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Settings
from tuner.core.measurement import RAN, Emulation, Measurement, Memory
from tuner.cost.constants import Costs, default_costs
from tuner.cost.memory.device import device_terms
from tuner.cost.time.emulated import Rates, priced
from workers.measuring.records import RankEmulation
from workers.probe.giving_up import computing


def with_communication(
    measurement: Measurement,
    found: RankEmulation | None,
    settings: Settings,
    cluster: Cluster,
    *,
    stands_in: bool,
    costs: Costs | None = None,
    at: str = "",
) -> Measurement:
    """The measurement of an emulated probe, with step times and memory as on the cluster.

    A step takes its computing and the communication that it waits for. Beside the device's own
    overhead are the buffers of the communicators that are not there.

    Args:
        at: when cluster and constants were calibrated, where they are.
    """
    if measurement.outcome not in RAN or found is None or measurement.memory is None:
        return measurement
    compute = {
        count: tuple(sum(computing(step, found.copies_s[count]).values()) for step in steps)
        for count, steps in found.phase_times_s.items()
    }
    alone = replace(
        measurement,
        memory=_with_communicators(measurement.memory, settings, cluster),
        emulation=Emulation(
            compute_s=compute,
            exposed_s={},
            collectives=dict(found.collectives),
            stands_in=stands_in,
            phases_s={
                count: _typical(steps, found.copies_s[count])
                for count, steps in found.phase_times_s.items()
            },
            copies_left_out=found.copies_left_out,
        ),
    )
    rates = Rates(cluster=cluster, costs=default_costs() if costs is None else costs, at=at)
    return priced(alone, settings, rates)


def _typical(steps: Sequence[Mapping[str, float]], copies: Mapping[str, float]) -> dict[str, float]:
    """Seconds that a step computes in each phase."""
    each = [computing(step, copies) for step in steps]
    return {phase: median(step.get(phase, 0.0) for step in each) for phase in each[0]}


def _with_communicators(memory: Memory, settings: Settings, cluster: Cluster) -> Memory:
    terms = device_terms(settings, cluster, memory.allocated_bytes)
    buffers = int(terms.communicators.value or 0.0)
    return replace(
        memory,
        device_bytes=memory.device_bytes + buffers,
        overhead_bytes=memory.overhead_bytes + buffers,
    )


def card_bytes(settings: Settings, cluster: Cluster) -> int:
    """The bytes of a cluster's GPU that are the allocator's, beside context and communicators.

    Of what CUDA offers, which is less than the memory that the driver reports.
    """
    gpu = cluster.gpu
    total = gpu.memory_bytes if gpu.device is Device.CPU else cuda_bytes(gpu.name, gpu.memory_bytes)
    terms = device_terms(settings, cluster, 0.0)
    beside = (terms.context.value or 0.0) + (terms.communicators.value or 0.0)
    return max(1, int(total - beside))
