"""Parameters and headers that are there twice are refused: which is meant must not be guessed."""

import pytest
from fastapi import FastAPI

from tests.api.asgi import HOST, body_of, call, connection


@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("/tune", "limit=1&limit=2"),
        ("/tune", "limit=1&state=done&limit=1"),
        ("/tune/st-0123456789ab", "wait=1&wait=60"),
    ],
)
def test_a_parameter_is_there_once(app: FastAPI, path: str, query: str) -> None:
    answer = call(app, connection(path=path, query=query))
    assert answer.status == 422
    name = query.partition("=")[0]
    assert (answer.json["field"], answer.json["allowed"]) == (name, "may be there once")
    assert answer.json["detail"] == f"{name}: is there twice"


@pytest.mark.parametrize(
    ("method", "path", "name", "value"),
    [
        ("POST", "/tune", "Idempotency-Key", "a"),
        ("POST", "/tune", "Content-Type", "application/json"),
        ("GET", "/tune/st-0123456789ab", "If-None-Match", '"a"'),
        ("GET", "/tune/st-0123456789ab/events", "Last-Event-ID", "1"),
    ],
)
def test_a_header_is_there_once(
    app: FastAPI, method: str, path: str, name: str, value: str
) -> None:
    twice = [HOST, (name, value), (name.upper(), value)]
    answer = call(app, connection(method, path, twice), body_of(b"{}"))
    assert answer.status == 400
    assert (answer.json["field"], answer.json["allowed"]) == (name.lower(), "may be there once")


def test_balancers_may_send_what_they_like(app: FastAPI) -> None:
    assert call(app, connection(path="/readyz", query="a=1&a=2")).status == 200
