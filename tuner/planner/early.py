"""When a probe may end before all its steps are timed."""

from tuner.planner.knowledge import learned
from tuner.study import ProbeRequest, Study

LUCK = 0.1
"""Part by which a run of settings may be slower than another of the same ones, generously.

Two runs of the same settings were seen to differ by 2% or so where nothing else ran.
"""


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
