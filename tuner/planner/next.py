"""What to do next in a study: another probe, wait for one, or stop."""

from tuner.framework import FrameworkName
from tuner.measurement import Fidelity
from tuner.planner.budget import remaining_wall_s, spent
from tuner.planner.dry_runs import next_dry_run
from tuner.planner.finals import finals
from tuner.planner.knowledge import Knowledge, learn, probes_of_asking
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.plans import Stop, Wait
from tuner.planner.search import propose
from tuner.planner.timing import counts_to_run
from tuner.settings import Settings
from tuner.study import ProbeRequest, ProbeState, Study

FEWEST_STALE, MOST_STALE, STALE_SHARE = 10, 30, 6
"""Probes without a gain after which a study stops: a sixth of the space, within bounds.

The study of a space of 30 to 60 settings so spends a budget of ten probes.
"""


def next_probe(study: Study) -> ProbeRequest | Stop | Wait:
    """What to do next; a pure function of the study and of its probes of its terms' fidelity.

    Raises:
        UsageError: the question has no legal settings.
    """
    study = study.at(study.terms.fidelity)
    if any(probe.state is not ProbeState.DONE for probe in study.probes):
        return Wait()
    if study.terms.fidelity is Fidelity.PREDICTED:
        return next_dry_run(study)
    if study.question.framework.name is FrameworkName.NANOTRON:
        return Stop(reason="nanotron's settings cannot be probed here; ask for predictions")
    known = learn(study)
    if why := spent(study):
        return _stop(known, why)
    final_probes = finals(known, remaining_wall_s=remaining_wall_s(study))
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
