"""Intervals hold what they promise: on planted noise, 80% intervals hold the truth in 80%."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from statistics import mean

import pytest

from tuner.core.measurement import Measurement, Outcome
from tuner.planner.timing import ASSUMED, RunVariation, counts_to_run, seen_variation, step_time

Noise = Callable[[random.Random], float]
"""What one step's time is multiplied by; its median is 1, or nearly."""

RARELY_SLOW = [1.0] * 19 + [3.0]

NOISES = {
    "none": lambda _: 1.0,
    "1%": lambda draw: 1 + 0.01 * draw.gauss(0, 1),
    "5%": lambda draw: 1 + 0.05 * draw.gauss(0, 1),
    "skewed": lambda draw: exp(0.3 * draw.gauss(0, 1)),
    "rare slow steps": lambda draw: (1 + 0.02 * draw.gauss(0, 1)) * draw.choice(RARELY_SLOW),
}


@dataclass(frozen=True, slots=True)
class Planted:
    """A machine on which runs differ in variation, and steps in noise."""

    noise: Noise
    variation: float
    """Standard deviation of the logarithm of a run's time."""

    def run(self, draw, truth, count):
        """Up to ten timed steps, of short accumulations where ``count`` is long."""
        lucky, steps = exp(self.variation * draw.gauss(0, 1)), draw.choice([3, 4, 5, 7, 10, 10])
        times = {
            n: tuple(truth(n) * lucky * self.noise(draw) for _ in range(steps))
            for n in counts_to_run(count) or (count,)
        }
        return Measurement(outcome=Outcome.OK, step_times_s=times)


def a_variation(draw):
    """A machine's, from the distribution that is assumed: scaled inverse chi squared."""
    return ASSUMED / max(abs(draw.gauss(0, 1)), 0.05)


def covered(noise, *, runs, count, variation=None):
    """Part of 400 settings, each on a machine of its own, whose truth lies in the interval."""
    draw, inside = random.Random(f"{runs} {count} {variation}"), 0
    for _ in range(400):
        fixed, each = draw.uniform(0.02, 0.6), draw.uniform(0.1, 2.0)
        planted = Planted(noise, a_variation(draw) if variation is None else variation)

        def truth(n, fixed=fixed, each=each):
            return fixed + n * each

        found = step_time([planted.run(draw, truth, count) for _ in range(runs)], count)
        inside += found.low <= truth(count) <= found.high
    return inside / 400


@pytest.mark.parametrize("noise", NOISES)
def test_intervals_cover_on_machines_of_any_variation(noise):
    """Single probes, repeated finalists and long accumulations: 2,400 probes of each noise.

    Variation is drawn from what is assumed of it. Where steps vary much, too, more are covered: the
    two parts of an interval are each as wide as alone.
    """
    cases = [(1, 1), (2, 1), (3, 1), (1, 64), (2, 64), (1, 256)]
    found = [covered(NOISES[noise], runs=runs, count=count) for runs, count in cases]
    assert all(0.74 <= share <= 0.96 for share in found), found
    assert 0.78 <= mean(found) <= 0.93, found


@pytest.mark.parametrize("variation", [0.005, 0.02, 0.05])
def test_repetitions_of_some_settings_tell_the_variation_of_all(variation):
    """After three repeated settings, intervals of others that ran once cover about 80% too."""
    draw, planted, inside = random.Random(7), Planted(NOISES["1%"], variation), 0
    for _ in range(400):
        runs = [[planted.run(draw, lambda _: 1.0, 1) for _ in range(2)] for _ in range(3)]
        found = step_time([planted.run(draw, lambda _: 1.0, 1)], 1, variation=seen_variation(runs))
        inside += found.low <= 1.0 <= found.high
    assert 0.72 <= inside / 400 <= 0.97


def test_the_median_alone_covers_without_variation():
    """The part of the steps, for itself, by the number of steps."""
    draw = random.Random(1)
    for n in (2, 3, 4, 5, 7, 10, 20):
        inside = 0
        for _ in range(1000):
            steps = tuple(draw.lognormvariate(0, 0.3) for _ in range(n))
            one = Measurement(outcome=Outcome.OK, step_times_s={1: steps})
            found = step_time([one], 1, variation=RunVariation(squares=0.0))
            inside += found.low <= 1.0 <= found.high
        assert 0.76 <= inside / 1000 <= 0.88, (n, inside / 1000)
