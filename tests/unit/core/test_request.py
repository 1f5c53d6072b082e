"""Requests: what may be asked, what is taken where it is left out, and how errors are named."""

import json
from typing import Any

import pytest

from tuner.client.tune_request import MOST_SETTINGS, TuneRequest, read_request
from tuner.core.configuration import Sharding
from tuner.core.measurement import Fidelity
from tuner.core.study import Terms
from tuner.core.workload import Optimizer
from tuner.errors import UsageError
from tuner.model import published_model as read
from tuner.space import enumerate_space

WORKLOAD = {"model": "llama-3.1-8b", "sequence_length": 4096, "global_batch_size": 256}
ASKED: dict[str, Any] = {"workload": WORKLOAD, "cluster": "8xh100-80gb"}
VERSIONS = {"torch": "2.13.0", "transformers": "5.23.0", "accelerate": "1.15.0"}


def test_what_is_left_out_has_defaults() -> None:
    request = read_request(ASKED)
    assert request.workload.model == read("llama-3.1-8b")
    assert request.fidelity is None
    assert request.terms_at(Fidelity.MEASURED) == Terms(max_probes=20)
    predicted = request.terms_at(Fidelity.PREDICTED)
    assert (predicted.max_probes, predicted.max_dry_runs) == (3, 6)
    assert request.question(VERSIONS).framework.versions == VERSIONS


def test_all_of_it_is_taken() -> None:
    request = read_request(
        {
            **ASKED,
            "workload": {**WORKLOAD, "optimizer": "sgd", "precision": "bf16_mixed"},
            "framework": {"name": "accelerate", "versions": {"accelerate": "1.10"}},
            "knobs": {"tp_size": [1], "sharding": ["full_shard"]},
            "fidelity": "emulated",
            "budget": {"max_probes": 7, "wall_s": 60, "gpu_s": 1.5},
            "tolerance": 0.05,
            "headroom": 0,
            "memory_limit_gib": 64,
            "pool": "h100",
        }
    )
    assert request.workload.optimizer is Optimizer.SGD
    question = request.question(VERSIONS)
    assert question.framework.versions["accelerate"] == "1.10.0"
    assert question.knobs == {"sharding": (Sharding.FULL_SHARD,), "tp_size": (1,)}
    assert request.fidelity is Fidelity.EMULATED
    assert request.terms_at(Fidelity.EMULATED) == Terms(
        fidelity=Fidelity.EMULATED,
        max_probes=7,
        wall_s=60.0,
        device_s=1.5,
        tolerance=0.05,
        headroom=0.0,
        memory_limit_bytes=64 * 2**30,
        pool="h100",
    )
    assert request.notes == ("headroom is not applied: memory_limit_gib is taken as it is",)


def test_null_is_left_out() -> None:
    empty = dict.fromkeys(("framework", "knobs", "fidelity", "budget", "headroom", "pool"))
    assert read_request({**ASKED, **empty}) == read_request(ASKED)


