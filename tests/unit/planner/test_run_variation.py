from math import log, sqrt

import pytest

from tuner.core.measurement import Measurement, Outcome
from tuner.core.quantity import QUANTILE
from tuner.planner.timing import ASSUMED, STUDENT, RunVariation, seen_variation


def run(times: dict[int, float]) -> Measurement:
    """Three equal steps by count."""
    return Measurement(
        outcome=Outcome.OK, step_times_s={count: (one,) * 3 for count, one in times.items()}
    )


def test_what_was_run_once_shows_none() -> None:
    assert (
        seen_variation([]) == seen_variation([[run({1: 1.0})], [run({1: 3.0})]]) == RunVariation()
    )
    assert RunVariation().half_width(1) == pytest.approx(STUDENT[0] * ASSUMED)


def test_repetitions_of_all_settings_are_pooled() -> None:
    found = seen_variation([[run({1: 1.0}), run({1: 1.1})], [run({1: 5.0}), run({1: 5.5})]])
    assert found.freedom == 3
    assert found.squares == pytest.approx(ASSUMED**2 + log(1.1) ** 2)
    assert found.half_width(2) == pytest.approx(STUDENT[2] * sqrt(found.squares / 3 / 2))


def test_steps_of_one_run_count_once_and_only_equal_ones_are_compared() -> None:
    short, full = run({2: 1.0, 4: 2.0}), run({64: 40.0})
    assert seen_variation([[short, full]]) == RunVariation()
    again = seen_variation([[short, run({2: 1.1, 4: 2.2}), full]])
    assert again.freedom == 2
    assert again.squares == pytest.approx(ASSUMED**2 + log(1.1) ** 2 / 2)
    assert seen_variation([[Measurement(outcome=Outcome.OOM)] * 2]) == RunVariation()


def test_many_repetitions_leave_the_normal_interval() -> None:
    wide = [
        RunVariation(squares=freedom * 0.02**2, freedom=freedom).half_width(1)
        for freedom in range(1, 60)
    ]
    assert wide == sorted(wide, reverse=True)
    assert wide[-1] == pytest.approx(QUANTILE * 0.02, rel=0.02)
    assert wide[4] == pytest.approx(1.4759 * 0.02, rel=0.002)  # five degrees of freedom
