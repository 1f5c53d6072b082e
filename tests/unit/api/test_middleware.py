"""What is noted of each request, HEAD, compression, and headers of every answer."""

import asyncio
import gzip
import json
import logging

import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute, iter_route_contexts
from starlette.testclient import TestClient

from api.app import SECURITY_HEADERS, AccessLog, Heads, SecurityHeaders
from tests.unit.api.asgi import HOST, body_of, call, connection, echo
from tests.unit.api.studies import PREDICTED

UNLIKE = {"x-request-id"}


class Noted:
    """Stands in for the metrics."""

    def __init__(self):
        self.seen = []

    def observe(self, route, method, status, duration_s):
        assert duration_s >= 0
        self.seen.append((route, method, status))


@pytest.fixture
def noted():
    return Noted()


@pytest.fixture
def noting(noted):
    app, router = FastAPI(), APIRouter()

    @router.get("/tune/{study_id}")
    def show(study_id: str, request: Request) -> dict[str, str]:
        request.state.actor = "key-1"
        return {"study_id": study_id}

    @router.get("/healthz")
    async def healthz(bad: bool = False) -> StreamingResponse:
        async def stream():
            yield "ok"

        return StreamingResponse(stream(), status_code=503 if bad else 200)

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("ours")

    app.include_router(router)
    app.add_middleware(AccessLog, metrics=noted)
    return TestClient(app, raise_server_exceptions=False, client=("192.0.2.7", 50000))


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="api.access")
    return lambda: [vars(record) for record in caplog.records if record.name == "api.access"]


def test_a_request_is_one_line_by_its_route(noting, noted, lines):
    secrets = {"Authorization": "Bearer secret2", "Cookie": "secret3"}
    assert noting.get("/tune/st-1?token=secret1", headers=secrets).status_code == 200
    (line,) = lines()
    assert (line["method"], line["route"], line["status"]) == ("GET", "/tune/{study_id}", 200)
    assert (line["study"], line["actor"], line["client"]) == ("st-1", "key-1", "192.0.2.7")
    assert "secret" not in str(line)
    assert noted.seen == [("/tune/{study_id}", "GET", 200)]


def test_an_answer_names_its_request(noting):
    def name(given=None):
        headers = {} if given is None else {"X-Request-ID": given}
        return str(noting.get("/healthz", headers=headers).headers["X-Request-ID"])

    assert len({name() for _ in range(5)}) == 5
    assert name(b"job-1") == "job-1"
    for made_up in ("", "x" * 65, "two words", 'a"b', "é"):
        assert len(name(made_up.encode())) == 16


@pytest.mark.parametrize(("started", "status"), [(False, 499), (True, 200)])
def test_a_client_that_goes_is_noted(noted, started, status):
    """The server cancels its task, before or while it is answered."""

    async def app(scope, receive, send):
        if started:
            await send({"type": "http.response.start", "status": 200})
        raise asyncio.CancelledError

    async def send(message):
        assert message["headers"]

    scope = {"type": "http", "method": "GET", "headers": []}
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(AccessLog(app, metrics=noted)(scope, send, send))
    assert noted.seen == [("(none)", "GET", status)]


def test_every_route_has_head(app, client, keep_dry_runs):
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
    wrong = {"/nowhere": 404, "/tune/st-000000000000": 404, "/tune?limit=0": 422}
    for path, status in {**dict.fromkeys(paths, 200), **wrong}.items():
        get, head = client.get(path), client.head(path)
        assert (head.status_code, head.content) == (status, b""), path
        told = {name: value for name, value in get.headers.items() if name not in UNLIKE}
        if "/metrics" not in path:  # whose length grows with what was asked
            assert {name: head.headers[name] for name in told} == told, path
    client.head("/tune")
    assert 'method="HEAD",route="/tune",status="200"' in client.get("/metrics").text
    assert call(Heads(echo), connection()).status == 200, "what is none is let through"


def test_long_answers_are_compressed_for_who_asks(app, client):
    asked = [HOST, ("content-type", "application/json"), ("accept-encoding", "gzip")]
    body = json.dumps(PREDICTED).encode()
    answer = call(app, connection("POST", "/tune", asked), body_of(body))
    assert (answer.status, answer.headers["content-encoding"]) == (202, "gzip")
    assert answer.headers["vary"] == "Accept-Encoding"
    study = json.loads(gzip.decompress(answer.body))
    path = f"/tune/{study['study_id']}"
    plain = call(app, connection(path=path))
    assert "content-encoding" not in plain.headers
    assert plain.headers["etag"] == answer.headers["etag"]
    assert plain.headers["etag"].startswith('W/"'), "the same of both"
    assert plain.json == {name: value for name, value in study.items() if name != "notes"}
    assert "content-encoding" not in call(app, connection(path="/healthz", headers=asked)).headers
    client.delete(path)
    with client.stream("GET", f"{path}/events", headers={"Accept-Encoding": "gzip"}) as stream:
        assert "content-encoding" not in stream.headers, "events come as they happen"


def test_every_answer_has_the_headers_unless_it_says_otherwise(client):
    for path in ("/tune", "/nowhere", "/healthz", "/tune/st-000000000000"):
        found = client.get(path).headers
        for name, value in SECURITY_HEADERS.items():
            assert found[name] == value, path

    async def page(scope, receive, send):
        headers = [(b"content-security-policy", b"default-src 'self'")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b""})

    answer = call(SecurityHeaders(page), connection())
    assert answer.headers["content-security-policy"] == "default-src 'self'"
    assert len(answer.headers) == len(SECURITY_HEADERS)
