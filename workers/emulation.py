"""What rank 0 found alone, made into what the cluster would show: communication gets its price."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from statistics import median

from tuner.cluster import Cluster
from tuner.cost.axes import Axis
from tuner.cost.calibration import calibrated
from tuner.cost.categories import Phase
from tuner.cost.collectives import Op, Overlap, StepCollective
from tuner.cost.communication import Computing, copies_beside_s, exposed_s
from tuner.cost.constants import Costs, default_costs
from tuner.cost.device_memory import device_terms
from tuner.cost.step_time import missing_link
from tuner.measurement import Collective, Emulation, Exposed, Measurement, Memory, Outcome
from tuner.settings import Settings
from tuner.study import Study
from workers.records import RankEmulation


def with_communication(
    measurement: Measurement,
    found: RankEmulation | None,
    settings: Settings,
    cluster: Cluster,
    *,
    stands_in: bool,
    costs: Costs | None = None,
) -> Measurement:
    """The measurement of an emulated probe, with step times and memory as on the cluster.

    A step takes its computing and the communication that it waits for. Beside the device's own
    overhead are the buffers of the communicators that are not there.

    Args:
        measurement: of rank 0 alone.
        found: what it noted beside.
        settings: what was tried.
        cluster: what is emulated.
        stands_in: whether the device is not of the cluster's kind.
        costs: constants of communication, if not the catalogue's.
    """
    if measurement.outcome is not Outcome.OK or found is None or measurement.memory is None:
        return measurement
    compute = {
        count: tuple(sum(_computing(step, found.copies_s[count]).values()) for step in steps)
        for count, steps in found.phase_times_s.items()
    }
    unpriced = missing_link(settings, cluster)
    exposed = {} if unpriced else _exposed(found, settings, cluster, costs)
    return replace(
        measurement,
        memory=_with_communicators(measurement.memory, settings, cluster),
        step_times_s={
            count: tuple(seconds + exposed[count].value_s for seconds in compute[count])
            for count in exposed
        },
        emulation=Emulation(
            compute_s=compute,
            exposed_s=exposed,
            collectives=dict(found.collectives),
            stands_in=stands_in,
            unpriced=unpriced,
        ),
    )


def _exposed(
    found: RankEmulation, settings: Settings, cluster: Cluster, costs: Costs | None
) -> dict[int, Exposed]:
    """By count, with what the typical timed step computes."""
    exposed = {}
    for count, steps in found.phase_times_s.items():
        each = [_computing(step, found.copies_s[count]) for step in steps]
        collectives = step_collectives(found.collectives[count])
        quantity = exposed_s(
            Computing(
                forward=median(step.get("forward", 0.0) for step in each),
                backward=median(step.get("backward", 0.0) for step in each),
            ),
            collectives,
            settings,
            cluster,
            passes=count,
            beside=copies_beside_s(collectives, settings, cluster),
            costs=costs,
        )
        assert quantity.value is not None
        assert quantity.low is not None
        assert quantity.high is not None
        exposed[count] = Exposed(value_s=quantity.value, low_s=quantity.low, high_s=quantity.high)
    return exposed


def _computing(step: Mapping[str, float], copies: Mapping[str, float]) -> dict[str, float]:
    """Seconds of each phase of a step without its copies; noise takes nothing below half."""
    return {
        phase: max(seconds - copies.get(phase, 0.0), seconds / 2) for phase, seconds in step.items()
    }


def step_collectives(rows: Iterable[Collective]) -> list[StepCollective]:
    """Collectives as they were seen, in the words of the cost model.

    Raises:
        ValueError: one is of a kind that has no price.
    """
    return [
        StepCollective(
            op=Op(row.op),
            axis=Axis(row.axis),
            phase=Phase(row.phase),
            overlap=Overlap(row.overlap),
            count=row.count,
            bytes=row.bytes,
        )
        for row in rows
    ]


def _with_communicators(memory: Memory, settings: Settings, cluster: Cluster) -> Memory:
    terms = device_terms(settings, cluster, memory.allocated_bytes)
    buffers = int(terms.communicators.value or 0.0)
    return replace(
        memory,
        device_bytes=memory.device_bytes + buffers,
        overhead_bytes=memory.overhead_bytes + buffers,
    )


def card_bytes(settings: Settings, cluster: Cluster) -> int:
    """What a GPU of the cluster leaves to the allocator beside context and communicators."""
    terms = device_terms(settings, cluster, 0.0)
    beside = (terms.context.value or 0.0) + (terms.communicators.value or 0.0)
    return max(1, int(cluster.gpu.memory_bytes - beside))


def priced(study: Study) -> tuple[Cluster, Costs]:
    """What communication is priced with: a study's cluster and constants, measured where they are.

    Only what links take is read of them: computing is timed.
    """
    question, costs = study.question, default_costs()
    if study.calibration is None:
        return question.cluster, costs
    return calibrated(study.calibration, question.workload.precision, question.cluster, costs)
