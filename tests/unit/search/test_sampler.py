"""Our sampler in studies of anybody's own: Optuna's own conformance suite, and what it is told."""

import optuna
import pytest
from optuna.testing import pytest_samplers
from optuna.trial import TrialState, create_trial

from tuner.search.sampler import MEMORY, CostModelSampler, KnobParameters, trial_of
from tuner.search.trials import Result, Trial

LIMIT = 80 * 2**30


class TestConformance(
    pytest_samplers.BasicSamplerTestCase,
    pytest_samplers.RelativeSamplerTestCase,
    pytest_samplers.SingleOnlySamplerTestCase,
):
    """Optuna's cases for samplers with one objective."""

    @pytest.fixture
    def sampler(self, made):
        return lambda: CostModelSampler(made.knobbed(), seed=0)


def test_a_parameter_for_each_active_knob(made):
    prior = made.knobbed()
    parameters = KnobParameters(prior.settings)
    assert parameters.choices == {
        "sharding": ("ddp", "full_shard"),
        "tp_size": (1, 2),
        "tp_recompute_allgather": (False, True),
        "micro_batch_size": (1, 2, 4, 8),
        "gradient_accumulation_steps": (1, 2, 4, 8),
    }
    every = [parameters.params(index) for index in range(len(prior.settings))]
    assert every[3] == {"sharding": "ddp", "micro_batch_size": 8}
    assert every[4] == {"sharding": "full_shard", "tp_size": 1, "micro_batch_size": 1}
    assert every[6] == {"sharding": "full_shard", "tp_size": 2, "tp_recompute_allgather": True}
    assert every[7] == {"sharding": "full_shard", "tp_size": 1, "micro_batch_size": 2}
    assert [parameters.index_of({**params, "rate": 0.1}) for params in every] == list(range(8))
    ddp, full = {"sharding": "ddp"}, {"sharding": "full_shard", "tp_size": 1}
    for illegal in ({}, ddp, {**ddp, "micro_batch_size": 3}, {**full, "micro_batch_size": 8}):
        assert parameters.index_of(illegal) is None


def test_a_suggested_configuration_has_its_own_parameters(made):
    parameters = KnobParameters(made.knobbed().settings)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trials = [study.ask() for _ in range(20)]
    indices = [parameters.suggest(trial) for trial in trials]
    assert None in indices
    legal = [(trial.params, n) for trial, n in zip(trials, indices, strict=True) if n is not None]
    assert all(params == parameters.params(index) for params, index in legal)


def seconds(configuration):
    """Tensor parallelism is twice as fast as predicted here."""
    return 8.0 / configuration.micro_batch_size / configuration.tp_size**2 + 1.0


def test_a_study_of_ones_own_finds_the_best_and_tries_nothing_twice(made):
    prior = made.knobbed()
    sampler = CostModelSampler(prior)
    study = optuna.create_study(sampler=sampler)

    def objective(trial):
        configuration = sampler.suggest(trial)
        assert -1 < trial.suggest_float("another", -1, 1) < 1
        need = 10 * configuration.micro_batch_size * 2**30
        trial.set_constraint(MEMORY, need - sampler.limit_bytes)
        return seconds(configuration)

    study.optimize(objective, n_trials=8)
    tried = [sampler.parameters.index_of(trial.params) for trial in study.trials]
    assert sorted(tried) == list(range(8))
    assert tried[0] == 2  # the fastest predicted that fits
    assert study.best_params == {"sharding": "ddp", "micro_batch_size": 8} | {
        "another": study.best_params["another"]
    }
    study.optimize(objective, n_trials=1)  # nothing is left: the best that is known once more


def test_values_that_are_illegal_together_are_pruned(made):
    sampler = CostModelSampler(made.knobbed())
    study = optuna.create_study(sampler=sampler)
    study.enqueue_trial({"sharding": "full_shard", "tp_size": 1, "micro_batch_size": 8})
    study.optimize(lambda trial: seconds(sampler.suggest(trial)), n_trials=2)
    assert [trial.state for trial in study.trials] == [TrialState.PRUNED, TrialState.COMPLETE]


def test_what_optuna_says_of_a_trial_is_read():
    ran = {"state": TrialState.COMPLETE, "value": 2.0}
    pruned = {"state": TrialState.PRUNED}
    for made_of, expected in (
        (ran, Trial(index=1, result=Result.RAN, seconds=2.0)),
        (
            {**ran, "constraints": {MEMORY: 5.0}},
            Trial(index=1, result=Result.RAN, seconds=2.0, need_bytes=LIMIT + 5.0),
        ),
        (
            {**pruned, "constraints": {MEMORY: 5.0}},
            Trial(index=1, result=Result.TOO_LARGE, need_bytes=LIMIT + 5.0),
        ),
        (
            {**pruned, "intermediate_values": {0: 9.0, 1: 8.0}},
            Trial(index=1, result=Result.SLOW, seconds=8.0),
        ),
        (pruned, Trial(index=1, result=Result.FAILED)),
        ({"state": TrialState.FAIL}, Trial(index=1, result=Result.FAILED)),
        ({**ran, "value": -1.0}, Trial(index=1, result=Result.FAILED)),
        ({**ran, "value": float("inf")}, Trial(index=1, result=Result.FAILED)),
    ):
        assert trial_of(create_trial(**made_of), 1, LIMIT) == expected


def test_it_is_for_seconds_to_minimise(made):
    study = optuna.create_study(direction="maximize", sampler=CostModelSampler(made.knobbed()))
    with pytest.raises(ValueError, match="seconds to minimise"):
        study.ask().suggest_categorical("sharding", ("ddp", "full_shard"))
