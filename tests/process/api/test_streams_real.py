"""Event streams and long polls through a server that really listens, by callers that break off."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import pytest

from api.app import create_app
from api.settings import Settings
from tests.process.api.live import serving
from tests.unit.api.studies import MEASURED, ok, question_of
from tuner.core.configuration import Settings as Knobs
from tuner.core.measurement import Fidelity
from tuner.core.study import OPEN, Limits, ProbeRequest, StudyState
from tuner.store import Store, WorkerIdentity, open_store

WITHIN_S = 120
STUDIES = 3


@pytest.fixture
def ids(store: Store) -> list[str]:
    """Studies that run."""
    workload = MEASURED["workload"]
    bodies = [
        {**MEASURED, "workload": {**workload, "global_batch_size": 16 * (number + 1)}}
        for number in range(STUDIES)
    ]
    found = [store.ask(question_of(body), Limits(max_probes=500)).id for body in bodies]
    for study_id in found:
        assert store.move(study_id, StudyState.RUNNING, worker=WorkerIdentity.of_this_process())
    return found


def probe(store: Store, study_id: str, repetition: int) -> None:
    """A probe from queued to done, and not planned: three events."""
    standing = store.status(study_id)
    assert standing is not None
    settings = Knobs(micro_batch_size=1, gradient_accumulation_steps=8)
    request = ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED, repetition=repetition)
    assert store.enter_probe(study_id, standing.revision, request, None)
    claim = store.claim(study_id, WorkerIdentity.of_this_process())
    assert claim is not None
    assert store.record(claim, ok(1.0, 8))


def write(store: Store, ids: list[str], first: int, probes: int, *, end: bool) -> None:
    """Probes of all studies in turn, and their ends."""
    for repetition in range(first, first + probes):
        for study_id in ids:
            probe(store, study_id, repetition)
    for study_id in ids if end else ():
        assert store.move(study_id, StudyState.DONE, "all probes are done")


@contextmanager
def served(url: str, **more: Any) -> Iterator[str]:
    """A server over the database, with connections of its own."""
    settings = Settings(_env_file=None, poll_s=0.02, **more)
    with open_store(url) as store, serving(create_app(store, settings)) as address:
        yield address


@asynccontextmanager
async def caller(address: str) -> AsyncIterator[httpx.AsyncClient]:
    """Connections without bounds."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=address, timeout=60, limits=limits) as client:
        yield client


def run(work: Awaitable[Any]) -> Any:
    """Not for ever."""
    return asyncio.run(asyncio.wait_for(work, WITHIN_S))


async def listen(client: httpx.AsyncClient, study_id: str, told: list[int], most: int) -> bool:
    """Be told of ``most`` more events, and break off; whether the study's end was among them."""
    headers = {"Last-Event-ID": str(told[-1])} if told else {}
    async with client.stream("GET", f"/tune/{study_id}/events", headers=headers) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            told.append(event["id"])
            if event["kind"] == "study" and event["data"]["state"] not in OPEN:
                return True
            most -= 1
            if not most:
                break
    return False


async def follow(client: httpx.AsyncClient, study_id: str, turns: random.Random) -> list[int]:
    """All that one caller is told who breaks off again and again."""
    told: list[int] = []
    while not await listen(client, study_id, told, turns.randint(1, 9)):
        pass
    return told


def events_of(store: Store, study_id: str) -> list[int]:
    return [event.id for event in store.events(study_id)]


def test_every_event_comes_once_and_in_order_whoever_breaks_off(
    store: Store, url: str, ids: list[str]
) -> None:
    async def work(address: str) -> list[list[int]]:
        async with caller(address) as client:
            following = [
                asyncio.create_task(follow(client, study_id, random.Random(number)))
                for number, study_id in enumerate(ids * 4)
            ]
            await asyncio.to_thread(write, store, ids, 0, 6, end=True)
            return await asyncio.gather(*following)

    with served(url) as address:
        found = run(work(address))
    truth = [events_of(store, study_id) for study_id in ids]
    assert min(map(len, truth)) > 18
    assert found == truth * 4


def test_nothing_is_missed_between_two_servers(store: Store, url: str, ids: list[str]) -> None:
    """The first one ends while all listen; what happens then is told by the second."""
    told: list[list[int]] = [[] for _ in ids]

    async def all_of(client: httpx.AsyncClient) -> list[bool]:
        each = zip(ids, told, strict=True)
        return await asyncio.gather(*(listen(client, *one, most=10**9) for one in each))

    async def first(address: str, stop: Callable[[], None]) -> None:
        async with caller(address) as client:
            listening = asyncio.create_task(all_of(client))
            await asyncio.to_thread(write, store, ids, 0, 3, end=False)
            while any(len(one) < 5 for one in told):
                await asyncio.sleep(0.01)
            stop()
            assert await listening == [False] * len(ids)

    async def second(address: str) -> None:
        async with caller(address) as client:
            assert await all_of(client) == [True] * len(ids)

    settings = Settings(_env_file=None, poll_s=0.02)
    with open_store(url) as other:
        app = create_app(other, settings)
        with serving(app) as address:
            run(first(address, app.state.stopping))
    write(store, ids, 3, 3, end=True)
    with served(url) as address:
        run(second(address))
    assert told == [events_of(store, study_id) for study_id in ids]


def test_who_waits_holds_no_thread(store: Store, url: str, ids: list[str]) -> None:
    """There are two threads and 30 who wait; others are answered all the same."""

    async def poll(client: httpx.AsyncClient, study_id: str) -> str:
        response = await client.get(f"/tune/{study_id}", params={"wait": 60})
        assert response.status_code == 200
        state: str = response.json()["state"]
        return state

    async def work(address: str) -> None:
        async with caller(address) as client:
            polls = [asyncio.create_task(poll(client, each)) for each in ids * 5]
            streams = [asyncio.create_task(listen(client, each, [], 10**9)) for each in ids * 5]
            for _ in range(5):
                for path in ("/healthz", "/readyz", "/tune", f"/tune/{ids[0]}"):
                    assert (await client.get(path)).status_code == 200
            assert not any(task.done() for task in (*polls, *streams))
            await asyncio.to_thread(write, store, ids, 0, 2, end=True)
            assert set(await asyncio.gather(*polls)) == {"done"}
            assert all(await asyncio.gather(*streams))

    with served(url, threads=2) as address:
        run(work(address))
