"""Estimates after what other studies measured of questions like theirs.

NumPy, which is slow to import: this module is imported where a study has a past.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tuner.cost.prediction import Prediction
from tuner.planner.candidates import predicted
from tuner.planner.timing import speed_of
from tuner.planner.transfer import corrected
from tuner.settings import Settings
from tuner.study import Study

if TYPE_CHECKING:
    from tuner.planner.estimate import Estimate

Estimates = Mapping[Settings, "Estimate"]


def transferred(study: Study, estimates: Estimates) -> Estimates:
    """Estimates with their times corrected, where some study is near.

    Where no time is known for want of rates, rates are assumed, for the study and for its past
    alike: what these are off by, the past then tells, and nothing is shown at assumed rates alone.
    """
    timed = [s for s, e in estimates.items() if e.step_time.value is not None]
    if timed:
        found = corrected(study, timed)
    else:
        found = corrected(study, list(estimates), at_assumed_rates=True)
        estimates = {
            s: replace(e, prediction=_at_assumed_rates(study, e)) if s in found else e
            for s, e in estimates.items()
        }
    return {
        s: replace(e, prediction=of.applied(e.prediction), factor=of.factor, near=of.near)
        if (of := found.get(s))
        else e
        for s, e in estimates.items()
    }


def _at_assumed_rates(study: Study, found: "Estimate") -> Prediction:
    _, step = predicted(study.question, found.settings, None)
    return replace(
        found.prediction,
        step_time_s=step,
        tokens_per_s_per_gpu=speed_of(step, study.question),
        why="" if found.prediction.fits else found.prediction.why,
    )
