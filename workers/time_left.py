"""What an asking's budget leaves of a worker's time."""

import math
from collections.abc import Sequence

from tuner.measurement import Fidelity
from tuner.planner.budget import device_time_is_spent, remaining_device_time_s, wall_is_spent
from tuner.study import Study


class TimeLeft:
    """What is left of a study's budgets of time and of device-seconds.

    Args:
        study: with its probes that are done.
        worked_s: seconds that the worker has been at this asking, by a clock that nobody sets.
            The time that a study waits for a worker is not counted, nor is what the worker did
            for an earlier asking.
        running_s: seconds for which each probe of the worker's runs already.
        limited: off where the budget is not for what the worker does.
    """

    def __init__(
        self,
        study: Study,
        worked_s: float,
        running_s: Sequence[float] = (),
        *,
        limited: bool = True,
    ) -> None:
        self._study = study.at(study.terms.fidelity)
        self._worked_s = worked_s
        self._running_s = running_s
        self._limited = limited

    @property
    def seconds(self) -> float:
        """That this asking may still take; infinite without a budget."""
        budget_s = self._study.terms.wall_s
        if budget_s is None or not self._limited:
            return math.inf
        return budget_s - self._worked_s

    @property
    def of_running_s(self) -> float:
        """Seconds for which the probes may run on: what they hold devices for counts too."""
        return min(self.seconds, self._devices_s / max(len(self._running_s), 1))

    @property
    def why_spent(self) -> str:
        """Which budget is spent; empty while no time is."""
        budget_s = self._study.terms.wall_s
        if budget_s is not None and self.seconds <= 0:  # infinite where it is not limited
            return wall_is_spent(budget_s)
        if not self._limited or self._devices_s > 0:
            return ""
        assert self._study.terms.device_s is not None
        return device_time_is_spent(self._study.terms.device_s)

    @property
    def _devices_s(self) -> float:
        """Seconds for which one probe more may hold its devices, beside what others have held."""
        if not self._limited or self._study.terms.fidelity is Fidelity.PREDICTED:
            return math.inf  # a dry run holds none
        return remaining_device_time_s(self._study) - math.fsum(self._running_s)
