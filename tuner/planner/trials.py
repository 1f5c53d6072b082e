"""What a study's probes have taught, as the trials of a search."""

from math import log

from tuner.planner.candidates import QUANTILE
from tuner.planner.knowledge import Knowledge
from tuner.quantity import Quantity
from tuner.search.trials import Result, Trial
from tuner.settings import Settings


def trials_of(known: Knowledge) -> list[Trial]:
    """One for each legal settings that was tried, by their place in the space.

    What closes a class (refused, inactive, wrong) says nothing of others; it is just not proposed
    again. Outcomes that teach nothing are left out.
    """
    return [
        trial
        for index, settings in enumerate(known.space.legal)
        if (trial := _trial(known, index, settings)) is not None
    ]


def _trial(known: Knowledge, index: int, settings: Settings) -> Trial | None:
    finding, need = known.findings.get(settings), known.too_large.get(settings)
    if finding is not None:
        return Trial(
            index=index,
            result=Result.RAN,
            seconds=finding.step_time.value,
            error=_error(finding.step_time),
            need_bytes=max(finding.needed_bytes, need.bytes if need else 0),
        )
    if (slow := known.slow.get(settings)) is not None:
        return Trial(
            index=index,
            result=Result.SLOW,
            seconds=slow.step_time.value,
            error=_error(slow.step_time),
            need_bytes=slow.needed_bytes,
        )
    if need is not None:
        return Trial(index=index, result=Result.TOO_LARGE, need_bytes=need.bytes)
    if settings in known.failed:
        return Trial(index=index, result=Result.FAILED)
    return None


def _error(step_time: Quantity) -> float:
    """Standard deviation of the logarithm of a step's seconds, from its 80% interval."""
    low, high = step_time.low, step_time.high
    return log(high / low) / (2 * QUANTILE) if low and high else 0.0
