"""Plans the next probe, when to stop, and the answer: pure functions of a study.

The planner keeps nothing between two calls. It reads the study's probes, says what is known
under today's memory limit, and decides; whoever calls it enters the decision into the store.
"""

from tuner.planner.answer import answer, is_answered, what_trained_wrongly, why_unprobed
from tuner.planner.finalists import to_guard
from tuner.planner.next import next_probe
from tuner.planner.predicted_answer import (
    has_predicted_answer,
    what_is_needed,
    what_is_wrong,
    why_no_speed,
)
from tuner.planner.probes import fits, probe_as_dict
from tuner.planner.spending import Stop, Wait
from tuner.planner.timing import speed_of, step_time

__all__ = [
    "Stop",
    "Wait",
    "answer",
    "fits",
    "has_predicted_answer",
    "is_answered",
    "next_probe",
    "probe_as_dict",
    "speed_of",
    "step_time",
    "to_guard",
    "what_is_needed",
    "what_is_wrong",
    "what_trained_wrongly",
    "why_no_speed",
    "why_unprobed",
]
