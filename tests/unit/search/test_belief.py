from dataclasses import replace
from math import exp, log

import numpy as np
import pytest

from tuner.search.belief import ErrorSizes, TrialErrors, believe, believed_trials, learn, told_by
from tuner.search.kernel import alike
from tuner.search.trials import Result, Trial


def test_before_any_trial_it_is_the_prior(made):
    prior = made.prior([4.0, 2.0, 1.0], [10, 20, 100])
    belief = believe(prior, [])
    assert belief.log_seconds == pytest.approx(prior.log_seconds)
    assert belief.log_need == pytest.approx(prior.log_need)
    assert belief.fits[:2] == pytest.approx(1.0)
    assert belief.fits[2] < 1e-6
    assert np.all(belief.succeeds <= belief.fits)


def test_a_trial_is_believed(made):
    prior = made.prior([4.0, 2.0, 1.0])
    belief = believe(prior, [made.trial(1, 3.0)])
    assert exp(belief.log_seconds[1]) == pytest.approx(3.0, rel=0.02)
    assert belief.error[1] < 0.03


def test_needs_are_corrected_and_doubted_after_a_surprise(made):
    prior = made.prior([1.0] * 3, [40, 60, 70])
    belief = believe(prior, [made.trial(0, 1.0, need=60.0)])
    assert prior.log_need[1] < belief.log_need[1]
    assert belief.fits[1] < 0.3
    assert belief.need_error[2] > 0.02


def test_out_of_memory_is_a_lower_bound(made):
    prior = made.prior([1.0] * 3, [60, 70, 75])
    out = Trial(index=0, result=Result.TOO_LARGE, need_bytes=82 * made.GIB)
    belief = believe(prior, [out])
    assert belief.fits[0] < 0.2
    assert belief.fits[1] < believe(prior, []).fits[1]
    # less than what is predicted anyway teaches nothing
    known = Trial(index=0, result=Result.TOO_LARGE, need_bytes=50 * made.GIB)
    assert believe(prior, [known]).log_need == pytest.approx(prior.log_need)


def test_a_slow_one_is_at_least_as_slow(made):
    prior = made.prior([1.0, 1.0, 1.0])
    trials = [made.trial(0, 1.0)]
    slow = Trial(index=2, result=Result.SLOW, seconds=3.0)
    assert believe(prior, [*trials, slow]).log_seconds[2] > log(2.0)
    nothing = Trial(index=2, result=Result.SLOW, seconds=0.5)
    without = believe(prior, trials).log_seconds
    assert believe(prior, [*trials, nothing]).log_seconds == pytest.approx(without)


def test_a_failure_makes_its_neighbours_doubtful(made):
    prior = made.prior([1.0] * 6)
    belief = believe(prior, [Trial(index=0, result=Result.FAILED)])
    assert belief.succeeds[1] < 0.6
    assert belief.succeeds[5] > belief.succeeds[1]
    assert belief.fits == pytest.approx(believe(prior, []).fits)


def test_a_timeout_makes_its_neighbours_doubtful_and_slow(made):
    """It is no measure of how slow they are, however long it took."""
    prior = made.prior([1.0] * 6)
    trials = [made.trial(5, 1.0)]
    found = [
        believe(prior, [*trials, Trial(index=0, result=Result.TIMED_OUT, seconds=seconds)])
        for seconds in (75.0, 7500.0)
    ]
    without = believe(prior, trials)
    for belief in found:
        assert belief.succeeds[1] < 0.6 < without.succeeds[1]
        assert belief.succeeds[5] > belief.succeeds[1]
        assert belief.log_seconds[1] > without.log_seconds[1] + 0.1
        assert exp(belief.log_seconds[1]) < 3.0
        assert exp(belief.log_seconds[5]) == pytest.approx(1.0, rel=0.1)
    assert found[0].log_seconds == pytest.approx(found[1].log_seconds)


# -- trials that were run in another way ------------------------------------------------------


def indirect(index, seconds, need=10.0):
    return Trial(
        index=index, result=Result.RAN, seconds=seconds, need_bytes=need * 2**30, indirect=True
    )


def test_an_indirect_trial_is_believed_less(made):
    prior = made.prior([1.0] * 6)
    told, seen = believe(prior, [indirect(0, 3.0)]), believe(prior, [made.trial(0, 3.0)])
    assert exp(told.log_seconds[0]) == pytest.approx(3.0, rel=0.3)
    assert told.error[0] > 3 * seen.error[0]
    assert told.log_seconds[5] < told.log_seconds[0]


def test_what_indirect_trials_are_off_by_together_is_learned_from_one(made):
    """All of them were 1.3 times as fast as here; one that ran here tells that of the others."""
    prior = made.prior([1.0] * 6)
    others = [indirect(n, 2.0 / 1.3) for n in (0, 2, 4)]
    before = exp(believe(prior, others).log_seconds[4])
    after = exp(believe(prior, [*others, made.trial(0, 2.0)]).log_seconds[4])
    assert before == pytest.approx(2.0 / 1.3, rel=0.1)
    assert 1.1 * before < after < 2.05


def test_refused_ones_teach_nothing_of_others(made):
    prior = made.prior([1.0] * 3)
    belief, nothing = believe(prior, [Trial(index=0, result=Result.REFUSED)]), believe(prior, [])
    assert belief.log_seconds == pytest.approx(nothing.log_seconds)
    assert belief.succeeds == pytest.approx(nothing.succeeds)


