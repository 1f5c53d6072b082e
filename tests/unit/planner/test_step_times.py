"""Times of several settings, compared; what the fastest of many is believed to take."""

import random
from math import exp, log
from statistics import NormalDist, mean

import pytest

from tuner.core.configuration import Settings
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import QUANTILE, Provenance, Quantity
from tuner.planner.knowledge import learned
from tuner.planner.step_times import (
    REACH,
    Seen,
    _quantile,
    change_between,
    change_of,
    fair,
    joint_ends,
)
from tuner.planner.timing import RunVariation
from tuner.space import enumerate_space


def seconds(value, down, up):
    return Quantity(value=value, low=down, high=up, provenance=Provenance.MEASURED)


def times_of(step_time_s, spread_s):
    return Evaluation(settings=Settings(), step_time_s=step_time_s, spread_s=spread_s)


def test_a_change_is_a_ratio_with_an_interval():
    found = change_of(seconds(2.0, 2.0, 2.0), seconds(2.5, 2.4, 2.6))
    assert (found.ratio, found.low, found.high) == pytest.approx((1.25, 1.2, 1.3))
    assert found.is_clear


def test_the_interval_covers_80_percent():
    """Of planted ratios, seen through two timings whose errors are independent."""
    draw, covered, times = random.Random(0), 0, 4000
    for _ in range(times):
        one, other = draw.uniform(0.01, 0.1), draw.uniform(0.01, 0.1)
        seen = [exp(draw.gauss(0, one)), 1.3 * exp(draw.gauss(0, other))]
        ends = [
            seconds(value, value * exp(-QUANTILE * error), value * exp(QUANTILE * error))
            for value, error in zip(seen, (one, other), strict=True)
        ]
        found = change_of(*ends)
        covered += found.low <= 1.3 <= found.high
    assert 0.78 < covered / times < 0.82


def test_what_the_model_added_to_both_is_wrong_in_one_direction():
    exact = seconds(2.0, 2.0, 2.0)
    wide, wider = seconds(2.0, 1.8, 2.2), seconds(2.0, 1.6, 2.4)
    alike = change_between(times_of(wide, exact), times_of(wide, exact))
    assert (alike.low, alike.high) == pytest.approx((1.0, 1.0))
    unlike = change_between(times_of(wide, exact), times_of(wider, exact))
    assert (unlike.low, unlike.high) == pytest.approx((1.6 / 1.8, 2.4 / 2.2))


def known_of(lab, *seconds):
    """Of settings that fit and took so long each, in ten equal steps."""
    question = lab.question("cpu:2", 96)
    legal = enumerate_space(question).legal
    probes = [
        lab.probe(n, one, lab.ok(time, 2**28, count=one.gradient_accumulation_steps))
        for n, (one, time) in enumerate(zip(legal, seconds, strict=False), start=1)
    ]
    return learned(lab.study(question, probes=probes))


def both(lab, *seconds):
    """Findings, fastest first, and the fair ones."""
    known = known_of(lab, *seconds)
    moved = fair(known)
    return known.fitting, [moved[finding.settings] for finding in known.fitting]


def test_one_alone_and_those_far_behind_keep_their_intervals(lab):
    for seconds in ([1.0], [1.0, 1.0 + 1.1 * REACH]):
        alone, moved = both(lab, *seconds)
        assert list(alone) == moved
    assert both(lab, 1.0, 1.02, 2.0)[1][:2] == both(lab, 1.0, 1.02)[1]


def test_the_fastest_of_many_is_believed_to_be_a_lucky_one(lab):
    seconds = [1.0, *(1.02 + 0.001 * n for n in range(8))]
    (own, *_), (moved, *_) = both(lab, *seconds)
    assert moved.settings == own.settings
    assert moved.step_time_s.value == own.step_time_s.value == 1.0
    assert 1.0 - moved.step_time_s.low < 0.7 * (1.0 - own.step_time_s.low)
    assert moved.step_time_s.high > 1.02


KNOWN = RunVariation(squares=400 * 0.01**2, freedom=400)
"""Runs differ by 1%, as many repetitions have shown."""
HALF = QUANTILE * 0.01


def seen(value, runs=1, steps=0.0):
    return Seen(value=value, runs=runs, steps=steps)


def ends(*values, variation=KNOWN):
    return joint_ends(tuple(map(seen, values)), variation)


def test_what_is_clearly_faster_keeps_its_interval():
    low, high = ends(0.0, *(0.08 + 0.005 * n for n in range(8)))[0]
    assert low == pytest.approx(-HALF, abs=0.0015)
    assert high == pytest.approx(HALF, abs=0.0015)


def test_a_quantile_is_where_that_much_of_a_mixture_lies():
    mixture = [(0.7, 0.0, 0.001), (0.2, 0.05, 0.03), (0.1, -0.2, 0.0005)]
    whole = NormalDist()
    for part in (0.05, 0.1, 0.5, 0.9, 0.999):
        end = _quantile(part, mixture)
        below = sum(weight * whole.cdf((end - mean) / error) for weight, mean, error in mixture)
        assert below == pytest.approx(part, abs=2e-7)


def test_contenders_that_agree_support_each_other():
    for low, high in ends(*[0.5] * 8):
        assert 0.5 - 0.7 * HALF < low < 0.5 < high < 0.5 + 0.7 * HALF
        assert low + high == pytest.approx(1.0, abs=1e-4)


def test_a_little_ahead_of_many_is_mostly_variation():
    low, high = ends(-0.02, *(0.001 * n - 0.004 for n in range(9)))[0]
    assert low > -0.02
    assert -0.005 < high < 0.005


def test_contenders_that_agree_show_that_variation_is_small():
    """One run each: nothing was repeated, and yet intervals narrow."""
    own = RunVariation().half_width(1)
    low, high = ends(*[0.001 * n for n in range(12)], variation=RunVariation())[5]
    assert high - low < 0.5 * own


def test_what_was_run_more_often_and_steadily_moves_less():
    others = tuple(seen(0.02 + 0.001 * n) for n in range(6))
    for better, worse in ((seen(0.0, runs=4), seen(0.0)), (seen(0.0), seen(0.0, steps=0.02**2))):
        (_, high), (_, higher) = (joint_ends((one, *others), KNOWN)[0] for one in (better, worse))
        assert high < higher - 0.002


@pytest.mark.long
@pytest.mark.parametrize("spread", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("count", [2, 4, 9])
def test_the_fastest_is_covered_whatever_the_spread(spread, count):
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
