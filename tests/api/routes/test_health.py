"""Whether the process answers, and whether its database can be worked with."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from sqlalchemy import text
from starlette.testclient import TestClient

from api.problems import add_problems
from api.routes.health import Readiness, health_router
from tuner.errors import StoreError
from tuner.store import Store, open_store
from tuner.store.tables import VERSION_TABLE


class Clock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/private.db") as opened:
        yield opened


@pytest.fixture
def client(store: Store, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setattr("api.routes.health.FRESH_S", 0.0)
    app = FastAPI()
    add_problems(app)
    app.include_router(health_router(store))
    return TestClient(app)


def test_it_is_up_and_ready(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready"})


def test_up_but_not_ready_on_another_versions_database(client: TestClient, store: Store) -> None:
    with store.transactions.write() as session:
        session.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    answer = client.get("/readyz")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert "schema is at 0001" in answer.json()["detail"]
    assert client.get("/healthz").status_code == 200


def test_a_database_that_is_gone_is_not_named_to_anybody_and_comes_back(
    client: TestClient,
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def gone(_: object) -> str:
        raise StoreError("the database /private.db cannot be used: it is gone")

    with monkeypatch.context() as patch:
        patch.setattr("api.routes.health.why_not_ready", gone)
        answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["detail"]) == (503, "the database cannot be used now")
    assert "private" not in answer.text
    assert "private" in caplog.text
    assert client.get("/readyz").status_code == 200


def test_one_looks_for_all_that_ask(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that hangs holds one thread, not those that requests need."""
    looks = []
    hangs = threading.Event()

    def look(_: object) -> str:
        looks.append(1)
        hangs.wait(30)
        return "it hung"

    async def ask() -> list[str]:
        asking = [asyncio.create_task(readiness.why_not()) for _ in range(100)]
        await asyncio.sleep(0)
        hangs.set()
        return await asyncio.gather(*asking)

    monkeypatch.setattr("api.routes.health.why_not_ready", look)
    clock = Clock()
    readiness = Readiness(store, clock=clock)
    assert asyncio.run(ask()) == ["it hung"] * 100
    assert len(looks) == 1
    clock.now = 1.0
    monkeypatch.setattr("api.routes.health.why_not_ready", lambda _: "")
    assert asyncio.run(readiness.why_not()) == ""
