"""Parameters, headers and names that are there twice, or not at all; places in lists."""

import base64
import json

import pytest

from api.inputs import cursor_of, read_cursor
from tests.unit.api.asgi import HOST, body_of, call, connection
from tests.unit.api.studies import PREDICTED
from tuner.core.study import StudyState
from tuner.errors import UsageError
from tuner.store import StudySummary

WHOLE = json.dumps(PREDICTED)


def test_a_parameter_is_there_once(app):
    for path, query, name in (
        ("/tune", "limit=1&limit=2", "limit"),
        ("/tune", "limit=1&state=done&limit=1", "limit"),
        ("/tune/st-0123456789ab", "wait=1&wait=60", "wait"),
    ):
        answer = call(app, connection(path=path, query=query))
        assert (answer.status, answer.json["field"]) == (422, name)
        assert answer.json["allowed"] == "may be there once"
    assert call(app, connection(path="/readyz", query="a=1&a=2")).status == 200, "for balancers"


def test_a_header_is_there_once(app):
    for method, path, name, value in (
        ("POST", "/tune", "Idempotency-Key", "a"),
        ("POST", "/tune", "Content-Type", "application/json"),
        ("GET", "/tune/st-0123456789ab", "If-None-Match", '"a"'),
        ("GET", "/tune/st-0123456789ab/events", "Last-Event-ID", "1"),
    ):
        twice = [HOST, (name, value), (name.upper(), value)]
        answer = call(app, connection(method, path, twice), body_of(b"{}"))
        assert (answer.status, answer.json["field"]) == (400, name.lower())


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ('{"headroom": 0.05, "headroom": 0.0, ' + WHOLE[1:], "headroom"),
        ('{"a": {"b": [{"c": 1, "c": 1}]}}', "a.b.c"),
        ('{"pool": "a", "po\\u006fl": "b", ' + WHOLE[1:], "pool"),
        ('{"\\ud800": 1, "\\ud800": 2}', "?"),
        (f'{{"{"x" * 500}": 1, "{"x" * 500}": 2}}', "x" * 80),
    ],
)
def test_a_name_that_an_object_has_twice_is_refused(client, store, body, path):
    headers = {"content-type": "application/json"}
    for encoding in ("utf-8", "utf-16"):
        refused = client.post("/tune", content=body.encode(encoding), headers=headers)
        assert (refused.status_code, refused.json()["field"]) == (422, path)
        assert "twice" in refused.json()["detail"]
    assert store.studies() == []


def summary(asked_at="2026-11-21T06:10:00.123456Z"):
    return StudySummary(
        id="st-0123456789ab",
        model_name="m",
        cluster_name="c",
        state=StudyState.QUEUED,
        reason="",
        probes={},
        pool="",
        labels={},
        revision=0,
        created_at=asked_at,
        asked_at=asked_at,
        method="full",
        global_batch_size=8,
        sequence_length=128,
        framework="torch",
        fidelity="measured",
        has_ok=False,
    )


def word(value):
    text = value if isinstance(value, str) else json.dumps(value)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_a_place_is_found_again():
    one = summary()
    assert read_cursor(cursor_of(one)) == (one.asked_at, one.id)


def test_words_that_are_no_place_are_refused():
    moment = "2026-11-21T06:10:00Z"
    for made_up in (
        "", "x", "bm90aGluZw", "!!", "é", word([moment]), word([moment, "st-1"]), word([1, 2]),
        word(["2026-11-21T06:10:00", "st-0123456789ab"]), word({"a": 1}), word("[" * 5000),
        word([moment, "st-0123456789ab", "more"]),
    ):  # fmt: skip
        with pytest.raises(UsageError, match="must be the next of a page"):
            read_cursor(made_up)
