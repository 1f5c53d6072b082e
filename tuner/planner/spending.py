"""What a study has cost: seconds by the clock, in which several probes may run, and of devices.

One sum for budgets, for the answer, and for when the tuning has paid for itself.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum

from tuner.measurement import Fidelity, Measurement
from tuner.study import Probe, Study

Interval = tuple[datetime, datetime]
"""Begin and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What was spent."""

    wall_s: float
    """Seconds by the clock."""
    device_s: float
    """Seconds times the devices held for them; dry runs and small twins hold none."""


def cost(study: Study) -> Cost:
    """What all askings of a study have cost: probes, attempts that came to nothing, and training
    the finalists' small twins.

    Args:
        study: with its probes of its terms' fidelity only.
    """
    fruitless_s = study.fruitless_s + study.fruitless_before_s
    return _cost(study, study.probes, fruitless_s, study.guard_s + study.guard_before_s)


def cost_of_asking(study: Study) -> Cost:
    """The same of the latest asking alone: what its budget is for."""
    return _cost(study, probes_of_asking(study), study.fruitless_s, study.guard_s)


def probes_of_asking(study: Study) -> tuple[Probe, ...]:
    """The probes that the latest asking has spent, the one done first first."""
    return study.in_order[study.probes_before :]


def devices_held(study: Study) -> int:
    """Devices that a probe holds: all of the cluster's, or the one that plays one of them."""
    if study.terms.fidelity is Fidelity.EMULATED:
        return 1
    return study.question.cluster.world_size


def _cost(study: Study, probes: Iterable[Probe], fruitless_s: float, guard_s: float) -> Cost:
    wall_s, device_s = total_measured(probes)
    is_dry = study.terms.fidelity is Fidelity.PREDICTED
    held, guard_s = (0, 0.0) if is_dry else (devices_held(study), guard_s)
    return Cost(
        wall_s=wall_s + fruitless_s + guard_s,
        device_s=device_s + fruitless_s * held,
    )


def total_measured(probes: Iterable[Probe]) -> tuple[float, float]:
    """Seconds and device-seconds that probes took, in any order the same.

    Seconds in which several ran at once count once; a probe of which it is not known when it was
    done counts as if it had run alone.
    """
    known = [(p.finished_at, p.measurement) for p in probes if p.measurement]
    alone_s = fsum(m.wall_s for at, m in known if at is None)
    together = [_interval(at, m) for at, m in known if at is not None]
    return alone_s + _covered_s(together), fsum(m.device_s for _, m in known)


def measured_so_far(probes: Iterable[Probe]) -> Iterator[tuple[float, float]]:
    """After each probe that is done the seconds and device-seconds of all up to it.

    The last are those of :func:`total_measured`.

    Args:
        probes: in the order in which they were done.
    """
    wall_s = device_s = 0.0
    spans: list[Interval] = []  # apart from each other, ascending
    for probe in probes:
        if (found := probe.measurement) is None:
            continue
        device_s += found.device_s
        if probe.finished_at is None:
            wall_s += found.wall_s
        else:
            begin, end = _interval(probe.finished_at, found)
            while spans and spans[-1][1] >= begin:
                first, last = spans.pop()
                wall_s -= (last - first).total_seconds()
                begin, end = min(first, begin), max(last, end)
            wall_s += (end - begin).total_seconds()
            spans.append((begin, end))
        yield wall_s, device_s


def _interval(finished_at: str, measurement: Measurement) -> Interval:
    end = datetime.fromisoformat(finished_at)
    return end - timedelta(seconds=measurement.wall_s), end


def _covered_s(intervals: Sequence[Interval]) -> float:
    """Seconds that lie in one interval or more."""
    spans: list[float] = []
    reached: datetime | None = None
    for begin, end in sorted(intervals):
        begin = begin if reached is None else max(begin, reached)
        if begin < end:
            spans.append((end - begin).total_seconds())
            reached = end
    return fsum(spans)
