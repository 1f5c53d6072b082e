import random
from math import log
from statistics import mean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tuner.core.quantity import QUANTILE
from tuner.planner.step_times import Seen, joint_ends
from tuner.planner.timing import RunVariation

KNOWN = RunVariation(squares=400 * 0.01**2, freedom=400)
"""Runs differ by 1%, as many repetitions have shown."""
HALF = QUANTILE * 0.01


def seen(value: float, runs: int = 1, steps: float = 0.0) -> Seen:
    return Seen(value=value, runs=runs, steps=steps)


def ends(*values: float, variation: RunVariation = KNOWN) -> tuple[tuple[float, float], ...]:
    return joint_ends(tuple(map(seen, values)), variation)


def width(found: tuple[float, float]) -> float:
    return found[1] - found[0]


def test_what_is_clearly_faster_keeps_its_interval() -> None:
    low, high = ends(0.0, *(0.08 + 0.005 * n for n in range(8)))[0]
    assert low == pytest.approx(-HALF, abs=0.0015)
    assert high == pytest.approx(HALF, abs=0.0015)


def test_contenders_that_agree_support_each_other() -> None:
    for low, high in ends(*[0.5] * 8):
        assert 0.5 - 0.7 * HALF < low < 0.5 < high < 0.5 + 0.7 * HALF
        assert low + high == pytest.approx(1.0, abs=1e-4)


def test_a_little_ahead_of_many_is_mostly_variation() -> None:
    low, high = ends(-0.02, *(0.001 * n - 0.004 for n in range(9)))[0]
    assert low > -0.02
    assert -0.005 < high < 0.005


def test_contenders_that_agree_show_that_variation_is_small() -> None:
    """One run each: nothing was repeated, and yet intervals narrow."""
    own = RunVariation().half_width(1)
    assert width(ends(*[0.001 * n for n in range(12)], variation=RunVariation())[5]) < 0.5 * own


def test_what_was_run_more_often_and_steadily_moves_less() -> None:
    others = tuple(seen(0.02 + 0.001 * n) for n in range(6))
    for better, worse in ((seen(0.0, runs=4), seen(0.0)), (seen(0.0), seen(0.0, steps=0.02**2))):
        (_, high), (_, higher) = (joint_ends((one, *others), KNOWN)[0] for one in (better, worse))
        assert high < higher - 0.002


VALUES = st.floats(-0.3, 0.3)


@settings(max_examples=examples(15))
@given(
    rows=st.lists(st.tuples(VALUES, st.integers(1, 3), st.floats(0, 0.1)), min_size=2, max_size=10),
    freedom=st.integers(1, 50),
    order=st.randoms(use_true_random=False),
)
def test_the_order_does_not_matter(
    rows: list[tuple[float, int, float]], freedom: int, order: random.Random
) -> None:
    variation = RunVariation(squares=freedom * 0.02**2, freedom=freedom)
    contenders = [seen(value, runs, steps**2) for value, runs, steps in rows]
    found = dict(zip(contenders, joint_ends(tuple(contenders), variation), strict=True))
    assert all(low < high for low, high in found.values())
    shuffled = tuple(order.sample(contenders, len(contenders)))
    for one, again in zip(shuffled, joint_ends(shuffled, variation), strict=True):
        assert again == pytest.approx(found[one], abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("count", [2, 4, 9])
def test_the_fastest_is_covered_whatever_the_spread(spread: float, count: int) -> None:
    """Variation is known here; of 9 that are equal, the fastest one's own interval covers 39%."""
    draw, own, joint = random.Random(f"{spread} {count}"), [], []
    for _ in range(150):
        truths = [log(2.0) + spread * draw.gauss(0, 1) for _ in range(count)]
        values = [truth + 0.01 * draw.gauss(0, 1) for truth in truths]
        best = min(range(count), key=values.__getitem__)
        low, high = ends(*values)[best]
        own.append(abs(truths[best] - values[best]) <= HALF)
        joint.append(low <= truths[best] <= high)
    assert 0.72 <= mean(joint) <= 0.9, (mean(own), mean(joint))
    if count > 2 and spread < 0.03:
        assert mean(own) < mean(joint) - 0.05
