import random
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.measurement import Measurement, Outcome
from tuner.planner.timing import alike, counts_to_run, is_extrapolated, step_time
from tuner.quantity import Provenance, Quantity


def run(**counts: list[float]) -> Measurement:
    """``run(n4=[...])`` timed those steps of four micro-batches."""
    return Measurement(
        outcome=Outcome.OK,
        step_times_s={int(name[1:]): tuple(steps) for name, steps in counts.items()},
    )


def ends(found: Quantity) -> tuple[float | None, float | None, float | None]:
    return found.low, found.value, found.high


def test_the_median_and_its_order_statistics() -> None:
    steps = [float(n) for n in range(1, 11)]
    # between the 3rd and the 8th of ten: 1 - 2 * 56 / 1024 = 89%
    assert ends(step_time([run(n1=steps)], 1)) == (3.0, 5.5, 8.0)
    assert step_time([run(n1=steps)], 1).provenance is Provenance.MEASURED


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([2.0], (1.5, 2.0, 2.5)),
        ([2.0, 2.2], (1.8, 2.1, 2.4)),
        ([2.0, 2.1, 2.4], (1.9, 2.1, 2.5)),
        ([2.0, 2.1, 2.2, 2.4], (2.0, 2.15, 2.4)),
        ([1.0, 9.0], (0.5, 5.0, 17.0)),
    ],
)
def test_few_steps_widen_the_interval(steps: list[float], expected: tuple[float, ...]) -> None:
    assert ends(step_time([run(n1=steps)], 1)) == pytest.approx(expected)


def test_intervals_cover_the_true_median_as_often_as_they_say() -> None:
    draw = random.Random(1)
    for n in (4, 5, 7, 10, 20):
        inside = 0
        for _ in range(600):
            found = step_time([run(n1=[draw.lognormvariate(0, 0.3) for _ in range(n)])], 1)
            inside += found.low <= 1.0 <= found.high
        assert 0.78 <= inside / 600 <= 0.96, n


def test_repetitions_are_pooled_and_their_spread_shows() -> None:
    found = step_time([run(n1=[1.0] * 10), run(n1=[1.2] * 10)], 1)
    assert ends(found) == pytest.approx((1.0, 1.1, 1.2))
    assert step_time([run(n1=[1.0] * 10), run(n1=[1.0] * 3)], 1).high == 1.0


def test_long_accumulation_lies_on_the_line() -> None:
    found = step_time([run(n2=[2.5] * 10, n4=[4.5] * 10)], 64)
    assert ends(found) == pytest.approx((64.5, 64.5, 64.5))
    assert found.provenance is Provenance.PREDICTED
    assert is_extrapolated([run(n2=[2.5], n4=[4.5])], 64)


def test_the_lever_widens_the_interval() -> None:
    spread = [-0.2, -0.1, -0.1, -0.1, 0.0, 0.0, 0.1, 0.1, 0.1, 0.2]
    measured = run(n2=[2.5 + d for d in spread], n4=[4.5 + d for d in spread])
    near, far = step_time([measured], 8), step_time([measured], 64)
    assert far.value == pytest.approx(64.5)
    assert far.high - far.low > 5 * (near.high - near.low)


def test_noise_cannot_bend_the_line_out_of_reason() -> None:
    falling = step_time([run(n2=[5.0] * 10, n4=[4.0] * 10)], 64)
    assert falling.value == 4.0
    steep = step_time([run(n2=[0.1] * 10, n4=[4.0] * 10)], 64)
    assert steep.value == 64.0  # 4 s for 4 micro-batches: at most 1 s for each


def test_steps_at_the_full_count_overrule_the_line() -> None:
    found = step_time([run(n2=[2.5] * 10, n4=[4.5] * 10), run(n64=[60.0] * 5)], 64)
    assert found.value == 60.0
    assert found.provenance is Provenance.MEASURED
    assert not is_extrapolated([run(n2=[2.5]), run(n64=[60.0])], 64)


def test_nothing_timed_is_unknown() -> None:
    assert step_time([], 4).value is None
    assert step_time([Measurement(outcome=Outcome.OOM)], 4).value is None
    assert step_time([run(n2=[1.0])], 64).value is None
    assert step_time([run(n2=[1.0], n8=[3.0])], 4).value is None


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    runs=st.lists(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12), min_size=1, max_size=4),
    order=st.randoms(use_true_random=False),
)
def test_order_does_not_matter_and_the_interval_holds_the_value(
    runs: list[list[float]], order: random.Random
) -> None:
    measured = [run(n1=steps) for steps in runs]
    found = step_time(measured, 1)
    shuffled = [run(n1=order.sample(steps, len(steps))) for steps in runs]
    order.shuffle(shuffled)
    assert step_time(shuffled, 1) == found
    assert 0 < found.low <= found.value <= found.high
    assert found.value == median(step for steps in runs for step in steps)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    few=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
    many=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8),
    count=st.integers(5, 1000),
)
def test_the_line_is_always_a_quantity(few: list[float], many: list[float], count: int) -> None:
    found = step_time([run(n2=few, n4=many)], count)
    assert 0 < found.low <= found.value <= found.high
    assert median(many) <= found.value <= median(many) * count / 4 * (1 + 1e-9)


def test_only_long_accumulation_is_cut_short() -> None:
    assert counts_to_run(1) == counts_to_run(8) == ()
    assert counts_to_run(9) == (2, 4)


def test_values_are_alike_when_each_lies_in_the_others_interval() -> None:
    def q(low: float, value: float, high: float) -> Quantity:
        return Quantity(value=value, low=low, high=high, provenance=Provenance.MEASURED)

    assert alike(q(1, 1.5, 2), q(1.2, 1.9, 2.5))
    assert not alike(q(1, 1.5, 2), q(1.6, 2.2, 3))  # the intervals overlap, and that is all
    assert not alike(q(0.4, 0.55, 1.0), q(0.63, 0.81, 1.1))  # a noisy one and a slower one
