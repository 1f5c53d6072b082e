"""The last probes of a study: the leaders again, so that the answer stands on more than one run."""

from collections.abc import Iterator

from tuner.measurement import Outcome
from tuner.planner.findings import Finding
from tuner.planner.knowledge import Knowledge, outcome_of
from tuner.planner.ranking import choose, indistinguishable
from tuner.study import ProbeRequest, Study

REPEAT_FROM = 6
"""Probes that must be allowed before some are kept for repeating finalists."""

VERIFICATION_STEPS = 8
"""Optimizer steps that a verification runs at least, warm-up included."""


def finals(known: Knowledge, *, remaining_wall_s: float | None = None) -> list[ProbeRequest]:
    """The final probes that are still wanted, most wanted first; at most two.

    An answer whose time was extrapolated is verified at its full accumulation, if the time
    left allows it. An answer and a rival that cannot be told apart are run once more each.
    """
    wanted = [
        finding
        for finding in _leaders(known)
        if known.repetitions[finding.settings] == _first_good(finding) + 1
        and (not finding.extrapolated or _affordable(finding, remaining_wall_s))
    ]
    return [_again(known, finding) for finding in wanted]


def is_final(study: Study, request: ProbeRequest) -> bool:
    """Whether a probe repeats what ended well already: its time decides, so it has no neighbours.

    Args:
        study: with its probes that are done.
        request: of the probe.
    """
    return any(
        probe.request.settings == request.settings and outcome_of(probe) is Outcome.OK
        for probe in study.at(request.fidelity).probes
    )


def _leaders(known: Knowledge) -> Iterator[Finding]:
    """The answer so far, and its closest rival when the two cannot be told apart."""
    fitting, terms = known.fitting, known.study.terms
    choice = choose(fitting, terms.tolerance)
    if choice is None:
        return
    rivals = [f for f in (choice.fastest, *fitting) if f is not choice.best]
    repeats = terms.max_probes >= REPEAT_FROM and bool(rivals)
    close = repeats and indistinguishable(choice.best, rivals[0], terms.tolerance)
    if choice.best.extrapolated or close:
        yield choice.best
    if close:
        yield rivals[0]


def _first_good(finding: Finding) -> int:
    """The repetition that ended well first; a later probe means that it was repeated."""
    return finding.probes[0].request.repetition


def _affordable(finding: Finding, remaining_wall_s: float | None) -> bool:
    return remaining_wall_s is None or VERIFICATION_STEPS * finding.seconds <= remaining_wall_s


def _again(known: Knowledge, finding: Finding) -> ProbeRequest:
    """The same settings once more, with all of their micro-batches."""
    return ProbeRequest(
        settings=finding.settings,
        fidelity=known.study.terms.fidelity,
        repetition=known.repetitions[finding.settings],
    )
