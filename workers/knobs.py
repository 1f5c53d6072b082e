"""Whether the knobs acted, by the collectives of a step that was tracked."""

from dataclasses import replace

from tuner.guard.counts import caused, counted, difference, inactive_knob
from tuner.measurement import Measurement, Outcome
from tuner.settings import Settings
from tuner.space.dead import show
from tuner.study import Question


def check_knobs(question: Question, settings: Settings, measurement: Measurement) -> Measurement:
    """The measurement, with the outcome ``knob_inactive`` if a live knob did not act.

    Args:
        question: what is trained, and where.
        settings: what was tried.
        measurement: of the probe; any outcome but ``ok`` is left as it is.
    """
    count = measurement.tracked_accumulation
    if measurement.outcome is not Outcome.OK or not count:
        return measurement
    workload, cluster = question.workload, question.cluster
    tracked = replace(settings, gradient_accumulation_steps=count)
    seen = counted(measurement.collectives)
    found = inactive_knob(workload, tracked, cluster, seen)
    if found is None:
        return measurement
    knob, value = found
    asked = show(getattr(settings, knob))
    what = difference(caused(workload, tracked, cluster), seen)
    detail = f"{knob}={asked} acted as {show(value)}: {what}"
    return replace(measurement, outcome=Outcome.KNOB_INACTIVE, detail=detail)
