"""A disk that is full, a database that is read-only, or gone: a clear error, and on it goes."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import Engine, event
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.system.chaos.databases import PostgresServer, postgresql
from tests.unit.api.studies import MEASURED, probe
from tuner.store import Store, open_store

Trouble = Callable[[Store], AbstractContextManager[None]]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server that may be stopped."""
    with postgresql() as found:
        yield found


def asked(number: int) -> Any:
    """A question of its own."""
    body = deepcopy(MEASURED)
    body["workload"] |= {
        "sequence_length": 8 * (1 + number % 32),
        "global_batch_size": 4 * (1 + number // 32),
    }
    return body


@contextmanager
def calling(store: Store, **more: Any) -> Iterator[TestClient]:
    app: FastAPI = create_app(store, Settings(_env_file=None, poll_s=0.02, **more))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def ask(client: TestClient, number: int) -> Any:
    """A new study, as it is shown."""
    answer = client.post("/tune", json=asked(number))
    assert answer.status_code == 202
    return client.get(answer.headers["location"]).json()


def refused(answer: Any) -> None:
    """It is the database's trouble, said without a word about this machine."""
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["detail"] == "the database cannot be used now"


@contextmanager
def pragma(engine: Engine, begin: str, end: str) -> Iterator[None]:
    """Sets something for every connection, those that are open too, until left."""
    now = [begin]

    def set_up(connection: Any, *_: object) -> None:
        connection.execute(now[0])

    engine.dispose()  # new ones are set up
    event.listen(engine, "checkout", set_up)
    try:
        yield
    finally:
        now[0] = end
        with engine.connect():
            pass  # the pool's connection has it
        event.remove(engine, "checkout", set_up)


@contextmanager
def full(store: Store) -> Iterator[None]:
    """The disk: the file cannot grow."""
    with pragma(
        store.transactions.engine, "PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000"
    ):
        yield


@contextmanager
def read_only(store: Store) -> Iterator[None]:
    """The file."""
    with pragma(store.transactions.engine, "PRAGMA query_only = ON", "PRAGMA query_only = OFF"):
        yield


@contextmanager
def away(store: Store) -> Iterator[None]:
    """The file, with its log, as of a disk that is not mounted."""
    path = Path(str(store.transactions.engine.url.database))
    moved = path.with_name("away")
    moved.mkdir()
    files = sorted(path.parent.glob(f"{path.name}*"))
    for file in files:
        file.rename(moved / file.name)
    yield
    assert not list(path.parent.glob(f"{path.name}*")), "nothing is made in its place"
    for file in reversed(files):  # who looks for it meanwhile finds it with its log, or not at all
        (moved / file.name).rename(file)
    moved.rmdir()


def fill(client: TestClient) -> None:
    """Ask until the file would have to grow."""
    for number in range(100, 400):
        answer = client.post("/tune", json=asked(number))
        if answer.status_code != 202:
            return refused(answer)
    raise AssertionError("it never did")


def test_a_full_disk(store: Store) -> None:
    with calling(store) as client:
        first = ask(client, 1)
        with full(store):
            fill(client)
            number = len(store.studies(limit=1000))
            assert client.get(f"/tune/{first['study_id']}").json() == first, "it can be read"
            assert client.get("/readyz").status_code == 200
        assert client.post("/tune", json=asked(2)).status_code == 202
        assert len(store.studies(limit=1000)) == number + 1, "nothing was half written"


def test_a_file_that_cannot_be_written(store: Store) -> None:
    with calling(store) as client:
        first = ask(client, 1)
        path = f"/tune/{first['study_id']}"
        with read_only(store):
            refused(client.post("/tune", json=asked(2)))
            refused(client.delete(path))
            assert client.get(path).json() == first
            assert [one["study_id"] for one in client.get("/tune").json()["studies"]] == [
                first["study_id"]
            ]
        assert client.post("/tune", json=asked(2)).status_code == 202
        assert client.delete(path).json()["state"] == "cancelled"


def test_a_file_that_is_away(store: Store) -> None:
    with calling(store) as client:
        first = ask(client, 1)
        path = f"/tune/{first['study_id']}"
        with away(store):
            for call in (
                lambda: client.get(path),
                lambda: client.get(f"{path}?wait=1"),
                lambda: client.get("/tune"),
                lambda: client.post("/tune", json=asked(2)),
            ):
                refused(call())
            assert client.get("/healthz").status_code == 200
            assert client.get("/readyz").status_code == 503
        assert client.get(path).json() == first
        assert client.post("/tune", json=asked(2)).status_code == 202


def test_a_wait_goes_on_when_the_file_is_back(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """One that was begun before it was away, and looked for it meanwhile."""
    with calling(store, max_concurrent=10) as client, ThreadPoolExecutor(1) as pool:
        study_id = client.post("/tune", json=asked(1)).json()["study_id"]
        seen = client.get(f"/tune/{study_id}").headers["etag"]
        headers = {"If-None-Match": seen}
        waiting = pool.submit(client.get, f"/tune/{study_id}?wait=60", headers=headers)
        context = client.app.state.context  # type: ignore[attr-defined]
        until(lambda: study_id in context.poller._feeds)
        with away(store):
            refused(client.get(f"/tune/{study_id}"))
            until(lambda: "listeners wait" in caplog.text)
        assert not waiting.done()
        probe(store, study_id)
        found = waiting.result(timeout=60)
        assert found.status_code == 200
        assert found.json()["revision"] > 0


def until(is_so: Callable[[], bool]) -> None:
    """Waits for it, and not for ever."""
    for _ in range(6000):
        if is_so():
            return
        time.sleep(0.01)
    raise AssertionError("it never was")


@pytest.mark.xdist_group("postgresql")
def test_a_server_that_is_gone(server: PostgresServer) -> None:
    with open_store(server.url) as store, calling(store) as client:
        first = ask(client, 3)
        path = f"/tune/{first['study_id']}"
        server.stop("immediate")
        try:
            for call in (
                lambda: client.get(path),
                lambda: client.get(f"{path}/events"),
                lambda: client.post("/tune", json=asked(4)),
            ):
                refused(call())
            assert client.get("/readyz").status_code == 503
        finally:
            server.start()
        assert client.get(path).json() == first
        assert client.post("/tune", json=asked(4)).status_code == 202
