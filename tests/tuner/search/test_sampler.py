from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import optuna
import pytest

from tuner.search.proposal import best_log_seconds, propose
from tuner.search.sampler import CANDIDATE, CostModelSampler, ask
from tuner.search.trials import Result, Trial


def every(prior: object) -> np.ndarray:
    return np.ones(len(prior.settings), dtype=bool)


def test_the_first_is_the_fastest_that_is_expected_to_fit(made: SimpleNamespace) -> None:
    prior = made.prior([4.0, 2.0, 1.0], [10, 20, 100])
    found = ask(prior, [], every(prior))
    assert found.index == 1
    assert found.gain == float("inf")
    assert found.succeeds == pytest.approx(0.95, abs=0.01)


def test_what_is_not_allowed_is_not_proposed(made: SimpleNamespace) -> None:
    prior = made.prior([4.0, 2.0, 1.0])
    assert ask(prior, [], np.array([True, False, False])).index == 0


def test_optuna_is_told_every_trial_and_asks_the_same(made: SimpleNamespace) -> None:
    prior = made.prior([4.0, 2.0, 1.0, 0.9], [10, 20, 30, 90])
    trials = [
        made.trial(2, 3.0, need=30.0),
        Trial(index=3, result=Result.TOO_LARGE, need_bytes=81 * made.GIB),
        Trial(index=0, result=Result.SLOW, seconds=9.0),
        Trial(index=1, result=Result.RAN, seconds=2.5, indirect=True),
        Trial(index=0, result=Result.TIMED_OUT, seconds=75.0),
    ]
    allowed = np.array([False, True, False, False])
    assert ask(prior, trials, allowed) == propose(prior, trials, allowed)


def test_a_single_candidate(made: SimpleNamespace) -> None:
    prior = made.prior([1.0])
    assert ask(prior, [], every(prior)).index == 0


def test_the_expected_gain_shrinks_as_the_best_is_known(made: SimpleNamespace) -> None:
    prior = made.prior([1.0, 1.1, 1.2, 5.0])
    trials, allowed, gains = [], every(prior), []
    for _ in range(4):
        found = ask(prior, trials, allowed)
        gains.append(found.gain)
        allowed[found.index] = False
        trials.append(made.trial(found.index, float(np.exp(prior.log_seconds[found.index]))))
    assert gains == sorted(gains, reverse=True)
    assert gains[1] > 0.01 > gains[-1]
    assert [t.index for t in trials][-1] == 3


def test_equal_ones_are_decided_by_simplicity(made: SimpleNamespace) -> None:
    prior = replace(made.prior([1.0, 1.001, 1.0]), simplicity=np.array([-2.0, 0.0, -1.0]))
    assert ask(prior, [], every(prior)).index == 1


def test_what_does_not_fit_is_not_the_best(made: SimpleNamespace) -> None:
    prior = made.prior([1.0, 2.0])
    assert best_log_seconds(prior, [made.trial(0, 1.0, need=90.0)]) is None
    trials = [made.trial(0, 1.0, need=90.0), made.trial(1, 2.0, need=70.0)]
    assert best_log_seconds(prior, trials) == pytest.approx(np.log(2.0))


def test_what_ran_in_another_way_is_not_the_best(made: SimpleNamespace) -> None:
    prior = made.prior([1.0, 2.0])
    elsewhere = replace(made.trial(0, 1.0), indirect=True)
    assert best_log_seconds(prior, [elsewhere]) is None
    assert best_log_seconds(prior, [elsewhere, made.trial(0, 1.5)]) == pytest.approx(np.log(1.5))


def test_hopeless_ones_come_last_the_likeliest_first(made: SimpleNamespace) -> None:
    prior = made.prior([9.0, 1.0, 1.0], [100, 500, 90])
    assert ask(prior, [], every(prior)).index == 2


def test_it_is_a_sampler_of_one_parameter(made: SimpleNamespace) -> None:
    prior = made.prior([3.0, 1.0])
    sampler = CostModelSampler(prior, every(prior))
    study = optuna.create_study(sampler=sampler)
    trial = study.ask(sampler.infer_relative_search_space(study, None))
    assert trial.params == {CANDIDATE: 1}
    with pytest.raises(ValueError, match="is not a parameter"):
        trial.suggest_float("rate", 0, 1)