def test_the_order_of_trials_is_nothing(made):
    prior = made.prior([4.0, 2.0, 1.0, 0.5])
    trials = [made.trial(0, 5.0), made.trial(2, 1.5), Trial(index=3, result=Result.FAILED)]
    one, other = believe(prior, trials), believe(prior, trials[::-1])
    for name in vars(one):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_earlier_searches_that_agree_are_believed(made):
    """The prior thinks all equal; earlier searches saw the first one twice as slow."""
    prior = made.prior([1.0] * 6)
    past = made.past(prior, [0.7, 0.0, 0.0, 0.0, 0.0, -0.7], studies=4)
    belief = believe(prior, [], past)
    assert belief.log_seconds[0] > belief.log_seconds[5] + 0.2


# -- several experts --------------------------------------------------------------------------


def test_the_experts_that_probes_bear_out_are_believed(made):
    """One predicts twice the seconds for all, which orders nothing; one the opposite order."""
    prior = made.prior([1.0, 2.0, 4.0, 8.0, 4.0, 2.0])
    right = prior.experts[0]
    prior = replace(prior, experts=np.array([-right, right, right + log(2.0)]))
    before = believe(prior, [])
    assert before.weights == pytest.approx([1 / 3] * 3)
    assert before.log_seconds == pytest.approx(prior.experts.mean(0))
    after = believe(prior, [made.trial(n, 2.0**n) for n in range(3)])
    wrong = believe(replace(prior, experts=-right[None]), [made.trial(n, 2.0**n) for n in range(3)])
    assert exp(after.log_seconds[3]) == pytest.approx(8.0, rel=0.2)
    assert exp(wrong.log_seconds[3]) < 6.0
    assert len(after.weights) < 3 or after.weights[0] < 0.1


def test_what_still_runs_bears_no_expert_out(made):
    prior = made.prior([1.0, 2.0, 4.0, 8.0, 4.0, 2.0])
    right = prior.experts[0]
    prior = replace(prior, experts=np.array([right, right * 0.9 + 0.05, right * 1.2]))
    trials = [made.trial(n, 2.0**n) for n in range(2)]
    before = believe(prior, trials)
    assert len(before.weights) > 1
    # wherever they stand among the trials
    running = believed_trials(before, [3, 4, 5])
    after = believe(prior, [*running, *trials])
    assert after.weights == pytest.approx(before.weights)
    assert after.error[3] < before.error[3]


def test_earlier_searches_that_probes_contradict_are_left_alone(made):
    """They saw the second half of the candidates five times as slow; here it is as predicted."""
    prior = made.prior([1.0, 1.2, 1.4, 1.6, 1.8, 2.0])
    past = made.past(prior, [0.0] * 3 + [log(5.0)] * 3, studies=4)
    trials = [made.trial(n, exp(prior.log_seconds[n])) for n in (0, 3, 5)]
    told, alone = believe(prior, trials, past), believe(prior, trials)
    assert believe(prior, [], past).log_seconds[4] > alone.log_seconds[4] + 0.2
    assert told.log_seconds == pytest.approx(alone.log_seconds, abs=0.1)
    assert told.weights[: len(alone.weights)].sum() > 0.5


def test_what_earlier_searches_say_of_one_candidate_is_the_textbooks(made):
    """Told first of the past and then of trials, or of all at once: one Gaussian process."""
    prior = made.prior([1.0, 1.2, 1.4, 1.6, 1.8, 2.0])
    past = made.past(prior, [0.3, 0.2, 0.1, 0.0, -0.1, -0.2], studies=4)
    told = told_by(past, past.excess, prior)
    sizes = ErrorSizes(offset=1.0, smooth=0.3, single=0.1)
    index, off = np.array([0, 4]), np.array([[0.5], [-0.3]])
    errors = TrialErrors(
        index=index, off=off, error=np.full(2, 0.05), indirect=np.zeros(2), judged=2
    )
    near = alike(prior.features, prior.features)
    found = learn(near[:, index], errors, sizes, told)
    # after the past alone the candidates' own part is as uncertain as ever, and adds to it
    own = 1.0 + 0.3**2 * near + 0.1**2 * np.eye(6)
    both = own + told.amplitude**2 * near - told.spread.T @ told.spread
    noisy = both[np.ix_(index, index)] + 0.05**2 * np.eye(2)
    gain = both[:, index] @ np.linalg.inv(noisy)
    assert found.mean == pytest.approx(told.mean + gain @ (off - told.mean[index]), abs=1e-9)
    assert found.variance == pytest.approx(np.diag(both - gain @ both[index]), abs=1e-9)


def test_runs_that_scatter_tell_little_of_their_neighbours(made):
    """Errors of single configurations are as large as a search's own trials show."""
    prior = made.prior([1.0] * 8)
    errors = {}
    for name, seconds in (("quiet", (1.0, 1.02, 0.98, 1.0)), ("noisy", (1.0, 4.0, 0.7, 3.0))):
        trials = [made.trial(2 * n, one) for n, one in enumerate(seconds)]
        errors[name] = believe(prior, trials).error
    assert errors["noisy"][3] > 3 * errors["quiet"][3]
    assert errors["noisy"][2] < 0.03  # what was measured is known all the same
