import random
from math import exp
from types import SimpleNamespace

import pytest

from tuner.core.configuration import Settings, parse_settings
from tuner.core.evaluation import Evaluation
from tuner.core.quantity import Provenance, Quantity
from tuner.planner.knowledge import learn
from tuner.planner.step_times import change_between, change_of, timed

QUANTILE = 1.2816  # of 80%


def seconds(value: float, down: float, up: float) -> Quantity:
    return Quantity(value=value, low=down, high=up, provenance=Provenance.MEASURED)


def times_of(step_time_s: Quantity, spread_s: Quantity) -> Evaluation:
    return Evaluation(settings=Settings(), step_time_s=step_time_s, spread_s=spread_s)


def test_a_change_is_a_ratio_with_an_interval() -> None:
    found = change_of(seconds(2.0, 2.0, 2.0), seconds(2.5, 2.4, 2.6))
    assert (found.ratio, found.low, found.high) == pytest.approx((1.25, 1.2, 1.3))
    assert found.is_clear


def test_an_interval_may_hold_both_directions() -> None:
    found = change_of(seconds(2.0, 1.9, 2.1), seconds(2.02, 1.95, 2.1))
    assert not found.is_clear
    assert found.low < 1 < found.ratio < found.high


def test_the_interval_covers_80_percent() -> None:
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


def test_what_the_model_added_to_both_is_wrong_in_one_direction() -> None:
    exact = seconds(2.0, 2.0, 2.0)
    wide, wider = seconds(2.0, 1.8, 2.2), seconds(2.0, 1.6, 2.4)
    alike = change_between(times_of(wide, exact), times_of(wide, exact))
    assert (alike.low, alike.high) == pytest.approx((1.0, 1.0))
    unlike = change_between(times_of(wide, exact), times_of(wider, exact))
    assert (unlike.low, unlike.high) == pytest.approx((1.6 / 1.8, 2.4 / 2.2))


def test_settings_without_a_time_are_left_out(lab: SimpleNamespace) -> None:
    texts = ("sharding=ddp,micro_batch_size=4", "sharding=full_shard,micro_batch_size=4")
    measured = (lab.ok(2.0, 2**30), lab.ok({}, 2**30))
    rows = zip(map(parse_settings, texts), measured, strict=True)
    probes = [lab.probe(n, s, m) for n, (s, m) in enumerate(rows, start=1)]
    (found,) = timed(learn(lab.study(probes=probes))).values()
    assert found.probe_ids == (1,)
    assert found.seconds == 2.0
