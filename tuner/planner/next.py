"""What to do next in a study: another probe, wait for one, or stop."""

from dataclasses import dataclass

from tuner.framework import FrameworkName
from tuner.planner.finals import finals
from tuner.planner.knowledge import (
    Knowledge,
    learn,
    probes_of_asking,
    total_measured,
)
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.search import propose
from tuner.planner.timing import counts_to_run
from tuner.settings import Settings
from tuner.study import ProbeRequest, ProbeState, Study

FEWEST_STALE, MOST_STALE, STALE_SHARE = 10, 30, 6
"""Probes without a gain after which a study stops: a sixth of the space, within bounds.

The study of a space of 30 to 60 settings so spends a budget of ten probes.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Nothing more is to be probed on these terms."""

    reason: str
    """Why, for people."""
    nothing_fits: str = ""
    """What would be needed, when no settings fit; else empty."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A probe is queued or running, and its result is needed first."""


def next_probe(study: Study) -> ProbeRequest | Stop | Wait:
    """What to do next; a pure function of the study.

    Raises:
        UsageError: the question has no legal settings.
    """
    if any(probe.state is not ProbeState.DONE for probe in study.probes):
        return Wait()
    if study.question.framework.name is FrameworkName.NANOTRON:
        return Stop(reason="nanotron's settings cannot be probed here, and nothing predicts them")
    known = learn(study)
    if spent := _spent(study):
        return _stop(known, spent)
    final_probes = finals(known, remaining_wall_s=_remaining_wall_s(study))
    stale = _stale(known)
    remaining = study.terms.max_probes - len(probes_of_asking(study))
    if final_probes and (stale or remaining <= len(final_probes)):
        return final_probes[0]
    settings = None if stale else propose(known)
    if settings is not None:
        return _request(known, settings)
    if final_probes:
        return final_probes[0]
    return _stop(known, stale or "every settings that may fit was probed")


def _request(known: Knowledge, settings: Settings) -> ProbeRequest:
    return ProbeRequest(
        settings=settings,
        fidelity=known.study.terms.fidelity,
        repetition=known.repetitions.get(settings, 0),
        accumulation_counts=counts_to_run(settings.gradient_accumulation_steps),
    )


def _spent(study: Study) -> str:
    """Which part of the budget is spent; empty when some of all is left."""
    probes, terms = probes_of_asking(study), study.terms
    wall_s, device_s = total_measured(probe.measurement for probe in probes)
    if len(probes) >= terms.max_probes:
        noun = "probe" if terms.max_probes == 1 else "probes"
        return f"the budget of {terms.max_probes} {noun} is spent"
    if terms.wall_s is not None and wall_s >= terms.wall_s:
        return f"the budget of {terms.wall_s:g} s is spent"
    if terms.device_s is not None and device_s >= terms.device_s:
        return f"the budget of {terms.device_s:g} device-seconds is spent"
    return ""


def _remaining_wall_s(study: Study) -> float | None:
    """Seconds left; the tighter of the two budgets of time."""
    wall_s, device_s = total_measured(p.measurement for p in probes_of_asking(study))
    terms, devices = study.terms, study.question.cluster.world_size
    left = [
        None if terms.wall_s is None else terms.wall_s - wall_s,
        None if terms.device_s is None else (terms.device_s - device_s) / devices,
    ]
    return min((seconds for seconds in left if seconds is not None), default=None)


def _stale(known: Knowledge) -> str:
    """That the last probes that fit brought no gain; empty while they did, or are too few.

    Probes of all askings count, so that a study asked again does not start over; those that
    do not fit today say nothing about speed, and do not count.
    """
    patience = min(MOST_STALE, max(FEWEST_STALE, len(known.space.legal) // STALE_SHARE))
    best, since = float("inf"), 0
    for finding in sorted(known.fitting, key=lambda f: f.probes[0].id):
        if finding.seconds < best * (1 - known.study.terms.tolerance):
            since = 0
        else:
            since += 1
        best = min(best, finding.seconds)
    if since < patience:
        return ""
    gain = f"{100 * known.study.terms.tolerance:g}%"
    return f"the last {since} settings that fit gained no more than {gain} on the best before"


def _stop(known: Knowledge, reason: str) -> Stop:
    if known.fitting:
        return Stop(reason=reason)
    needs = MemoryOutlook(known).smallest_need()
    if not needs or propose(known) is not None:
        return Stop(reason=f"{reason}; none of the settings probed gave a result that fits")
    return Stop(reason="no settings fit", nothing_fits=needs)
