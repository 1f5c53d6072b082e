"""Adds up a study's cost: seconds by the clock, in which several probes may run, and of devices.

One sum for budgets, for the answer, and for when the tuning has paid for itself.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import fsum, inf

from tuner.core.measurement import PROBED, Fidelity
from tuner.core.study import Probe, Study
from tuner.core.words import probe_word
from tuner.text import count_text, kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Cost in time and devices."""

    wall_s: float  # seconds by the clock
    device_s: float
    """Seconds times the devices held for them; dry runs and small replicas hold none."""


# An answer, its facts, its line in a list and its page ask for it.
@kept(maxsize=8)
def cost(study: Study) -> Cost:
    """Adds up all requests of a study: probes, attempts that came to nothing, and training the
    finalists' replicas."""
    wasted_s = study.wasted_s + study.wasted_before_s
    return _cost(study, study.probes, wasted_s, study.guard_s + study.guard_before_s)


def cost_of_request(study: Study) -> Cost:
    """The same of the latest request alone: what its budget is for."""
    return _cost(study, probes_of_request(study), study.wasted_s, study.guard_s)


def probes_of_request(study: Study) -> tuple[Probe, ...]:
    """The probes that the latest request has spent, the one done first first."""
    return study.in_order[study.probes_before :]


def devices_held(study: Study) -> int:
    """Devices that a probe holds: all of the cluster's, the one that plays one of them, or none."""
    if study.limits.fidelity is Fidelity.MEASURED:
        return study.question.cluster.world_size
    return int(study.limits.fidelity is Fidelity.EMULATED)


def _cost(study: Study, probes: Iterable[Probe], wasted_s: float, guard_s: float) -> Cost:
    wall_s, device_s = total_measured(probes)
    guard_s = guard_s if study.limits.fidelity in PROBED else 0.0
    device_s += wasted_s * devices_held(study)
    return Cost(wall_s=wall_s + wasted_s + guard_s, device_s=device_s)


def total_measured(probes: Iterable[Probe]) -> tuple[float, float]:
    """Seconds and device-seconds that probes took, in any order the same.

    Seconds in which several ran at once count once; a probe of which it is not known when it was
    done counts as if it had run alone.
    """
    known = [(p.finished_at, p.measurement) for p in probes if p.measurement]
    alone_s = fsum(found.wall_s for at, found in known if at is None)
    ends = ((datetime.fromisoformat(at), found) for at, found in known if at is not None)
    together = sorted((end - timedelta(seconds=found.wall_s), end) for end, found in ends)
    spans: list[float] = []
    reached: datetime | None = None
    for begin, end in together:
        begin = begin if reached is None else max(begin, reached)
        if begin < end:
            spans.append((end - begin).total_seconds())
            reached = end
    return alone_s + fsum(spans), fsum(found.device_s for _, found in known)


def spent(study: Study) -> str:
    """Names the part of the budget that is spent; empty when some of all is left."""
    probes, limits = probes_of_request(study), study.limits
    if len(probes) >= limits.max_probes:
        asked = count_text(limits.max_probes, probe_word(limits.fidelity))
        return f"the budget of {asked} is spent"
    if limits.wall_s is not None and cost_of_request(study).wall_s >= limits.wall_s:
        return wall_is_spent(limits.wall_s)
    if limits.device_s is not None and cost_of_request(study).device_s >= limits.device_s:
        return device_time_is_spent(limits.device_s)
    return ""


def wall_is_spent(budget_s: float) -> str:
    return f"the budget of {budget_s:g} s is spent"


def device_time_is_spent(budget_s: float) -> str:
    return f"the budget of {budget_s:g} device-seconds is spent"


def remaining_wall_s(study: Study) -> float | None:
    """Seconds left; the tighter of the two budgets of time."""
    wall_s, device_time_s = study.limits.wall_s, remaining_device_time_s(study)
    left = [inf if wall_s is None else wall_s - cost_of_request(study).wall_s, device_time_s]
    return None if min(left) == inf else min(left)


def remaining_device_time_s(study: Study) -> float:
    """Seconds for which a probe may still hold its devices; infinite without such a budget."""
    budget = study.limits.device_s
    if budget is None or not devices_held(study):
        return inf
    return (budget - cost_of_request(study).device_s) / devices_held(study)


# Reason of a stop where memory suffices for settings, and all of them are known to be wrong.
TRAINS_WRONGLY = "what fits trains something else"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Nothing more is to be probed within these limits."""

    reason: str  # why, for people
    nothing_fits: str = ""  # what would be needed, when no settings fit; else empty
    wrong: str = ""  # what is wrong, when all that fits trains something else; else empty

    @property
    def failure(self) -> str:
        """Why the study fails; empty where it is done."""
        why = self.nothing_fits or self.wrong
        return f"{self.reason}: {why}" if why else ""


@dataclass(frozen=True, slots=True)
class Wait:
    """A probe is queued or running, and its result is needed first."""
