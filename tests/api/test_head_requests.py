"""HEAD: what GET would say, without the body."""

import http.client
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.testclient import TestClient

from api.head_requests import Heads
from tests.api.asgi import call, connection, echo
from tests.api.live import serving
from tests.api.studies import MEASURED, PREDICTED
from tuner.store import Store

UNLIKE = {"x-request-id"}
"""Headers that two answers never share."""


def test_every_route_has_it(
    app: FastAPI, client: TestClient, keep_dry_runs: Callable[[Any], None]
) -> None:
    asked = {**PREDICTED, "framework": "accelerate"}
    keep_dry_runs(asked)
    study_id = client.post("/tune", json=asked).json()["study_id"]
    paths = {
        one.path_format.format(study_id=study_id, format_name="accelerate")
        for one in iter_route_contexts(app.routes)
        if isinstance(one.route, APIRoute)
        and one.route.include_in_schema
        and "GET" in (one.methods or ())
    }
    assert len(paths) >= 8
    for path in sorted(paths):
        get, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (200, b""), path
        told = {name: value for name, value in get.headers.items() if name not in UNLIKE}
        if "/metrics" not in path:  # whose length grows with what was asked
            assert {name: head.headers[name] for name in told} == told, path


@pytest.mark.parametrize(
    ("path", "status"),
    [("/nowhere", 404), ("/tune/st-000000000000", 404), ("/tune?limit=0", 422)],
)
def test_what_is_wrong_is_wrong(client: TestClient, path: str, status: int) -> None:
    head = client.head(path)
    assert (head.status_code, head.content) == (status, b"")
    assert head.headers["content-type"] == "application/problem+json"


def test_the_log_and_the_metrics_see_what_it_is(client: TestClient) -> None:
    client.head("/tune")
    assert 'method="HEAD",route="/tune",status="200"' in client.get("/metrics").text


def test_what_is_none_is_let_through() -> None:
    assert call(Heads(echo), connection()).status == 200


def test_a_server_sends_no_body_and_a_stream_ends(app: FastAPI, store: Store) -> None:
    with TestClient(app, base_url="http://localhost") as client:
        study_id = client.post("/tune", json=MEASURED).json()["study_id"]
    with serving(app) as url:
        caller = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        for path in (f"/tune/{study_id}/events", f"/tune/{study_id}", "/healthz", "/nowhere"):
            caller.request("HEAD", path)  # on one connection: nothing of a body stands between
            found = caller.getresponse()
            assert found.read() == b""
            assert found.status == (404 if path == "/nowhere" else 200)
            kind = "text/event-stream; charset=utf-8" if "events" in path else None
            assert kind in (None, found.getheader("content-type"))
        caller.close()
        assert not app.state.context.poller._feeds, "nobody listens"
