"""Bodies that say something twice."""

import json

import pytest
from starlette.testclient import TestClient

from tests.api.studies import PREDICTED
from tuner.store import Store

WHOLE = json.dumps(PREDICTED)


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ('{"headroom": 0.05, "headroom": 0.0, ' + WHOLE[1:], "headroom"),
        (WHOLE.replace('"sequence_length"', '"hidden_size": 1, "hidden_size"'), "hidden_size"),
        ('{"a": {"b": [{"c": 1, "c": 1}]}}', "c"),
        ('{"pool": "a", "po\\u006fl": "b", ' + WHOLE[1:], "pool"),
        ('{"": 1, "": 2}', ""),
        ('{"\\ud800": 1, "\\ud800": 2}', "?"),
        (f'{{"{"x" * 500}": 1, "{"x" * 500}": 2}}', "x" * 80),
    ],
)
def test_a_name_that_is_there_twice_is_refused(
    client: TestClient, store: Store, body: str, name: str
) -> None:
    headers = {"content-type": "application/json"}
    refused = client.post("/tune", content=body, headers=headers)
    assert refused.status_code == 422
    assert refused.headers["content-type"] == "application/problem+json"
    assert refused.json()["field"] == name
    assert "twice" in refused.json()["detail"]
    assert store.studies() == []


@pytest.mark.parametrize(
    ("body", "media_type", "status"),
    [
        (WHOLE, "application/json", 202),
        ('{"a": 1, "a": ', "application/json", 400),
        ("[" * 50_000, "application/json", 400),
        ("\xff", "application/json", 400),
        (WHOLE, "text/plain", 415),
        ("", "application/json", 422),
    ],
)
def test_other_bodies_are_told_what_they_were(
    client: TestClient, body: str, media_type: str, status: int
) -> None:
    headers = {"content-type": media_type}
    answer = client.post("/tune", content=body.encode("latin-1"), headers=headers)
    assert answer.status_code == status
