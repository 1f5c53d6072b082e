"""Prices an emulated probe's steps as they would be on the cluster, with their communication.

Rank 0 alone times its computing and notes its collectives. These stay what they are when rates are
measured anew, so a probe can be priced again.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from tuner.catalog.gpus import reported_kind
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Settings
from tuner.core.measurement import Exposed, Measurement, Phase
from tuner.core.workload import Precision
from tuner.cost.calibration import Calibration, calibrated
from tuner.cost.constants import Costs, default_costs
from tuner.cost.memory.shards import axis_sizes
from tuner.cost.time.collectives import Op, Overlap, StepCollective
from tuner.cost.time.communication import Computing, LinkSeconds, axis_group, link_seconds, passes_s
from tuner.cost.time.step import missing_link


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Holds the rates that communication is priced with."""

    cluster: Cluster  # whose links; measured ones, where there are any
    costs: Costs  # constants
    at: str = ""  # when they were calibrated, UTC in ISO 8601; empty where they are not


def rates_of(calibration: Calibration | None, precision: Precision, cluster: Cluster) -> Rates:
    """The rates of a cluster today. Only what links take is read of them: computing is timed."""
    costs = default_costs()
    if calibration is None:
        return Rates(cluster=cluster, costs=costs)
    where, costs = calibrated(calibration, precision, cluster, costs)
    return Rates(cluster=where, costs=costs, at=calibration.at)


def priced(measurement: Measurement, settings: Settings, rates: Rates) -> Measurement:
    """The measurement of an emulated probe, its steps with the communication that they wait for.

    Where the rate of a link is not known there are no step times, and the emulation says why.

    The measurement has an emulation whose computing and collectives are known by count; a price
    that it has already is replaced.
    """
    emulation = measurement.emulation
    assert emulation is not None
    why_not = missing_link(settings, rates.cluster)
    copied = None  # bytes per second of the memory that copies were made in, by the catalogue
    if emulation.stands_in:
        name, size = (measurement.hardware.get(n) for n in ("device", "total_memory_bytes"))
        kind = reported_kind(str(name or ""), int(size or 0))
        copied = None if kind is None else kind.memory_bytes_per_s
    exposed: dict[int, Exposed] = {}
    for count in () if why_not else emulation.compute_s:
        # as they were seen, in the words of the cost model; a kind without a price is an error
        collectives = [StepCollective.seen(row) for row in emulation.collectives[count]]
        phases_s = emulation.phases_s[count]
        forward, backward = (phases_s.get(phase, 0.0) for phase in ("forward", "backward"))
        timed = Computing(forward=forward, backward=backward)
        copies = copies_beside_s(collectives, settings, rates.cluster, copied)
        exposed[count] = exposed_s(timed, copies, collectives, settings, count, rates)
    return replace(
        measurement,
        step_times_s={
            count: tuple(seconds + one.value_s for seconds in emulation.compute_s[count])
            for count, one in exposed.items()
        },
        emulation=replace(emulation, exposed_s=exposed, unpriced=why_not, priced_at=rates.at),
    )


def copies_beside_s(
    collectives: Iterable[StepCollective],
    settings: Settings,
    cluster: Cluster,
    bytes_per_s: float | None = None,
) -> Computing:
    """Seconds of copies on a rank that is alone, in the place of gathers that computing hides.

    ``workers/probe/group.py`` fills a gathered tensor with one kernel, which reads this rank's part
    and writes the whole in elements of 16 bytes, nearly at the memory's bandwidth. Kernels
    of matrices leave no room beside them on an SM (registers, shared memory), so such a copy takes
    its time from computing although it has a stream of its own. A reduction copies one part of
    many, which is little. On a CPU all copies are in line with computing, and timed.

    ``bytes_per_s`` is of the memory of the device that made the copies, where that is another kind
    than the cluster's, and known; memory of unknown bandwidth takes no time.
    """
    seconds = {Phase.FORWARD: 0.0, Phase.BACKWARD: 0.0}
    rate = bytes_per_s or cluster.gpu.memory_bytes_per_s
    if rate is None or cluster.gpu.device is Device.CPU:
        return Computing(forward=0.0, backward=0.0)
    sizes = axis_sizes(settings, cluster)
    for item in collectives:
        if item.op is Op.ALL_GATHER and item.overlap is Overlap.PREFETCHED:
            part = item.bytes / axis_group(item.axis, sizes, cluster).ranks
            seconds[item.phase] += (item.bytes + part) / rate
    return Computing(forward=seconds[Phase.FORWARD], backward=seconds[Phase.BACKWARD])


def exposed_s(
    timed: Computing,
    copies: Computing,
    collectives: Iterable[StepCollective],
    settings: Settings,
    passes: int,
    rates: Rates,
) -> Exposed:
    """Seconds by which communication makes a step of so many ``passes`` longer than its computing.

    What a collective takes from computing beside it is counted once: copies that stood for it while
    the step was timed have lengthened that already, and are taken off before the cost model's own
    share is added, of a phase no more than half, for copies are not all of it. The interval is that
    of links as much faster and slower as predicted steps that nothing was fitted on; its upper end
    supposes that those copies cost computing nothing.
    """
    cluster, costs = rates.cluster, rates.costs
    links = link_seconds(collectives, axis_sizes(settings, cluster), cluster, costs)
    synced = passes if settings.sync_each_batch else 1
    joined = 1 if settings.defer_all_reduce else synced
    alone = timed.forward + timed.backward
    undisturbed = Computing(
        forward=max(timed.forward - copies.forward, timed.forward / 2),
        backward=max(timed.backward - copies.backward, timed.backward / 2),
    )

    def longer(found: Computing, factor: float) -> float:
        slow = LinkSeconds(**{name: factor * size for name, size in asdict(links).items()})
        taken = passes_s(found, slow, passes=passes, synced=synced, joined=joined, costs=costs)
        return max(0.0, taken - alone)

    width = costs.time.unfitted
    ends = longer(undisturbed, width.low), longer(timed, width.high)
    return Exposed(value_s=longer(undisturbed, 1.0), low_s=ends[0], high_s=ends[1])
