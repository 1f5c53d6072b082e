from collections import Counter

import pytest

from tuner.core.cluster import Device
from tuner.core.configuration import Sharding


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


def test_the_first_rows_are_of_all_three_models(cases) -> None:
    assert len({one.case.workload.model.name for one in cases["memory"][:3]}) == 3


def test_a_card_is_emulated_on_its_own_kind_but_for_the_issue(cases) -> None:
    kinds = {part: {one.case.cluster.gpu.name for one in found} for part, found in cases.items()}
    assert kinds.pop("seed") == {"a100-80gb"}
    assert all(kind == {"h200"} for kind in kinds.values())


def test_the_issue_has_five_rows_that_fit_and_two_that_do_not(cases) -> None:
    assert Counter(one.published["fits"] for one in cases["seed"]) == {True: 5, False: 2}


def test_recompute_is_on_and_off_as_often_at_both_sizes(cases) -> None:
    found = [one.case.settings for one in cases["recompute"]]
    counted = Counter((s.tp_size, s.tp_recompute_allgather) for s in found)
    assert counted == {(4, False): 3, (4, True): 3, (8, False): 3, (8, True): 3}


def test_the_grid_is_all_settings_of_its_question(cases) -> None:
    from tuner.space import enumerate_space

    found = cases["grid"]
    one = found[0].case
    legal = enumerate_space(one.question).legal
    wanted = {settings for settings in legal if settings.tp_size <= 2}
    assert {other.case.settings for other in found} == wanted
    assert len(found) == len(wanted) >= 80


def test_the_grid_covers_all_classes_before_any_comes_again(cases) -> None:
    classes = [one.case.settings.settings_class for one in cases["grid"]]
    assert len(set(classes[: len(set(classes))])) == len(set(classes))


def test_every_case_is_probed_warm_and_cold(cases) -> None:
    ways = Counter(one.case.text for one in cases["warm"])
    assert set(ways.values()) == {2}
