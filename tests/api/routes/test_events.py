"""Event streams, from a service that really listens."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from api.schemas import Event
from tests.api.live import serving
from tests.api.studies import MEASURED, probe, question_of
from tuner.store import Store
from tuner.study import StudyState, Terms


@pytest.fixture
def live(app: FastAPI) -> Iterator[str]:
    with serving(app) as url:
        yield url


@pytest.fixture
def study_id(store: Store) -> str:
    return store.ask(question_of(MEASURED), Terms(max_probes=50)).id


def blocks(response: httpx.Response) -> Iterator[dict[str, str]]:
    """Events of a stream as they come in."""
    block: dict[str, str] = {}
    for line in response.iter_lines():
        if not line and block:
            yield block
            block = {}
        elif line and not line.startswith(":"):
            name, _, value = line.partition(": ")
            block[name] = value


def stream(url: str, study_id: str, **headers: str) -> Any:
    path = f"{url}/tune/{study_id}/events"
    return httpx.stream("GET", path, headers=headers, timeout=60)


def test_events_come_as_they_happen_until_the_end(live: str, store: Store, study_id: str) -> None:
    with stream(live, study_id) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        coming = blocks(response)
        first = next(coming)
        assert first["event"] == "asked"
        probe(store, study_id)
        second = next(coming)
        assert second["event"] == "study"
        store.move(study_id, StudyState.CANCELLED)
        rest = list(coming)
    told = [first, second, *rest]
    assert [int(one["id"]) for one in told] == [one.id for one in store.events(study_id)]
    for one in told:
        data = json.loads(one["data"])
        Event.model_validate(data)
        assert (str(data["id"]), data["kind"]) == (one["id"], one["event"])


def test_a_stream_is_taken_up_where_it_broke(live: str, store: Store, study_id: str) -> None:
    with stream(live, study_id) as response:
        last = next(blocks(response))["id"]
    probe(store, study_id)
    store.move(study_id, StudyState.CANCELLED)
    with stream(live, study_id, **{"Last-Event-ID": last}) as response:
        rest = [int(one["id"]) for one in blocks(response)]
    assert [int(last), *rest] == [one.id for one in store.events(study_id)]


def test_many_streams_hold_no_threads_and_the_service_answers(
    live: str, store: Store, study_id: str
) -> None:
    streams, threads_before = 60, threading.active_count()
    limits = httpx.Limits(max_connections=streams + 1)
    with httpx.Client(base_url=live, timeout=60, limits=limits) as client:
        opened = []
        try:
            for _ in range(streams):
                request = client.build_request("GET", f"/tune/{study_id}/events")
                opened.append(client.send(request, stream=True))
            coming = [blocks(response) for response in opened]
            assert {next(one)["event"] for one in coming} == {"asked"}
            assert threading.active_count() - threads_before < 15
            assert client.get("/healthz").status_code == 200
            store.move(study_id, StudyState.CANCELLED)
            told = {tuple(event["id"] for event in one) for one in coming}
        finally:
            for response in opened:
                response.close()
    assert told == {tuple(str(one.id) for one in store.events(study_id)[1:])}


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/tune/st-000000000000/events", {}, 404),
        ("/tune/st-0/events", {}, 422),
        ("/tune/{study_id}/events", {"Last-Event-ID": "x"}, 422),
        ("/tune/{study_id}/events", {"Last-Event-ID": "-1"}, 422),
        ("/tune/{study_id}/events", {"Last-Event-ID": "9" * 30}, 422),
    ],
)
def test_what_is_no_stream_is_a_problem(
    live: str, study_id: str, path: str, headers: dict[str, str], status: int
) -> None:
    response = httpx.get(live + path.format(study_id=study_id), headers=headers)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
