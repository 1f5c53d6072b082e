"""A study as an Optuna study: its trials, its best one, and the proposals of each sampler."""

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from tuner.core.study import SamplerName
from tuner.search import engine
from tuner.search.belief import believe
from tuner.search.engine import MOST_ILLEGAL, ask, replayed
from tuner.search.gain import best_log_seconds, chosen
from tuner.search.sampler import MEMORY, trial_of
from tuner.search.trials import Result, Trial

OTHERS = [SamplerName.TPE, SamplerName.RANDOM]


def some_trials(made):
    return [
        made.trial(2, 3.0, need=30.0),
        made.trial(1, 2.0, need=81.0),
        Trial(index=3, result=Result.TOO_LARGE, need_bytes=81 * made.GIB),
        Trial(index=0, result=Result.SLOW, seconds=9.0, need_bytes=7 * made.GIB),
        made.trial(1, 2.5, indirect=True),
        made.trial(4, 1.0, is_wrong=True),
        Trial(index=0, result=Result.TIMED_OUT, seconds=75.0),
        Trial(index=5, result=Result.FAILED),
        Trial(index=6, result=Result.RAN, seconds=3.5, error=0.1),
    ]


def every(prior):
    return np.ones(len(prior.settings), dtype=bool)


def as_predicted(made, prior, index):
    need = float(np.exp(prior.log_need[index])) / made.GIB
    return made.trial(index, float(np.exp(prior.log_seconds[index])), need)


def test_optuna_holds_every_trial_and_gives_it_back(made):
    prior, trials = made.knobbed(), some_trials(made)
    study = replayed(prior, trials)
    limit = 80 * made.GIB
    assert [trial_of(t, one.index, limit) for t, one in zip(study.trials, trials, strict=True)] == (
        trials
    )
    exported = study.trials[0]
    exported.set_user_attr("outcome", "ok")  # of an export, which says more for people
    assert trial_of(exported, 2, limit) == trials[0]
    complete, pruned, failed = TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL
    states = [complete, complete, pruned, pruned, *[failed] * 4, complete]
    assert [trial.state for trial in study.trials] == states
    over = [trial.constraints[MEMORY] / made.GIB for trial in study.trials[:3]]
    assert over == pytest.approx([-50.0, 1.0, 1.0])


def test_the_best_feasible_trial_is_the_best_known(made):
    prior, trials = made.knobbed(), some_trials(made)
    assert np.log(replayed(prior, trials).best_value) == best_log_seconds(prior, trials)


def test_our_sampler_is_asked_through_optuna(made):
    prior, trials = made.knobbed(), some_trials(made)
    for allowed in (every(prior), np.arange(8) == 5):
        for told in ([], trials[:1], trials):
            assert ask(prior, told, allowed) == chosen(prior, believe(prior, told), told, allowed)
    one = made.prior([1.0])
    assert ask(one, [], every(one)).index == 0


@pytest.mark.parametrize("name", OTHERS)
def test_a_sampler_of_optunas_goes_through_all_that_may_fit(made, name):
    prior = made.knobbed()
    allowed, trials = every(prior), []
    while not (found := ask(prior, trials, allowed, sampler=name, seed=1)).is_hopeless:
        assert allowed[found.index]
        assert found == ask(prior, trials, allowed, sampler=name, seed=1)
        assert found.gain == chosen(prior, believe(prior, trials), trials, allowed).gain
        allowed[found.index] = False
        trials.append(as_predicted(made, prior, found.index))
    assert [trial.index for trial in trials] != [0, 1, 2, 4, 5, 6, 7]
    assert allowed.tolist() == [n == 3 for n in range(8)]  # that one needs 90 GiB of 80


def test_illegal_proposals_fail_and_then_a_random_one_is_taken(made, monkeypatch):
    class Stubborn(optuna.samplers.RandomSampler):
        """Proposes what was tried already."""

        asked = 0

        def sample_independent(self, study, trial, name, distribution):
            Stubborn.asked += name == "sharding"
            told = study.get_trials(deepcopy=False)
            assert all(one.state is TrialState.FAIL for one in told[1:-1])
            return {"sharding": "ddp", "micro_batch_size": 1}[name]

    monkeypatch.setitem(engine._SAMPLERS, SamplerName.RANDOM, lambda seed: Stubborn())
    prior = made.knobbed()
    allowed = np.arange(8) > 0
    taken = set()
    for seed in range(4):
        found = ask(prior, [made.trial(0, 4.0)], allowed, sampler=SamplerName.RANDOM, seed=seed)
        taken.add(found.index)
    assert Stubborn.asked == 4 * MOST_ILLEGAL
    assert len(taken) > 1
    assert taken < {1, 2, 4, 5, 6, 7}  # the other is not expected to fit
