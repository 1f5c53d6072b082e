"""Times of steps, and how far apart runs of the same settings are."""

from math import log, sqrt
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tuner.core.measurement import Measurement, Outcome
from tuner.core.quantity import QUANTILE, Provenance, Quantity
from tuner.planner.timing import (
    ASSUMED,
    STUDENT,
    RunVariation,
    alike,
    is_extrapolated,
    seen_variation,
    step_time,
)

NO_VARIATION = RunVariation(squares=0.0)
"""Runs differ by nothing but their steps."""


def run(**counts):
    """``run(n4=[...])`` timed those steps of four micro-batches."""
    return Measurement(
        outcome=Outcome.OK,
        step_times_s={int(name[1:]): tuple(steps) for name, steps in counts.items()},
    )


def ends(found):
    return found.low, found.value, found.high


def test_the_median_and_its_order_statistics():
    steps = [float(n) for n in range(1, 11)]
    # the 3rd and the 8th of ten carry 1 - 2 * 56 / 1024 = 89%, the 4th and the 7th 66%
    low, value, high = ends(step_time([run(n1=steps)], 1, variation=NO_VARIATION))
    assert low == pytest.approx(3.59, abs=0.01)
    assert high == pytest.approx(7.41, abs=0.01)
    assert value == 5.5
    assert step_time([run(n1=steps)], 1).provenance is Provenance.MEASURED


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([2.0], (1.5, 2.0, 2.5)),
        ([2.0, 2.2], (1.8, 2.1, 2.4)),
        ([2.0, 2.1, 2.4], (1.9, 2.1, 2.5)),
        ([2.0, 2.1, 2.2, 2.4], (2.035, 2.15, 2.331)),
        ([1.0, 9.0], (0.5, 5.0, 17.0)),
    ],
)
def test_few_steps_widen_the_interval(steps, expected):
    found = step_time([run(n1=steps)], 1, variation=NO_VARIATION)
    assert ends(found) == pytest.approx(expected, abs=0.001)


def test_one_run_does_not_show_its_luck():
    low, value, high = ends(step_time([run(n1=[2.0] * 10)], 1))
    assert value == 2.0
    assert log(high / value) == pytest.approx(log(value / low)) == pytest.approx(0.0308, abs=1e-4)


def test_repetitions_that_agree_narrow_the_interval_and_others_widen_it():
    once, same, other = (
        step_time([run(n1=[seconds] * 10) for seconds in runs], 1)
        for runs in ((1.0,), (1.0, 1.0), (1.0, 1.2))
    )
    assert same.high - same.low < (once.high - once.low) / 3
    assert other.low < 1.03
    assert other.high > 1.17


def test_long_accumulation_lies_on_the_line():
    found = step_time([run(n2=[2.5] * 10, n4=[4.5] * 10)], 64, variation=NO_VARIATION)
    assert ends(found) == pytest.approx((64.5, 64.5, 64.5))
    assert found.provenance is Provenance.PREDICTED
    assert is_extrapolated([run(n2=[2.5], n4=[4.5])], 64)


def test_the_lever_widens_the_interval():
    spread = [-0.2, -0.1, -0.1, -0.1, 0.0, 0.0, 0.1, 0.1, 0.1, 0.2]
    measured = run(n2=[2.5 + d for d in spread], n4=[4.5 + d for d in spread])
    near, far = step_time([measured], 8), step_time([measured], 64)
    assert far.value == pytest.approx(64.5)
    assert far.high - far.low > 5 * (near.high - near.low)


def test_noise_cannot_bend_the_line_out_of_reason():
    falling = step_time([run(n2=[5.0] * 10, n4=[4.0] * 10)], 64)
    assert falling.value == 4.0
    steep = step_time([run(n2=[0.1] * 10, n4=[4.0] * 10)], 64)
    assert steep.value == 64.0  # 4 s for 4 micro-batches: at most 1 s for each


def test_steps_at_the_full_count_overrule_the_line():
    found = step_time([run(n2=[2.5] * 10, n4=[4.5] * 10), run(n64=[60.0] * 5)], 64)
    assert found.value == 60.0
    assert found.provenance is Provenance.MEASURED
    assert not is_extrapolated([run(n2=[2.5]), run(n64=[60.0])], 64)


def test_nothing_timed_is_unknown():
    assert step_time([], 4).value is None
    assert step_time([Measurement(outcome=Outcome.OOM)], 4).value is None
    assert step_time([run(n2=[1.0])], 64).value is None
    assert step_time([run(n2=[1.0], n8=[3.0])], 4).value is None


@settings(max_examples=examples(20))
@given(
    runs=st.lists(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_order_does_not_matter_and_the_interval_holds_the_value(runs, order):
    measured = [run(n1=steps) for steps in runs]
    found = step_time(measured, 1)
    shuffled = [run(n1=order.sample(steps, len(steps))) for steps in runs]
    order.shuffle(shuffled)
    assert step_time(shuffled, 1) == found
    assert 0 < found.low <= found.value <= found.high
    assert found.value == median(median(steps) for steps in runs)


def test_values_are_alike_when_each_lies_in_the_others_interval():
    def q(low, value, high):
        return Quantity(value=value, low=low, high=high, provenance=Provenance.MEASURED)

    assert alike(q(1, 1.5, 2), q(1.2, 1.9, 2.5))
    assert not alike(q(1, 1.5, 2), q(1.6, 2.2, 3))  # the intervals overlap, and that is all
    assert not alike(q(0.4, 0.55, 1.0), q(0.63, 0.81, 1.1))  # a noisy one and a slower one


def steady(times):
    """Three equal steps by count."""
    return Measurement(
        outcome=Outcome.OK, step_times_s={count: (one,) * 3 for count, one in times.items()}
    )


def test_what_was_run_once_shows_none():
    assert (
        seen_variation([])
        == seen_variation([[steady({1: 1.0})], [steady({1: 3.0})]])
        == RunVariation()
    )
    assert RunVariation().half_width(1) == pytest.approx(STUDENT[0] * ASSUMED)


def test_repetitions_of_all_settings_are_pooled():
    found = seen_variation(
        [[steady({1: 1.0}), steady({1: 1.1})], [steady({1: 5.0}), steady({1: 5.5})]]
    )
    assert found.freedom == 3
    assert found.squares == pytest.approx(ASSUMED**2 + log(1.1) ** 2)
    assert found.half_width(2) == pytest.approx(STUDENT[2] * sqrt(found.squares / 3 / 2))


def test_steps_of_one_run_count_once_and_only_equal_ones_are_compared():
    short, full = steady({2: 1.0, 4: 2.0}), steady({64: 40.0})
    assert seen_variation([[short, full]]) == RunVariation()
    again = seen_variation([[short, steady({2: 1.1, 4: 2.2}), full]])
    assert again.freedom == 2
    assert again.squares == pytest.approx(ASSUMED**2 + log(1.1) ** 2 / 2)
    assert seen_variation([[Measurement(outcome=Outcome.OOM)] * 2]) == RunVariation()


def test_many_repetitions_leave_the_normal_interval():
    wide = [
        RunVariation(squares=freedom * 0.02**2, freedom=freedom).half_width(1)
        for freedom in range(1, 60)
    ]
    assert wide == sorted(wide, reverse=True)
    assert wide[-1] == pytest.approx(QUANTILE * 0.02, rel=0.02)
    assert wide[4] == pytest.approx(1.4759 * 0.02, rel=0.002)  # five degrees of freedom
