"""Rates of this card as they were measured, in the place of the catalogue's."""

from typing import Protocol

from probe_cases import Case


class Calibration(Protocol):
    """Measured rates."""

    def computing_s(self, case: Case) -> float:
        """Seconds that one GPU computes in a step of a case, by these rates."""


def calibration() -> Calibration | None:
    """The calibration of this machine's card; ``None`` where there is none.

    Figures "after calibration" then stay unmeasured.
    """
    return None
