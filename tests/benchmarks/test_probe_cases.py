from collections import Counter

import pytest

from tuner.core.configuration import Checkpointing, Sharding
from tuner.core.workload import Optimizer, Precision


@pytest.fixture
def cases(benchmark):
    return benchmark("probe_cases").cases()


def test_forty_settings_of_two_models_and_one_has_experts(cases) -> None:
    assert len({case.text for case in cases}) == len(cases) >= 40
    experts = Counter(case.workload.model.experts > 0 for case in cases)
    assert min(experts[True], experts[False]) >= 10


def test_every_knob_takes_every_value(cases) -> None:
    settings = [case.settings for case in cases]
    sharded = set(Sharding) - {Sharding.ZERO1}  # nanotron's alone
    assert {one.sharding for one in settings} == sharded
    assert {one.activation_checkpointing for one in settings} == set(Checkpointing)
    for knob in ("tp_recompute_allgather", "sync_each_batch"):
        assert {getattr(one, knob) for one in settings} == {True, False}
    for knob in ("tp_size", "micro_batch_size", "gradient_accumulation_steps"):
        assert len({getattr(one, knob) for one in settings}) > 1
    assert {case.workload.optimizer for case in cases} == set(Optimizer)
    assert {case.workload.precision for case in cases} == set(Precision)
    with_tp = {one.sharding for one in settings if one.tp_size > 1}
    assert with_tp == {Sharding.DDP, Sharding.SHARD_GRAD_OP, Sharding.FULL_SHARD}


def test_the_settings_make_the_batch(cases) -> None:
    for case in cases:
        ranks = case.settings.data_parallel_size(case.cluster.world_size)
        micro = case.settings.micro_batch_size * case.settings.gradient_accumulation_steps
        assert case.workload.global_batch_size == micro * ranks, case.text


def test_six_are_watched_by_the_profiler_too(benchmark) -> None:
    module = benchmark("probe_cases")
    assert len(module.profiled_cases()) == len(module.PROFILED) == 6
