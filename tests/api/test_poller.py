"""One look for all who wait: what they get, in which order, and what it costs."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from api import poller as module
from api.poller import Poller
from tests.api.studies import MEASURED, probe, question_of
from tuner.errors import StoreError
from tuner.store import Store
from tuner.study import StudyState, Terms

WITHIN_S = 60


@pytest.fixture
def study_id(store: Store) -> str:
    """A study that was asked, and nothing more."""
    return store.ask(question_of(MEASURED), Terms(max_probes=50)).id


@pytest.fixture
def statements(store: Store) -> Iterator[list[str]]:
    """What is sent to the database from now on."""
    seen: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        seen.append(statement)

    engine = store.transactions.engine
    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Runs ``work`` in an event loop, and not for ever."""

    async def limited() -> Any:
        return await asyncio.wait_for(work(), WITHIN_S)

    return asyncio.run(limited())


async def ids_of(poller: Poller, study_id: str, after: int = 0, most: int = 10**9) -> list[int]:
    """Ids of events as one listener gets them."""
    found: list[int] = []
    async with poller.listen(study_id) as feed:
        assert feed is not None
        async for one in poller.events(feed, after):
            found.append(one.id)
            if len(found) == most:
                break
    return found


def test_what_happened_and_what_happens_comes_once_and_in_order(
    store: Store, study_id: str
) -> None:
    poller = Poller(store, 0.01)

    async def work() -> list[list[int]]:
        listening = [asyncio.create_task(ids_of(poller, study_id)) for _ in range(20)]
        for _ in range(3):
            await asyncio.to_thread(probe, store, study_id)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        return await asyncio.gather(*listening)

    found = run(work)
    everything = [one.id for one in store.events(study_id)]
    assert len(everything) > 9
    assert found == [everything] * 20


def test_one_reads_on_where_one_stopped(store: Store, study_id: str) -> None:
    poller = Poller(store, 0.01)
    probe(store, study_id)
    store.move(study_id, StudyState.CANCELLED)
    everything = [one.id for one in store.events(study_id)]

    async def work() -> list[int]:
        first = await ids_of(poller, study_id, most=3)
        return first + await ids_of(poller, study_id, after=first[-1])

    assert run(work) == everything


@pytest.mark.parametrize("after", [10**6, 2**62])
def test_a_place_that_nobody_was_at_is_the_end(store: Store, study_id: str, after: int) -> None:
    store.move(study_id, StudyState.CANCELLED)
    assert run(lambda: ids_of(Poller(store, 0.01), study_id, after)) == []


def test_a_long_history_is_read_in_pages(
    store: Store, study_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(module, "MOST_KEPT", 1)
    poller = Poller(store, 0.01)
    probe(store, study_id)

    async def work() -> list[int]:
        listening = asyncio.create_task(ids_of(poller, study_id))
        await asyncio.to_thread(probe, store, study_id)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        return await listening

    assert run(work) == [one.id for one in store.events(study_id)]


def test_a_study_that_is_asked_again_goes_on(store: Store, study_id: str) -> None:
    """The end and the asking may be read at one look."""
    poller = Poller(store, 0.2)

    async def work() -> list[int]:
        listening = asyncio.create_task(ids_of(poller, study_id))
        await asyncio.sleep(0.3)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        await asyncio.to_thread(store.ask, question_of(MEASURED), Terms(max_probes=51))
        await asyncio.sleep(0.5)
        assert not listening.done()
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        return await listening

    assert run(work) == [one.id for one in store.events(study_id)]


def test_queries_do_not_grow_with_listeners(
    store: Store, study_id: str, statements: list[str]
) -> None:
    def queries(listeners: int) -> float:
        """For each event, while it happens."""
        poller = Poller(store, 0.05)

        async def work() -> float:
            listening = [asyncio.create_task(ids_of(poller, study_id)) for _ in range(listeners)]
            while sum(feed.listeners for feed in poller._feeds.values()) < listeners:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.2)
            statements.clear()
            await asyncio.sleep(1.0)
            looks = sum("SELECT" in one for one in statements)
            poller.stop()
            await asyncio.gather(*listening)
            return looks

        return float(run(work))

    one, many = queries(1), queries(100)
    assert one > 0
    assert many < 2 * one  # looks are by the clock, so their number differs a little


def test_nobody_listens_and_nothing_is_asked(
    store: Store, study_id: str, statements: list[str]
) -> None:
    poller = Poller(store, 0.01)

    async def work() -> None:
        await ids_of(poller, study_id, most=1)
        await asyncio.sleep(0.1)
        statements.clear()
        await asyncio.sleep(0.2)

    run(work)
    assert statements == []
    assert poller._feeds == {}


def test_an_unknown_study_has_no_feed(store: Store) -> None:
    async def work() -> None:
        async with Poller(store, 0.01).listen("st-000000000000") as feed:
            assert feed is None

    run(work)


def test_a_database_that_is_away_is_waited_for(
    store: Store, study_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    poller = Poller(store, 0.01)
    read, failures = poller._read, []

    def fail(known: Any) -> Any:
        if len(failures) < 3:
            failures.append(known)
            raise StoreError("gone")
        return read(known)

    monkeypatch.setattr(poller, "_read", fail)

    async def work() -> list[int]:
        listening = asyncio.create_task(ids_of(poller, study_id))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        return await listening

    assert run(work) == [one.id for one in store.events(study_id)]
    assert len(failures) == 3


def test_all_waiting_ends_when_the_service_does(store: Store, study_id: str) -> None:
    poller = Poller(store, 0.01)

    async def work() -> list[list[int]]:
        listening = [asyncio.create_task(ids_of(poller, study_id)) for _ in range(3)]
        await asyncio.sleep(0.1)
        poller.stop()
        return await asyncio.gather(*listening)

    assert [len(found) for found in run(work)] == [1, 1, 1]
