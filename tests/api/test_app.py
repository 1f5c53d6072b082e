"""The application put together."""

import anyio
import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tuner.errors import UsageError
from tuner.store import Store


def test_it_is_up(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}


@pytest.mark.parametrize("path", ["/nowhere", "/docs", "/redoc", "/tune/", "/tune/st-0/nothing"])
def test_what_is_not_there_is_a_problem(client: TestClient, path: str) -> None:
    response = client.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"] == "there is nothing at this path"


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("/tune", "GET, HEAD, POST"),
        ("/tune/st-000000000000", "DELETE, GET, HEAD"),
        ("/tune/st-000000000000/events", "GET, HEAD"),
        ("/healthz", "GET, HEAD"),
    ],
)
def test_other_methods_are_told_which_there_are(
    client: TestClient, path: str, allowed: str
) -> None:
    response = client.put(path, json={})
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    assert allowed in response.json()["detail"]


def test_another_host_name_is_refused(client: TestClient) -> None:
    """A page of another name that resolves to this machine must not read studies."""
    assert client.get("/tune", headers={"host": "evil.example"}).status_code == 400


def test_requests_worked_at_side_by_side_are_few(store: Store) -> None:
    app = create_app(store, Settings(_env_file=None, threads=3))

    async def threads() -> float:
        async with app.router.lifespan_context(app):
            return anyio.to_thread.current_default_thread_limiter().total_tokens

    assert anyio.run(threads) == 3


def test_settings_that_contradict_each_other_are_refused(store: Store) -> None:
    with pytest.raises(UsageError):
        create_app(store, Settings(_env_file=None, host="192.0.2.1", require_keys=False))


def test_stopping_ends_all_waiting(app: FastAPI) -> None:
    app.state.stopping()
    assert app.state.context.poller.stopped
