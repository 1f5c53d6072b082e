from dataclasses import replace

import numpy as np
import pytest

from tuner.search.belief import Belief, believe
from tuner.search.gain import best_log_seconds, chosen, gain_of_more, log_expected_gain


def belief(mean, error, succeeds=1.0):
    ones = np.ones(len(mean))
    return Belief(
        weights=np.ones(1),
        means=np.array([mean]),
        errors=np.array([error]),
        log_need=ones,
        need_error=ones,
        fits=ones,
        succeeds=succeeds * ones,
    )


def test_the_expected_gain_is_that_of_drawing():
    """Against 200,000 draws, of one expert in four as believed and of the others a fifth slower."""
    given = belief([0.1, -0.3, 0.5], [0.2, 0.3, 0.4], succeeds=0.8)
    means, errors = (np.concatenate([one, one]) for one in (given.means, given.errors))
    means[1] += 0.2
    given = replace(given, weights=np.array([0.25, 0.75]), means=means, errors=errors)
    random = np.random.default_rng(0)
    who = (random.random((200_000, 1)) > 0.25).astype(int)
    drawn = random.normal(means[who[:, 0]], errors[who[:, 0]])
    gains = 0.8 * np.maximum(0.0 - drawn, 0.0).mean(0)
    assert np.exp(log_expected_gain(given, 0.0)) == pytest.approx(gains, rel=0.03)
    assert given.log_seconds == pytest.approx(drawn.mean(0), abs=0.01)
    assert given.error == pytest.approx(drawn.std(0), rel=0.01)


def test_far_tails_stay_in_order_and_join_the_rest():
    far = log_expected_gain(belief([5.0, 10.0, 50.0], [0.1, 0.1, 0.1]), 0.0)
    assert np.all(np.isfinite(far))
    assert far[0] > far[1] > far[2]
    before, after = (log_expected_gain(belief([z], [1.0]), 0.0)[0] for z in (5.99, 6.01))
    assert before == pytest.approx(after, abs=0.2)


def test_more_probes_gain_more_and_never_less_than_nothing():
    given, allowed = belief([0.0, 0.05, 0.1], [0.1, 0.1, 0.1]), np.ones(3, dtype=bool)
    gains = [gain_of_more(given, 0.0, allowed, count) for count in (1, 2, 3)]
    assert [mean for mean, _ in gains] == sorted(mean for mean, _ in gains)
    assert all(0 < mean < high for mean, high in gains)
    assert gain_of_more(given, 0.0, ~allowed, 3) == (0.0, 0.0)
    assert gain_of_more(replace(given, succeeds=np.zeros(3)), 0.0, allowed, 3) == (0.0, 0.0)


def test_the_first_proposal(made):
    simpler = replace(made.prior([1.0, 1.0, 1.0]), simplicity=np.array([-2.0, 0.0, -1.0]))
    for prior, allowed, index in (
        (made.prior([4.0, 2.0, 1.0], [10, 20, 100]), [1, 1, 1], 1),  # the fastest that may fit
        (made.prior([4.0, 2.0, 1.0]), [1, 0, 0], 0),
        (made.prior([9.0, 1.0, 1.0], [100, 500, 90]), [1, 1, 1], 2),  # hopeless: the likeliest
        (simpler, [1, 1, 1], 1),
    ):
        found = chosen(prior, believe(prior, []), [], np.array(allowed, dtype=bool))
        assert found.index == index
        assert found.gain == float("inf")
        assert found.is_hopeless == (found.fits < 0.02)


def test_the_expected_gain_shrinks_as_the_best_is_known(made):
    prior = made.prior([1.0, 1.1, 1.2, 5.0])
    trials, allowed, gains = [], np.ones(4, dtype=bool), []
    for _ in range(4):
        found = chosen(prior, believe(prior, trials), trials, allowed)
        gains.append(found.gain)
        allowed[found.index] = False
        trials.append(made.trial(found.index, float(np.exp(prior.log_seconds[found.index]))))
    assert gains == sorted(gains, reverse=True)
    assert gains[1] > 0.01 > gains[-1]
    assert trials[-1].index == 3


def test_only_an_answer_within_the_limit_is_the_best(made):
    prior, sound = made.prior([1.0, 2.0]), made.trial(1, 2.0, need=70.0)
    for other in (
        made.trial(0, 1.0, need=90.0),
        made.trial(0, 1.0, indirect=True),
        made.trial(0, 1.0, is_wrong=True),
        made.trial(0, None),
    ):
        assert best_log_seconds(prior, [other]) is None
        assert best_log_seconds(prior, [other, sound]) == pytest.approx(np.log(2.0))