def test_sizes_that_a_configuration_leaves_out_are_told() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}
    asked = {**ASKED, "workload": {**WORKLOAD, "model": config, "sequence_length": 128}}
    (note,) = read_request(asked).notes
    assert "num_hidden_layers" in note


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"workload": None}, "workload"),
        ({"cluster": None}, "cluster"),
        ({"workload": []}, "workload"),
        ({"workload": {**WORKLOAD, "sequence_length": 4096.0}}, "workload.sequence_length"),
        ({"workload": {**WORKLOAD, "global_batch_size": True}}, "workload.global_batch_size"),
        ({"workload": {**WORKLOAD, "model": {"model_type": "evil"}}}, "workload.model.model_type"),
        ({"workload": {**WORKLOAD, "model": 1}}, "workload.model"),
        ({"cluster": "local"}, "cluster"),
        ({"cluster": " LOCAL "}, "cluster"),
        ({"cluster": "my.toml"}, "cluster"),
        ({"cluster": "8xh300"}, "cluster"),
        ({"cluster": "what is this"}, "cluster"),
        ({"framework": 1}, "framework"),
        ({"framework": {"name": "torch", "versions": {"torch": "1.0"}}}, "framework.versions"),
        ({"knobs": []}, "knobs"),
        ({"knobs": {"speed": [1]}}, "knobs.speed"),
        ({"knobs": {"tp_size": []}}, "knobs.tp_size"),
        ({"knobs": {"tp_size": 1}}, "knobs.tp_size"),
        ({"knobs": {"tp_size": list(range(1, 102))}}, "knobs.tp_size"),
        ({"knobs": {"tp_size": [7]}}, "knobs.tp_size"),
        ({"knobs": {"sharding": ["half"]}}, "knobs.sharding"),
        ({"knobs": {"sharding": [["ddp"]]}}, "knobs.sharding"),
        ({"fidelity": "guess"}, "fidelity"),
        ({"fidelity": ["auto"]}, "fidelity"),
        ({"budget": {"probes": 1}}, "budget.probes"),
        ({"budget": {"max_probes": 0}}, "budget.max_probes"),
        ({"budget": {"wall_s": -1}}, "budget.wall_s"),
        ({"budget": {"gpu_s": "1"}}, "budget.gpu_s"),
        ({"budget": {"gpu_s": 1e12}}, "budget.gpu_s"),
        ({"budget": {"wall_s": float("inf")}}, "budget"),
        ({"tolerance": 1}, "tolerance"),
        ({"headroom": "5%"}, "headroom"),
        ({"memory_limit_gib": 0}, "memory_limit_gib"),
        ({"pool": "a b"}, "pool"),
        ({"pool": 1}, "pool"),
        ({"pool": "x" * 65}, "pool"),
        ({"path": "/etc/passwd"}, "path"),
        ({"x" * 1000: 1}, "x" * 80),
        ({"pool": "\ud800"}, "body"),
        ({"replace": 1}, "replace"),
        ({"replace": "yes"}, "replace"),
    ],
)
def test_what_is_wrong_is_named_with_its_path(change: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_request({**ASKED, **change}).question({"torch": "2.13.0"})
    assert caught.value.field == field
    assert len(str(caught.value)) < 1000


def test_a_question_of_too_many_settings_says_how_to_ask_for_fewer() -> None:
    asked = {**ASKED, "workload": {**WORKLOAD, "global_batch_size": 720_720}}
    with pytest.raises(UsageError) as caught:
        read_request({**asked, "knobs": {"sharding": ["full_shard"]}}).question(VERSIONS)
    assert (caught.value.field, caught.value.given) == ("knobs", {"sharding": ["full_shard"]})
    proposed = {"micro_batch_size": [1, 2, 3, 4, 5, 6, 7, 8]}
    assert json.dumps(proposed) in caught.value.allowed
    question = read_request({**asked, "knobs": proposed}).question(VERSIONS)
    assert len(enumerate_space(question).legal) <= MOST_SETTINGS


def test_batches_with_the_usual_divisors_are_not_too_many() -> None:
    for batch, cluster, framework in (
        (2**20, "8xh100-80gb", "torch"),
        (5040, "8xh100-80gb", "torch"),
        (16_384, "256x8xh100-80gb", "torch"),
        (3600, "15x8xh100-80gb", {"name": "nanotron", "versions": {"nanotron": "0.4"}}),
    ):
        workload = {**WORKLOAD, "model": "llama-3.1-70b", "global_batch_size": batch}
        asked = {"workload": workload, "cluster": cluster, "framework": framework}
        assert read_request(asked).question(VERSIONS)


def test_a_file_is_no_way_to_write_a_cluster() -> None:
    with pytest.raises(UsageError) as caught:
        read_request({**ASKED, "cluster": "?"})
    assert "file" not in caught.value.allowed
    assert "object of its fields" in caught.value.allowed


def test_a_misspelled_model_has_hints() -> None:
    with pytest.raises(UsageError, match=r"did you mean llama-3\.1-8b"):
        read_request({**ASKED, "workload": {**WORKLOAD, "model": "llama-3.1-9b"}})


def test_requests_compare() -> None:
    assert isinstance(read_request(ASKED), TuneRequest)
    assert read_request(ASKED) != read_request({**ASKED, "cluster": "4xh100-80gb"})
