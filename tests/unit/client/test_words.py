"""Figures of an answer in words."""

import pytest

from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.words import range_text, speed_text


@pytest.mark.parametrize(
    ("speed", "text"), [(None, "-"), (3.456, "3.46"), (99.94, "99.9"), (1243.4, "1,243")]
)
def test_speeds_have_three_digits(speed: float | None, text: str) -> None:
    assert speed_text(speed) == text


def test_an_interval_has_two_ends() -> None:
    speed = Quantity(value=1243.0, low=1201.0, high=1260.4, provenance=Provenance.MEASURED)
    assert range_text(speed) == "1,201 to 1,260"
    assert range_text(UNKNOWN) == "- to -"
