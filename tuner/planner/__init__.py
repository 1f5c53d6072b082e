"""Plans the next probe, when to stop, and the answer: pure functions of a study.

The planner keeps nothing between two calls. It reads the study's probes, says what is known
under today's memory limit, and decides; whoever calls it enters the decision into the store.
:mod:`tuner.explain` makes facts and words of what it knows.
"""

from tuner.planner.answer import answer as planned_answer
from tuner.planner.answer import is_answered
from tuner.planner.dry_runs import what_is_needed
from tuner.planner.next import next_probe
from tuner.planner.probes import fits, probe_as_dict
from tuner.planner.ranking import to_guard
from tuner.planner.spending import Stop, Wait
from tuner.planner.timing import speed_of, step_time

__all__ = [
    "Stop",
    "Wait",
    "fits",
    "is_answered",
    "next_probe",
    "planned_answer",
    "probe_as_dict",
    "speed_of",
    "step_time",
    "to_guard",
    "what_is_needed",
]
