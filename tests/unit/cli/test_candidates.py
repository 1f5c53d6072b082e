"""Sizes of a predicted answer, as people read them."""

import pytest

from tuner.cli.candidates import sizes_text
from tuner.core.quantity import UNKNOWN, Provenance, Quantity


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (12.5, 12.1, 12.9, "12.5 GiB (12.1 to 12.9)"),
        (12.5, 12.5, 12.5, "12.5 GiB"),
        (79.6, 70.1, 79.6, "up to 79.6 GiB (at least 70.1)"),
    ],
)
def test_a_size_has_its_interval(value: float, low: float, high: float, text: str) -> None:
    quantity = Quantity(value=value, low=low, high=high, provenance=Provenance.PREDICTED)
    assert sizes_text(quantity) == text


def test_an_unknown_size_is_named_so() -> None:
    assert sizes_text(UNKNOWN) == "unknown"
