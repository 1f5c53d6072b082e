"""Predictions beside the best, in sentences."""

from dataclasses import replace

import pytest

from api.pages.what_if import against_best
from tests.unit.pages.what_if_studies import PREDICTOR
from tuner.core.quantity import Provenance, Quantity
from tuner.results import WhatIf

BEST, OTHER = (PREDICTOR.what_if(settings) for settings in PREDICTOR.choices.legal[:2])


def _quantity(value: float, off: float = 0.0) -> Quantity:
    return Quantity(value=value, low=value - off, high=value + off, provenance=Provenance.PREDICTED)


def _with(found: WhatIf, speed: Quantity, memory_gib: float) -> WhatIf:
    return replace(found, tokens_per_s_per_gpu=speed, memory_gib=_quantity(memory_gib))


@pytest.mark.parametrize(
    ("speed", "memory_gib", "said"),
    [
        (_quantity(110.0), 2.0, ("10% faster than", "1.00 GiB more memory than")),
        (_quantity(96.0), 0.5, ("4.0% slower than", "512 MiB less memory than")),
        (_quantity(100.0), 1.0, ("No faster and no slower than", "As much memory as")),
    ],
)
def test_differences_are_told_in_words(
    speed: Quantity, memory_gib: float, said: tuple[str, str]
) -> None:
    best = _with(BEST, _quantity(100.0), 1.0)
    changed, *rest = against_best(_with(OTHER, speed, memory_gib), best, "GPU")
    assert changed.startswith("Changed: ")
    assert [one.startswith(words) for one, words in zip(rest, said, strict=True)] == [True, True]
    assert "(100 tokens/s per GPU)" in rest[0]


def test_a_difference_within_the_intervals_is_said_to_be() -> None:
    best = _with(BEST, _quantity(100.0, 20.0), 1.0)
    _, near, _ = against_best(_with(OTHER, _quantity(110.0, 20.0), 1.0), best, "GPU")
    assert near.endswith(", which is less than either may be off by.")
    _, far, _ = against_best(_with(OTHER, _quantity(150.0, 20.0), 1.0), best, "GPU")
    assert "off by" not in far


def test_what_is_unknown_is_left_out() -> None:
    nothing = Quantity(value=None, low=None, high=None, provenance=Provenance.UNKNOWN)
    unknown = replace(OTHER, tokens_per_s_per_gpu=nothing, memory_gib=nothing)
    (changed,) = against_best(unknown, BEST, "GPU")
    assert changed.startswith("Changed: ")
