"""JSON that others can read."""

import json

import pytest

from tuner.text import json_text


@pytest.mark.parametrize("indent", [None, 2])
def test_numbers_that_are_none_are_null(indent: int | None) -> None:
    value = {"a": [1.5, float("nan"), (float("inf"), {"b": float("-inf")})], "c": "é"}
    found = json.loads(json_text(value, indent=indent))
    assert found == {"a": [1.5, None, [None, {"b": None}]], "c": "é"}


def test_other_values_stay() -> None:
    value = {"a": [1, 2.5, None, True, "x"], "b": {}}
    assert json.loads(json_text(value)) == value
    assert json_text(value) == '{"a":[1,2.5,null,true,"x"],"b":{}}'
