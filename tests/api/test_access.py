"""What is noted of each request, and what is not."""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import StreamingResponse
from starlette.testclient import TestClient

from api.access import AccessLog


class Noted:
    """Stands in for the metrics."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int]] = []

    def observe(self, route: str, method: str, status: int, duration_s: float) -> None:
        assert duration_s >= 0
        self.seen.append((route, method, status))


@pytest.fixture
def noted() -> Noted:
    return Noted()


@pytest.fixture
def client(noted: Noted) -> TestClient:
    app, router = FastAPI(), APIRouter()

    @router.get("/tune/{study_id}")
    def show(study_id: str, request: Request) -> dict[str, str]:
        request.state.actor = "key-1"
        return {"study_id": study_id}

    @router.get("/healthz")
    async def healthz(bad: bool = False) -> StreamingResponse:
        async def stream() -> AsyncIterator[str]:
            yield "ok"

        return StreamingResponse(stream(), status_code=503 if bad else 200)

    @app.get("/broken")
    def broken() -> None:
        raise RuntimeError("ours")

    app.include_router(router)
    app.add_middleware(AccessLog, metrics=noted)
    return TestClient(app, raise_server_exceptions=False, client=("192.0.2.7", 50000))


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(record) for record in caplog.records if record.name == "api.access"]


@pytest.fixture(autouse=True)
def shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="api.access")


def test_a_request_is_one_line_by_its_route(
    client: TestClient, noted: Noted, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.get(
        "/tune/st-1?token=secret1", headers={"Authorization": "Bearer secret2", "Cookie": "secret3"}
    )
    assert answer.status_code == 200
    (line,) = lines(caplog)
    assert (line["method"], line["route"], line["status"]) == ("GET", "/tune/{study_id}", 200)
    assert (line["study"], line["actor"], line["client"]) == ("st-1", "key-1", "192.0.2.7")
    assert "secret" not in str(line)
    assert noted.seen == [("/tune/{study_id}", "GET", 200)]


@pytest.mark.parametrize(
    ("method", "path", "route", "status"),
    [
        ("GET", "/nowhere/secret", "(none)", 404),
        ("POST", "/tune/st-1", "/tune/{study_id}", 405),
        ("GET", "/broken", "/broken", 500),
    ],
)
def test_what_fails_is_noted_too(
    client: TestClient, noted: Noted, method: str, path: str, route: str, status: int
) -> None:
    assert client.request(method, path).status_code == status
    assert noted.seen == [(route, method, status)]


def test_health_is_logged_only_when_it_is_bad(
    client: TestClient, noted: Noted, caplog: pytest.LogCaptureFixture
) -> None:
    client.get("/healthz")
    assert lines(caplog) == []
    client.get("/healthz?bad=true")
    assert [line["status"] for line in lines(caplog)] == [503]
    assert [status for _, _, status in noted.seen] == [200, 503]


def test_an_answer_names_its_request(client: TestClient) -> None:
    names = {client.get("/healthz").headers["X-Request-ID"] for _ in range(5)}
    assert len(names) == 5
    assert client.get("/healthz", headers={"X-Request-ID": "job-1"}).headers["X-Request-ID"] == (
        "job-1"
    )


@pytest.mark.parametrize("name", ["", "x" * 65, "two words", 'a"b', "é"])
def test_a_name_that_is_no_short_word_is_not_taken(client: TestClient, name: str) -> None:
    answer = client.get("/healthz", headers={"X-Request-ID": name.encode()})
    assert len(answer.headers["X-Request-ID"]) == 16


@pytest.mark.parametrize(("started", "status"), [(False, 499), (True, 200)])
def test_a_client_that_goes_is_noted(noted: Noted, started: bool, status: int) -> None:
    """The server cancels its task, before or while it is answered."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200})
        raise asyncio.CancelledError

    async def send(message: Any) -> None:
        assert message["headers"]

    scope = {"type": "http", "method": "GET", "headers": []}
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(AccessLog(app, metrics=noted)(scope, send, send))
    assert noted.seen == [("(none)", "GET", status)]
