"""Decides what to do next in a study: another probe, wait for one, or stop."""

from collections import defaultdict
from collections.abc import Sequence

from tuner.core.configuration import Settings
from tuner.core.measurement import PROBED, RAN, Fidelity, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState, Study
from tuner.core.words import need_text
from tuner.planner.dry_runs import next_dry_run, next_rehearsal
from tuner.planner.knowledge import Knowledge, last_failure, learned, outcome_of
from tuner.planner.ranking import finals, is_final
from tuner.planner.search import ExpectedMemory, Search
from tuner.planner.spending import (
    TRAINS_WRONGLY,
    Stop,
    Wait,
    probes_of_request,
    remaining_wall_s,
    spent,
)
from tuner.planner.timing import first_counts


def next_probe(study: Study, *, beside: bool = False) -> ProbeRequest | Stop | Wait:
    """Decides what to do next; a pure function of the study.

    What is ruled out, known to fit and spent follows from the probes of its limits' fidelity; those
    of others change the order in which settings are tried.

    Args:
        study: with all its probes.
        beside: whether another probe may be proposed while some are on their way. Such a one is
            for its own sake: leaders are repeated, and a study is ended, when all are done.
    """
    if study.limits.fidelity in PROBED:
        return next_run(study, beside=beside)
    mine = study.at(study.limits.fidelity)
    if any(probe.state is not ProbeState.DONE for probe in mine.probes):
        return Wait()
    if study.limits.fidelity is Fidelity.PREDICTED:
        return next_dry_run(study)
    accident = same_accident(mine)
    return Stop(reason=accident) if accident else next_rehearsal(study)


def next_run(study: Study, *, beside: bool = False) -> ProbeRequest | Stop | Wait:
    """The same of a study that is to be measured or emulated."""
    whole, study = study, study.at(study.limits.fidelity)
    if pending := [p for p in study.probes if p.state is not ProbeState.DONE]:
        is_over = spent(study) or same_accident(study)
        if not beside or is_over or any(is_final(study, probe.request) for probe in pending):
            return Wait()
        return _company(learned(whole), pending) or Wait()
    if unprobed := study.question.unprobed:
        return Stop(reason=f"{unprobed} cannot be probed here; ask for predictions")
    if why := study.limits.sampler.why_not_here:
        return Stop(reason=f"sampler {study.limits.sampler} {why}")
    known = learned(whole)
    if why := spent(study):
        return Stop(reason=why) if known.fitting else _nothing(known, why)
    if why := same_accident(study):
        return Stop(reason=why)
    final_probes = finals(known, remaining_wall_s=remaining_wall_s(study))
    remaining = study.limits.max_probes - len(probes_of_request(study))
    if final_probes and remaining <= len(final_probes):
        return final_probes[0]
    proposed = Search(known, confirms=True).propose()
    if proposed is not None and proposed.gain >= study.limits.tolerance:
        return _request(known, proposed.settings)
    if final_probes:
        return final_probes[0]
    if proposed is not None:
        tolerance = f"{100 * known.study.limits.tolerance:g}%"
        return Stop(reason=f"no probe is expected to gain {tolerance} or more")
    why = "all settings that may fit were probed"
    return Stop(reason=why) if known.fitting else _nothing(known, why)


def _company(known: Knowledge, pending: Sequence[Probe]) -> ProbeRequest | None:
    """A probe to be run beside those on their way, if one is worth it."""
    study = known.study
    if study.limits.max_probes - len(probes_of_request(study)) <= len(finals(known)):
        return None  # what is left is for the leaders
    proposed = Search(known, {probe.request.settings for probe in pending}, confirms=True).propose()
    if proposed is None or proposed.gain < study.limits.tolerance:
        return None
    return _request(known, proposed.settings)


def _request(known: Knowledge, settings: Settings) -> ProbeRequest:
    return ProbeRequest(
        settings=settings,
        fidelity=known.study.limits.fidelity,
        repetition=known.repetitions.get(settings, 0),
        accumulation_counts=first_counts(known.study.question, settings),
    )


def _nothing(known: Knowledge, reason: str) -> Stop:
    """Nothing was seen to fit; that nothing does is said where all that is known is memory."""
    memory = ExpectedMemory(known)
    if not known.candidates() and (why := memory.what_is_wrong()):
        return Stop(reason=TRAINS_WRONGLY, wrong=why)
    least = memory.smallest()
    otherwise = (s for s in (*known.tried, *known.closed) if not known.is_infeasible(s))
    if least is None or any(otherwise) or Search(known, confirms=True).propose() is not None:
        why = f"{reason}; none of the settings probed gave a result that fits"
        failed = last_failure(known)
        return Stop(reason=f"{why}; the last: {failed}" if failed else why)
    return Stop(reason="no settings fit", nothing_fits=need_text(least, known.limit_bytes))


# Configurations that end in the same accident, while none runs, after which a request is ended.
ENOUGH = 3

# Accidents that say nothing of configurations, each of which was tried again, and what to look at.
LOOK_AT = {
    Outcome.COMMUNICATION_ERROR: (
        "look at the links between the ranks: the interface that they take (NCCL_SOCKET_IFNAME,"
        " GLOO_SOCKET_IFNAME), firewalls, the fabric; NCCL_DEBUG=INFO says more"
    ),
    Outcome.DEVICE_LOST: (
        "look at the devices: tuner doctor, nvidia-smi, and Xid errors in the kernel's log"
    ),
    Outcome.WORKER_LOST: (
        "look at the machines of the workers: their logs, and whether memory ran out there"
    ),
}


def same_accident(study: Study) -> str:
    """Names the accident that all of a request's probes end in, and what to look at; empty if they
    do not."""
    hit: dict[Outcome, dict[Settings, str]] = defaultdict(dict)
    for probe in probes_of_request(study):
        outcome = outcome_of(probe)
        if outcome in RAN:
            return ""
        if probe.measurement and outcome in LOOK_AT:
            hit[outcome][probe.request.settings] = probe.measurement.detail
    outcome = max(hit, key=lambda one: len(hit[one]), default=None)
    if outcome is None or len(hit[outcome]) < ENOUGH:
        return ""
    count, detail = len(hit[outcome]), next(filter(None, hit[outcome].values()), "")
    seen = f" ({detail})" if detail else ""
    return f"{count} settings ended as {outcome.words}{seen}, and none ran: {LOOK_AT[outcome]}"


# Part by which a run may be slower than another of the same configuration, generously: two were
# seen to differ by 2% or so where nothing else ran.
VARIATION = 0.1


def give_up_above_s(study: Study, request: ProbeRequest) -> float | None:
    """Seconds of an optimizer step above which settings cannot be a study's answer.

    The fastest that fits stands in the way. What takes longer than the upper end of its interval
    cannot be told to tie with it, nor can what takes longer than the tolerance allows; run-to-run
    variation comes on top. ``None`` while nothing is known to fit, and for settings whose time is
    known: they are run again for a better figure.
    """
    known = learned(study, request.fidelity)
    if request.settings in known.findings or not known.fitting:
        return None
    fastest_s = known.fitting[0].step_time_s.high
    return None if fastest_s is None else fastest_s * (1 + VARIATION + study.limits.tolerance)
