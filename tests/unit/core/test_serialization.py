"""Dataclasses as JSON values, and read back."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from tuner.core.measurement import Outcome
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.serialization import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole(Plain):
    form = 2

    outcome: Outcome
    time: Quantity = UNKNOWN
    part: Part | None = None
    parts: Mapping[int, tuple[Part, ...]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)


def test_what_is_written_is_read_back():
    known = Quantity(value=2.0, low=1.0, high=3.0, provenance=Provenance.MEASURED)
    part = Part(sizes=(1, 2))
    for whole in (
        Whole(outcome=Outcome.OK),
        Whole(outcome=Outcome.OOM, time=known, part=part, parts={3: (part,)}, names={"a": "b"}),
    ):
        values = json.loads(json.dumps(whole.as_dict()))
        assert list(values) == ["format", "outcome", "time", "part", "parts", "names"]
        assert Whole.from_dict(values) == whole


def test_what_cannot_be_is_not_read():
    good = Whole(outcome=Outcome.OK).as_dict()
    for wrong in (
        {"format": 1}, {"format": None}, {"outcome": "odd"}, {"odd": 1}, {"part": {"odd": 1}},
        {"part": [1]}, {"parts": [1]}, {"parts": {"x": []}}, {"time": "fast"},
    ):  # fmt: skip
        with pytest.raises((ValueError, TypeError)):
            Whole.from_dict({**good, **wrong})
