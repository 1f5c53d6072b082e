"""What may be written in a request: fields, their paths in errors, and how much of it."""

from typing import Any

import pytest

from tuner.client.cases import read_case
from tuner.client.request import read_here, read_request
from tuner.errors import UsageError

BODY: dict[str, Any] = {
    "workload": {"model": "stories15m", "sequence_length": 128, "global_batch_size": 8},
    "cluster": "2xa100-80gb",
}
MANY = {f"name{number}": 1 for number in range(29_000)}


def errors(body: dict[str, Any], read: Any = read_request) -> list[tuple[str, str]]:
    with pytest.raises(UsageError) as caught:
        read(body)
    return [(error.field, error.allowed) for error in caught.value.errors]


@pytest.mark.parametrize(
    ("change", "field", "allowed"),
    [
        ({"foo": 1}, "foo", "workload"),
        ({"foo": None}, "foo", "headroom"),
        ({"budget": {"foo": None}}, "budget.foo", "gpu_s, max_probes, wall_s"),
        ({"knobs": {"tp_szie": None}}, "knobs.tp_szie", "tp_size"),
        ({"knobs": {"tp_size": [1] * 101}}, "knobs.tp_size", "1 to 100 values"),
        ({"knobs": {"tp_size": "12"}}, "knobs.tp_size", "must be a list"),
        ({"cluster": "local"}, "cluster", "machine that asks"),
        (MANY, "body", "100 fields at most"),
        ({"budget": MANY}, "budget", "100 fields at most"),
        (
            {"cluster": {"nodes": 1, "gpus_per_node": 1, "gpu": MANY}},
            "cluster.gpu",
            "100 fields at most",
        ),
    ],
)
def test_what_is_refused_is_named_with_its_path(
    change: dict[str, Any], field: str, allowed: str
) -> None:
    ((found, why),) = errors({**BODY, **change})
    assert found == field
    assert allowed in why


def test_what_is_null_counts_as_left_out() -> None:
    assert read_request({**BODY, "budget": None, "tolerance": None}) == read_request(BODY)


def test_all_that_is_wrong_is_told_at_once() -> None:
    wrong = {**BODY, "headroom": 2, "tolerance": -1, "knobs": {"tp_size": [0]}}
    assert {field for field, _ in errors(wrong)} == {"headroom", "tolerance", "knobs.tp_size"}


def test_a_case_may_name_this_machine_and_has_fields_of_its_own() -> None:
    case = {**BODY, "settings": {}}
    assert read_case({**case, "cluster": "local"}).question.cluster.nodes == 1
    ((field, why),) = errors({**case, "hedroom": 1}, read_case)
    assert field == "hedroom"
    assert "settings" in why
    assert "tolerance" not in why
    old = {"name": "torch", "versions": {"torch": "2.0"}}
    assert [field for field, _ in errors({**case, "framework": old}, read_case)] == [
        "framework.versions"
    ]


def test_arguments_may_allow_many_values_but_in_an_order() -> None:
    given = {"model": "stories15m", "cluster": "cpu:1", "global_batch_size": 8}
    given["sequence_length"] = 128
    many = list(range(1, 300))
    found = read_here({**given, "knobs": {"micro_batch_size": many}})
    assert list(found.knobs.micro_batch_size) == many
    for unordered in ({1, 2}, iter([1, 2])):
        asked = {**given, "knobs": {"micro_batch_size": unordered}}
        assert [field for field, _ in errors(asked, read_here)] == ["micro_batch_size"]
