"""Whether the knobs acted, by what a step that was tracked was seen to do."""

from dataclasses import replace

from tuner.guard.counts import inactive_knob
from tuner.measurement import RAN, Measurement, Outcome
from tuner.settings import Settings
from tuner.space.dead import show
from tuner.study import Question


def check_knobs(question: Question, settings: Settings, measurement: Measurement) -> Measurement:
    """The measurement, with the outcome ``knob_inactive`` if a live knob did not act.

    Args:
        question: what is trained, and where.
        settings: what was tried.
        measurement: of the probe; of one whose steps did not run it is left as it is.
    """
    count = measurement.tracked_accumulation
    if measurement.outcome not in RAN or not count:
        return measurement
    tracked = replace(settings, gradient_accumulation_steps=count)
    found = inactive_knob(question.workload, tracked, question.cluster, measurement)
    if found is None:
        return measurement
    asked = show(getattr(settings, found.knob))
    detail = f"{found.knob}={asked} acted as {show(found.value)}: {found.why}"
    inactive = Outcome.KNOB_INACTIVE
    return replace(measurement, outcome=inactive, detail=detail, knob=found.knob)
