"""Prices an emulated probe's steps as they would be on the cluster, with their communication.

Rank 0 alone times its computing and notes its collectives. These stay what they are when rates are
measured anew, so a probe can be priced again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tuner.catalog.gpus import reported_kind
from tuner.core.cluster import Cluster
from tuner.core.configuration import Settings
from tuner.core.measurement import Exposed, Measurement
from tuner.core.workload import Precision
from tuner.cost.calibration import Calibration, calibrated
from tuner.cost.constants import Costs, default_costs
from tuner.cost.time.collectives import StepCollective
from tuner.cost.time.communication import Computing, copies_beside_s, exposed_s
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
    copied = memory_rate(measurement.hardware) if emulation.stands_in else None
    exposed: dict[int, Exposed] = {}
    for count in () if why_not else emulation.compute_s:
        # as they were seen, in the words of the cost model; a kind without a price is an error
        collectives = [StepCollective.seen(row) for row in emulation.collectives[count]]
        phases_s = emulation.phases_s[count]
        found = exposed_s(
            Computing(forward=phases_s.get("forward", 0.0), backward=phases_s.get("backward", 0.0)),
            collectives,
            settings,
            rates.cluster,
            passes=count,
            beside=copies_beside_s(collectives, settings, rates.cluster, bytes_per_s=copied),
            costs=rates.costs,
        )
        assert found.value is not None
        assert found.low is not None
        assert found.high is not None
        exposed[count] = Exposed(value_s=found.value, low_s=found.low, high_s=found.high)
    return replace(
        measurement,
        step_times_s={
            count: tuple(seconds + one.value_s for seconds in emulation.compute_s[count])
            for count, one in exposed.items()
        },
        emulation=replace(emulation, exposed_s=exposed, unpriced=why_not, priced_at=rates.at),
    )


def memory_rate(hardware: Mapping[str, Any]) -> float | None:
    """Bytes per second of the memory of a device, as a probe's record has it, by the catalogue;
    ``None`` if it has no such."""
    name, memory_bytes = hardware.get("device", ""), hardware.get("total_memory_bytes", 0)
    kind = reported_kind(str(name), int(memory_bytes))
    return None if kind is None else kind.memory_bytes_per_s
