"""Turns a study's probes into the trials of a search."""

from collections.abc import Mapping
from math import log

from tuner.core.configuration import Settings
from tuner.core.measurement import Outcome
from tuner.core.quantity import QUANTILE, Quantity
from tuner.planner.finalists import VERIFICATION_STEPS
from tuner.planner.knowledge import Knowledge, outcome_of
from tuner.search.trials import Result, Trial


def trials_of(known: Knowledge) -> list[Trial]:
    """One for each legal settings that was tried, by their place in the space.

    What was refused, or was counted to train something else, says nothing of others; it is just not
    proposed again. Outcomes that teach nothing are left out. Steps that ran tell the time of others
    even where the settings were found to be wrong later.
    """
    at_least_s = _at_least_s(known)
    return [
        trial
        for index, settings in enumerate(known.space.legal)
        if (trial := _trial(known, at_least_s, index, settings)) is not None
    ]


def _at_least_s(known: Knowledge) -> dict[Settings, float]:
    """Seconds that a step takes at least, of settings whose time was up.

    A probe has warm-up and timed steps to do at each of its counts, six at least, and the shortest
    count takes no longer than the settings' own. Its time is shared among eight, for starting the
    ranks and building the model take some of it too.
    """
    found: dict[Settings, float] = {}
    for probe in known.study.probes:
        if probe.measurement and outcome_of(probe) is Outcome.TIMEOUT:
            counts = max(len(probe.request.accumulation_counts), 1)
            seconds = probe.measurement.wall_s / (VERIFICATION_STEPS * counts)
            settings = probe.request.settings
            found[settings] = max(seconds, found.get(settings, 0.0))
    return found


def _trial(
    known: Knowledge, at_least_s: Mapping[Settings, float], index: int, settings: Settings
) -> Trial | None:
    finding, need = known.findings.get(settings), known.too_large.get(settings)
    if finding is not None:
        return Trial(
            index=index,
            result=Result.RAN,
            seconds=finding.step_time.value,
            error=_error(finding.step_time),
            need_bytes=max(finding.needed_bytes, need.bytes if need else 0),
            is_wrong=settings in known.wrong,
        )
    if (slow := known.slow.get(settings)) is not None and slow.needed_bytes is not None:
        return Trial(
            index=index,
            result=Result.SLOW,
            seconds=slow.step_time.value,
            error=_error(slow.step_time),
            need_bytes=slow.needed_bytes,
        )
    if need is not None:
        return Trial(index=index, result=Result.TOO_LARGE, need_bytes=need.bytes)
    if settings in at_least_s:
        seconds = at_least_s[settings] or None
        return Trial(index=index, result=Result.TIMED_OUT, seconds=seconds)
    if settings in known.failed:
        return Trial(index=index, result=Result.FAILED)
    return None


def _error(step_time: Quantity) -> float:
    """Standard deviation of the logarithm of a step's seconds, from its 80% interval."""
    low, high = step_time.low, step_time.high
    return log(high / low) / (2 * QUANTILE) if low and high else 0.0
