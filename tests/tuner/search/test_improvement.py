from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from tuner.search.belief import Belief, believe
from tuner.search.improvement import gain_of_more, log_expected_gain


def belief(mean: list[float], error: list[float], succeeds: float = 1.0) -> Belief:
    ones = np.ones(len(mean))
    return Belief(
        log_seconds=np.array(mean),
        error=np.array(error),
        log_need=ones,
        need_error=ones,
        fits=ones,
        succeeds=succeeds * ones,
    )


def test_the_expected_gain_is_that_of_drawing() -> None:
    """Against 200,000 draws."""
    found = belief([0.1, -0.3, 0.5], [0.2, 0.3, 0.4], succeeds=0.8)
    drawn = np.random.default_rng(0).normal(found.log_seconds, found.error, (200_000, 3))
    gains = 0.8 * np.maximum(0.0 - drawn, 0.0).mean(0)
    assert np.exp(log_expected_gain(found, 0.0)) == pytest.approx(gains, rel=0.03)


def test_far_tails_stay_in_order() -> None:
    """Where the expected gain underflows, its logarithm does not."""
    found = log_expected_gain(belief([5.0, 10.0, 50.0], [0.1, 0.1, 0.1]), 0.0)
    assert np.all(np.isfinite(found))
    assert found[0] > found[1] > found[2]


def test_the_tail_joins_the_rest() -> None:
    near, far = (log_expected_gain(belief([z], [1.0]), 0.0)[0] for z in (5.99, 6.01))
    assert near == pytest.approx(far, abs=0.2)


def test_more_probes_gain_more_and_never_less_than_nothing() -> None:
    found = belief([0.0, 0.05, 0.1], [0.1, 0.1, 0.1])
    allowed = np.ones(3, dtype=bool)
    gains = [gain_of_more(found, 0.0, allowed, count) for count in (1, 2, 3)]
    assert [mean for mean, _ in gains] == sorted(mean for mean, _ in gains)
    assert all(0 < mean < high for mean, high in gains)
    assert gain_of_more(found, 0.0, ~allowed, 3) == (0.0, 0.0)
    assert gain_of_more(replace(found, succeeds=np.zeros(3)), 0.0, allowed, 3) == (0.0, 0.0)


def test_what_was_tried_has_nothing_to_gain(made: SimpleNamespace) -> None:
    prior = made.prior([1.0, 1.5])
    found = believe(prior, [made.trial(0, 1.0)])
    gain = np.exp(log_expected_gain(found, 0.0))
    assert gain[0] < 0.02
