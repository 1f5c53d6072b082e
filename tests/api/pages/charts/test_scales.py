"""Places of numbers, and round ones among them."""

from itertools import pairwise
from math import floor, isclose, log10

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages.charts.scales import Scale, nice_step, reach, scale_for

numbers = st.floats(min_value=1e-6, max_value=1e12)
many = st.lists(numbers, min_size=1, max_size=30)


def is_nice(step: float) -> bool:
    leading = step / 10.0 ** floor(log10(step) + 1e-9)
    return any(isclose(leading, m, rel_tol=1e-6) for m in (1, 2, 5, 10))


@given(numbers)
def test_steps_are_1_2_or_5(least: float) -> None:
    step = nice_step(least)
    assert is_nice(step)
    assert least * (1 - 1e-6) <= step <= 2.5 * least * (1 + 1e-6)


@pytest.mark.parametrize(
    ("least", "step"), [(1, 1), (1.1, 2), (2.1, 5), (5.1, 10), (0.03, 0.05), (1628, 2000)]
)
def test_known_steps(least: float, step: float) -> None:
    assert nice_step(least) == pytest.approx(step)


@given(many, st.integers(min_value=1, max_value=8))
def test_linear_ticks_are_multiples_of_a_nice_step_within_the_scale(
    values: list[float], count: int
) -> None:
    scale = Scale(low=scale_for(values).low, high=scale_for(values).high)
    ticks = scale.ticks(count)
    assert 1 <= len(ticks) <= max(count + 1, 3)
    assert list(ticks) == sorted(set(ticks))
    slack = 1e-6 * (scale.high - scale.low)
    assert all(scale.low - slack <= t <= scale.high + slack for t in ticks)
    gaps = [b - a for a, b in pairwise(ticks)]
    assert all(is_nice(gap) and isclose(gap, gaps[0], rel_tol=1e-6) for gap in gaps)


@given(numbers, st.floats(min_value=20, max_value=1e9), st.integers(min_value=2, max_value=8))
def test_logarithmic_ticks_are_1_2_or_5_times_powers_of_ten(
    low: float, ratio: float, count: int
) -> None:
    ticks = Scale(low=low, high=low * ratio, is_log=True).ticks(count)
    assert 1 <= len(ticks) <= max(count, 2)
    assert all(is_nice(tick) for tick in ticks)
    assert all(low <= tick <= low * ratio for tick in ticks)


@given(many, st.lists(numbers, max_size=2))
def test_every_number_lies_on_its_scale(values: list[float], include: list[float]) -> None:
    scale = scale_for(values, include=include)
    for value in (*values, *include):
        assert scale.low <= value <= scale.high
    order = sorted((*values, *include))
    places = [scale.at(value) for value in order]
    assert places == sorted(places)


@pytest.mark.parametrize("value", [0.0, 1e-9, 5000.0, 1e12, -3.0])
def test_one_value_lies_in_the_middle_of_a_scale_that_is_not_too_fine(value: float) -> None:
    scale = scale_for([value, value, value])
    assert 0 <= scale.at(value) <= 1
    assert scale.high - scale.low >= 0.2 * abs(value)
    assert scale.ticks(6)


def test_nothing_has_a_scale_too() -> None:
    assert scale_for([]) == Scale(low=0.0, high=1.0)


def test_a_scale_starts_at_0_where_that_is_no_waste() -> None:
    assert scale_for([5210.0, 9412.0, 3000.0]).low == 0
    assert scale_for([8900.0, 9412.0]).low > 0


def test_logarithms_only_where_half_would_be_crowded() -> None:
    assert scale_for([1.0, 3.0, 10.0, 100.0, 1000.0]).is_log
    assert not scale_for([10.0, 9000.0, 9100.0, 9400.0]).is_log, "one slow settings is no reason"
    assert not scale_for([0.0, 1.0, 2.0, 1000.0]).is_log, "0 has no logarithm"
    assert scale_for([0.3, 0.5], include=[76.0]).is_log, "a small model on a large device"


def test_what_lies_beyond_is_put_at_the_end() -> None:
    scale = Scale(low=10.0, high=20.0)
    assert (scale.at(5.0), scale.at(15.0), scale.at(99.0)) == (0.0, 0.5, 1.0)


def test_fewer_ticks_where_more_do_not_fit() -> None:
    scale = Scale(low=0.0, high=10.0)
    assert scale.fitting(6, lambda ticks: len(ticks) <= 3) == (0, 5, 10)
    assert scale.fitting(6, lambda ticks: False) == (0,)


def test_wide_intervals_may_leave_the_scale() -> None:
    assert reach(10.0, 1.0, 12.0) == (5.0, 10.0, 12.0)
    assert reach(10.0, 9.0, 1e9) == (9.0, 10.0, 20.0)
