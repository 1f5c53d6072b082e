from collections import Counter

import pytest

from tuner.core.cluster import Device
from tuner.core.configuration import Sharding

pytestmark = pytest.mark.long


@pytest.fixture
def place(benchmark):
    return benchmark("gpu.place").Place(device=Device.CUDA, gpu="h200", title="NVIDIA H200")


@pytest.fixture
def cases(benchmark, place):
    module = benchmark("gpu.cases")
    return {str(part): module.cases_of(part, place) for part in module.Part}


def test_no_two_cases_have_one_key(cases) -> None:
    keys = [one.key for part in cases.values() for one in part]
    assert len(set(keys)) == len(keys)


def test_memory_has_forty_settings_of_three_models_that_spread_all_knobs(cases) -> None:
    found = [one.case for one in cases["memory"]]
    assert len(found) >= 40
    assert len({case.workload.model.name for case in found}) == 3
    assert {case.cluster.world_size for case in found} == {8, 64}
    assert {case.settings.sharding for case in found} == set(Sharding) - {Sharding.ZERO1}
    for knob in ("tp_recompute_allgather", "sync_each_batch", "activation_checkpointing"):
        assert len({getattr(case.settings, knob) for case in found}) == 2, knob
    assert len({case.workload.precision for case in found}) == 3
    assert len({case.workload.optimizer for case in found}) == 2


def test_the_issue_has_five_rows_that_fit_and_two_that_do_not(cases) -> None:
    assert Counter(one.published["fits"] for one in cases["seed"]) == {True: 5, False: 2}


def test_the_grid_is_all_settings_of_its_question(cases) -> None:
    from tuner.space import enumerate_space

    found = cases["grid"]
    one = found[0].case
    legal = enumerate_space(one.question).legal
    wanted = {settings for settings in legal if settings.tp_size <= 2}
    assert {other.case.settings for other in found} == wanted
    assert len(found) == len(wanted) >= 80
