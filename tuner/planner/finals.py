"""The last probes of a study: the leaders again, so that the answer stands on more than one run."""

from collections.abc import Iterator

from tuner.planner.knowledge import Finding, Knowledge
from tuner.planner.ranking import indistinguishable
from tuner.study import ProbeRequest

REPEAT_FROM = 6
"""Probes that must be allowed before some are kept for repeating finalists."""

VERIFICATION_STEPS = 8
"""Optimizer steps that a verification runs at least, warm-up included."""


def finals(known: Knowledge, *, remaining_wall_s: float | None = None) -> list[ProbeRequest]:
    """The final probes that are still wanted, most wanted first; at most two.

    A leader whose time was extrapolated is verified at its full accumulation, if the time
    left allows it. Two leaders that cannot be told apart are run once more each.
    """
    wanted = [
        finding
        for finding in _leaders(known)
        if known.repetitions[finding.settings] == _first_good(finding) + 1
        and (not finding.extrapolated or _affordable(finding, remaining_wall_s))
    ]
    return [_again(known, finding) for finding in wanted]


def _leaders(known: Knowledge) -> Iterator[Finding]:
    fitting = known.fitting
    if not fitting:
        return
    first, *others = fitting
    terms = known.study.terms
    repeats = terms.max_probes >= REPEAT_FROM and bool(others)
    close = repeats and indistinguishable(first, others[0], terms.tolerance)
    if first.extrapolated or close:
        yield first
    if close:
        yield others[0]


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
