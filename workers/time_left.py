"""What an asking's budget leaves of a worker's time."""

import math
from datetime import UTC, datetime

from tuner.planner.budget import device_time_is_spent, remaining_device_time_s, wall_is_spent
from tuner.study import Study


class TimeLeft:
    """What is left of a study's budgets of time and of device-seconds.

    Args:
        study: with its probes that are done.
        worked_s: seconds that the worker has been at it. The time that a study waits for a
            worker is not counted, nor is what the worker did for an earlier asking.
        limited: off where the budget is not for what the worker does.
    """

    def __init__(self, study: Study, worked_s: float, *, limited: bool = True) -> None:
        self._study = study.at(study.terms.fidelity)
        self._worked_s = worked_s
        self._limited = limited

    @property
    def seconds(self) -> float:
        """That this asking may still take; infinite without a budget."""
        budget_s = self._study.terms.wall_s
        if budget_s is None or not self._limited:
            return math.inf
        asked_s = (datetime.now(UTC) - datetime.fromisoformat(self._study.asked_at)).total_seconds()
        return budget_s - min(self._worked_s, asked_s)

    @property
    def of_probe_s(self) -> float:
        """Seconds that the next probe may take: what it holds devices for counts too."""
        if not self._limited:
            return math.inf
        return min(self.seconds, remaining_device_time_s(self._study))

    @property
    def why_spent(self) -> str:
        """Which budget is spent; empty while no time is."""
        budget_s = self._study.terms.wall_s
        if budget_s is not None and self.seconds <= 0:  # infinite where it is not limited
            return wall_is_spent(budget_s)
        return device_time_is_spent(self._study) if self._limited else ""
