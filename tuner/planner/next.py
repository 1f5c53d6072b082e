"""What to do next in a study: another probe, wait for one, or stop."""

from collections.abc import Sequence

from tuner.framework import FrameworkName
from tuner.measurement import PROBED, Fidelity
from tuner.planner.accidents import same_accident
from tuner.planner.budget import remaining_wall_s, spent
from tuner.planner.dry_runs import next_dry_run
from tuner.planner.finals import finals, is_final
from tuner.planner.knowledge import Knowledge, learned
from tuner.planner.outlook import MemoryOutlook
from tuner.planner.plans import TRAINS_WRONGLY, Stop, Wait
from tuner.planner.search import Proposed, propose
from tuner.planner.spending import probes_of_asking
from tuner.planner.timing import first_counts
from tuner.settings import Settings
from tuner.study import Probe, ProbeRequest, ProbeState, Study


def next_probe(study: Study, *, beside: bool = False) -> ProbeRequest | Stop | Wait:
    """What to do next; a pure function of the study.

    What is ruled out, known to fit and spent follows from the probes of its terms' fidelity; those
    of others change the order in which settings are tried.

    Args:
        study: with all its probes.
        beside: whether another probe may be proposed while some are on their way. Such a one is
            for its own sake: leaders are repeated, and a study is ended, when all are done.

    Raises:
        UsageError: the question has no legal settings.
    """
    whole, study = study, study.at(study.terms.fidelity)
    if pending := [p for p in study.probes if p.state is not ProbeState.DONE]:
        return (_company(whole, study, pending) if beside else None) or Wait()
    if study.terms.fidelity is Fidelity.PREDICTED:
        return next_dry_run(whole)
    if study.question.framework.name is FrameworkName.NANOTRON and not study.question.script:
        return Stop(reason="nanotron's settings cannot be probed here; ask for predictions")
    known = learned(whole, study.terms.fidelity)
    if why := spent(study):
        return Stop(reason=why) if known.fitting else _nothing(known, why)
    if why := same_accident(study):
        return Stop(reason=why)
    final_probes = finals(known, remaining_wall_s=remaining_wall_s(study))
    remaining = study.terms.max_probes - len(probes_of_asking(study))
    if final_probes and remaining <= len(final_probes):
        return final_probes[0]
    proposed = propose(known)
    if proposed is not None and proposed.gain >= study.terms.tolerance:
        return _request(known, proposed.settings)
    if final_probes:
        return final_probes[0]
    return _stop(known, proposed)


def _company(whole: Study, study: Study, pending: Sequence[Probe]) -> ProbeRequest | None:
    """A probe to be run beside those on their way, if one is worth it."""
    if study.terms.fidelity not in PROBED or spent(study) or same_accident(study):
        return None
    if any(is_final(study, probe.request) for probe in pending):
        return None
    known = learned(whole, study.terms.fidelity)
    if study.terms.max_probes - len(probes_of_asking(study)) <= len(finals(known)):
        return None  # what is left is for the leaders
    proposed = propose(known, {probe.request.settings for probe in pending})
    if proposed is None or proposed.gain < study.terms.tolerance:
        return None
    return _request(known, proposed.settings)


def _request(known: Knowledge, settings: Settings) -> ProbeRequest:
    return ProbeRequest(
        settings=settings,
        fidelity=known.study.terms.fidelity,
        repetition=known.repetitions.get(settings, 0),
        accumulation_counts=first_counts(known.study.question, settings),
    )


def _stop(known: Knowledge, proposed: Proposed | None) -> Stop:
    if proposed is not None:
        tolerance = f"{100 * known.study.terms.tolerance:g}%"
        return Stop(reason=f"no probe is expected to gain {tolerance} or more")
    if known.fitting:
        return Stop(reason="every settings that may fit was probed")
    return _nothing(known, "every settings that may fit was probed")


def _nothing(known: Knowledge, reason: str) -> Stop:
    """Nothing was seen to fit; that nothing does is said where all that is known is memory."""
    outlook = MemoryOutlook(known)
    if not known.candidates() and (why := outlook.what_is_wrong()):
        return Stop(reason=TRAINS_WRONGLY, wrong=why)
    needs = outlook.smallest_need()
    otherwise = (s for s in (*known.tried, *known.closed) if not known.is_infeasible(s))
    if not needs or any(otherwise) or propose(known) is not None:
        return Stop(reason=f"{reason}; none of the settings probed gave a result that fits")
    return Stop(reason="no settings fit", nothing_fits=needs)
