"""A disk that is full, a database that is read-only, or gone: a clear error, and on it goes."""

import sqlite3
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from copy import deepcopy

import pytest
from sqlalchemy import event
from starlette.testclient import TestClient

from api.app import create_app
from api.settings import Settings
from tests.unit.api.studies import MEASURED
from tuner.errors import AwayError
from tuner.store import open_store


def asked(number):
    body = deepcopy(MEASURED)
    body["workload"] |= {
        "sequence_length": 8 * (1 + number % 32),
        "global_batch_size": 4 * (1 + number // 32),
    }
    return body


@contextmanager
def calling(store, **more):
    app = create_app(store, Settings(_env_file=None, poll_s=0.02, **more))
    with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
        yield client


def ask(client, number):
    answer = client.post("/tune", json=asked(number))
    assert answer.status_code == 202
    return client.get(answer.headers["location"]).json()


def refused(answer):
    """It is the database's trouble, said without a word about this machine."""
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "5"
    assert answer.json()["detail"] == "the database cannot be used now"


@contextmanager
def pragma(engine, begin, end):
    """Sets something for every connection, those that are open too, until left."""
    now = [begin]

    def set_up(connection, *_):
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
def full(store):
    with pragma(
        store.transactions.engine, "PRAGMA max_page_count = 1", "PRAGMA max_page_count = 1000000"
    ):
        yield


def fill(client):
    for number in range(100, 400):
        answer = client.post("/tune", json=asked(number))
        if answer.status_code != 202:
            return refused(answer)
    raise AssertionError("it never did")


def test_a_full_disk(store):
    with calling(store) as client:
        first = ask(client, 1)
        with full(store):
            fill(client)
            number = len(store.studies(limit=1000))
            assert client.get(f"/tune/{first['study_id']}").json() == first, "it can be read"
            ready = client.get("/readyz")
            assert (ready.status_code, ready.json()) == (200, {"status": "degraded"})
        assert client.post("/tune", json=asked(2)).status_code == 202
        assert len(store.studies(limit=1000)) == number + 1, "nothing was half written"


def test_a_write_lock_that_another_holds_keeps_nobody_from_reading(store, url, monkeypatch):
    monkeypatch.setattr("api.security.WRITE_S", 0.1)
    store.transactions.engine.dispose()
    with open_store(url, patience_s=60) as patient, calling(patient, threads=4) as client:
        ids = [ask(client, number)["study_id"] for number in range(6)]
        other = sqlite3.connect(store.transactions.engine.url.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with ThreadPoolExecutor(6) as callers:
            deleted = [callers.submit(client.delete, f"/tune/{one}") for one in ids]
            done, waiting = wait(deleted, return_when=FIRST_COMPLETED)
            refused(done.pop().result())
            for path in ("/tune?limit=1", f"/tune/{ids[0]}", f"/tune/{ids[1]}/probes", "/readyz"):
                assert client.get(path).status_code == 200, path
            assert [one for one in waiting if not one.done()], "some of them still wait"
            other.execute("ROLLBACK")
        other.close()
        found = [one.result().status_code for one in deleted]
        assert found.count(200) == 2, "half of the threads"
        assert found.count(503) == 4


def test_what_may_be_left_out_waits_for_no_lock(store, url):
    with calling(store) as client:
        study_id = ask(client, 1)["study_id"]
        other = sqlite3.connect(store.transactions.engine.url.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(AwayError, match="another process has held its lock"):
            store.keep_summary(study_id, {}, 10**6)
        assert client.get("/readyz").json() == {"status": "ready"}, "nothing was lost by that"
        other.close()
