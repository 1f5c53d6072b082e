"""Rates of this card as they were measured, in the place of the catalogue's."""

from collections.abc import Mapping
from typing import Any, Protocol

from probe_cases import Case

from gpu.place import Place


class Rates(Protocol):
    """Measured rates."""

    def computing_s(self, case: Case) -> float:
        """Seconds that one GPU computes in a step of a case, by these rates."""

    def as_dict(self) -> Mapping[str, Any]:
        """For the result file: what is measured once holds for all runs."""


def calibration(place: Place, kept: Mapping[str, Any] | None) -> Rates | None:
    """The rates of this machine's card; ``None`` where there is no way to measure them.

    Figures "after calibration" then stay unmeasured.

    Args:
        place: whose.
        kept: what an earlier run has measured.
    """
    return None
