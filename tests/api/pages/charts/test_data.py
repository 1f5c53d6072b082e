"""Numbers that charts refuse, and those that they take from quantities."""

from dataclasses import replace
from math import inf, nan

import pytest

from api.pages.charts import Interval
from tests.api.pages.charts.examples import steps
from tuner.quantity import UNKNOWN, Provenance, Quantity


def quantity(low: float, value: float, high: float) -> Quantity:
    return Quantity(value=value, low=low, high=high, provenance=Provenance.MEASURED)


def test_an_interval_of_a_quantity() -> None:
    assert Interval.of(quantity(1.0, 2.0, 4.0)) == Interval(value=2.0, low=1.0, high=4.0)


def test_nothing_is_drawn_of_what_is_unknown_or_endless() -> None:
    assert Interval.of(UNKNOWN) is None
    assert Interval.of(quantity(1.0, 2.0, inf)) is None


@pytest.mark.parametrize("ends", [(2.0, 1.0, 3.0), (1.0, nan, 3.0), (1.0, 2.0, inf)])
def test_an_interval_is_in_order_and_finite(ends: tuple[float, float, float]) -> None:
    low, value, high = ends
    with pytest.raises(AssertionError):
        Interval(value=value, low=low, high=high)


def test_a_step_is_finite() -> None:
    (step,) = steps(1.0)
    with pytest.raises(AssertionError):
        replace(step, best=nan)
