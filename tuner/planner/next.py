"""Decides what to do next in a study: another probe, wait for one, or stop."""

from collections.abc import Sequence

from tuner.core.configuration import Settings
from tuner.core.framework import FrameworkName
from tuner.core.measurement import PROBED, Fidelity
from tuner.core.study import Probe, ProbeRequest, ProbeState, Study
from tuner.planner.dry_runs import next_dry_run
from tuner.planner.expected_memory import MemoryOutlook
from tuner.planner.finalists import finals, is_final
from tuner.planner.knowledge import Knowledge, learned, same_accident
from tuner.planner.search import Proposed, propose
from tuner.planner.spending import (
    TRAINS_WRONGLY,
    Stop,
    Wait,
    probes_of_asking,
    remaining_wall_s,
    spent,
)
from tuner.planner.timing import first_counts


def next_probe(study: Study, *, beside: bool = False) -> ProbeRequest | Stop | Wait:
    """Decides what to do next; a pure function of the study.

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
    if why := study.terms.sampler.why_not_here:
        return Stop(reason=f"sampler {study.terms.sampler} {why}")
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


# Part by which a run of settings may be slower than another of the same ones, generously.
#
# Two runs of the same settings were seen to differ by 2% or so where nothing else ran.
LUCK = 0.1


def give_up_above_s(study: Study, request: ProbeRequest) -> float | None:
    """Seconds of an optimizer step above which settings cannot be a study's answer.

    The fastest that fits stands in the way. What takes longer than the upper end of its interval
    cannot be told to tie with it, nor can what takes longer than the tolerance allows; the luck of
    a run comes on top.

    Args:
        study: with the probes that are done.
        request: what is to be run.

    Returns:
        ``None`` while nothing is known to fit, and for settings whose time is already known: they
        are run again for a better figure.
    """
    known = learned(study, request.fidelity)
    if request.settings in known.findings or not known.fitting:
        return None
    fastest_s = known.fitting[0].step_time.high
    return None if fastest_s is None else fastest_s * (1 + LUCK + study.terms.tolerance)
