"""One look for all who wait: what they get, in which order, and what it costs."""

import asyncio
import threading
from itertools import cycle

import pytest
from sqlalchemy import event

from api import events as module
from api.events import Poller
from tests.unit.api.studies import MEASURED, probe, question_of
from tuner.core.study import Limits, StudyState
from tuner.errors import StoreError

WITHIN_S = 60


@pytest.fixture
def study_id(store):
    return store.ask(question_of(MEASURED), Limits(max_probes=50)).id


@pytest.fixture
def statements(store):
    """What is sent to the database from now on."""
    seen = []

    def note(connection, cursor, statement, *rest):
        seen.append(statement)

    engine = store.transactions.engine
    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


@pytest.fixture
def new_looks(monkeypatch):
    """Makes a queue: from then on a poller looks when something is put there, and not before."""

    def make():
        looks = asyncio.Queue()
        monkeypatch.setattr(module.asyncio, "sleep", lambda pause_s: looks.get())
        return looks

    return make


def run(work):

    async def limited():
        return await asyncio.wait_for(work(), WITHIN_S)

    return asyncio.run(limited())


async def ids_of(poller, study_id, after=0, most=10**9, seen=None):
    """Ids of events as one listener gets them; ``seen`` has them at once."""
    found = [] if seen is None else seen
    async with poller.listen(study_id) as feed:
        assert feed is not None
        async for one in poller.events(feed, after):
            found.append(one.id)
            if len(found) == most:
                break
    return found


def test_one_reads_on_where_one_stopped_page_by_page(store, study_id, monkeypatch):
    monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(module, "MOST_KEPT", 1)
    poller = Poller(store, 0.01)
    probe(store, study_id)

    async def work():
        first = await ids_of(poller, study_id, most=3)
        listening = asyncio.create_task(ids_of(poller, study_id, after=first[-1]))
        await asyncio.to_thread(probe, store, study_id)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        return first + await listening

    assert run(work) == [one.id for one in store.events(study_id)]
    for nobody_was_at in (10**6, 2**62):
        assert run(lambda after=nobody_was_at: ids_of(poller, study_id, after)) == []


def test_a_study_that_is_asked_again_goes_on(store, study_id, new_looks):
    """The end and the request are read at one look."""
    poller, looks, seen = Poller(store, 60.0), new_looks(), list[int]()

    async def work():
        listening = asyncio.create_task(ids_of(poller, study_id, seen=seen))
        while not seen:
            await asyncio.wait([listening], timeout=0.01)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        await asyncio.to_thread(store.ask, question_of(MEASURED), Limits(max_probes=51))
        looks.put_nowait(None)
        happened = [one.id for one in store.events(study_id)]
        while seen != happened:
            await asyncio.wait([listening], timeout=0.01)
            assert not listening.done()
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        looks.put_nowait(None)
        await listening

    run(work)
    assert seen == [one.id for one in store.events(study_id)]


def test_queries_do_not_grow_with_listeners(store, study_id, statements, new_looks):
    """Exactly the same ones for one and for a hundred, of whom each gets all that happens."""
    changes, states = 6, cycle([StudyState.RUNNING, StudyState.QUEUED])

    def queries(listeners):
        """All that are made while things happen, with one look after each."""
        poller, looks = Poller(store, 60.0), new_looks()
        before = store.events(study_id)[-1].id

        async def work():
            wanted = [ids_of(poller, study_id, before, changes) for _ in range(listeners)]
            listening = [asyncio.create_task(one) for one in wanted]
            while sum(feed.listeners for feed in poller._feeds.values()) < listeners:
                await asyncio.wait(listening, timeout=0.01)
            statements.clear()
            for _ in range(changes):
                assert await asyncio.to_thread(store.move, study_id, next(states))
                changed = poller._feeds[study_id].changed
                looks.put_nowait(None)
                await changed.wait()
            found = await asyncio.gather(*listening)
            seen = list(statements)
            happened = [one.id for one in store.events(study_id, before)]
            assert found == [happened] * listeners
            assert len(happened) == changes
            return seen

        return list(run(work))

    one, many = queries(1), queries(100)
    assert sum("FROM events" in each and "ORDER BY" in each for each in one) == changes
    assert many == one


def test_a_database_that_is_away_is_waited_for(store, study_id, monkeypatch):
    poller = Poller(store, 0.01)
    read, failures = store.changes, []

    def fail(known, most):
        if len(failures) < 3:
            failures.append(known)
            raise StoreError("gone")
        return read(known, most)

    monkeypatch.setattr(store, "changes", fail)

    async def work():
        listening = asyncio.create_task(ids_of(poller, study_id))
        while len(failures) < 3:
            await asyncio.wait([listening], timeout=0.01)
            assert not listening.done()
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        return await listening

    assert run(work) == [one.id for one in store.events(study_id)]
    assert len(failures) == 3


def test_a_look_for_one_who_has_gone_tells_nothing_to_who_comes_then(
    store, study_id, new_looks, monkeypatch
):
    """The look was for what the first one did not know, and is late."""
    poller, looks = Poller(store, 60.0), new_looks()
    read, begun, late = store.changes, threading.Event(), threading.Event()

    def slow(known, most):
        found = read(known, most)
        begun.set()
        assert late.wait(WITHIN_S)
        return found

    async def listen(seen, until):
        listening = asyncio.create_task(ids_of(poller, study_id, seen=seen))
        while not until():
            await asyncio.wait([listening], timeout=0.01)
        return listening

    async def work():
        first = []
        one = await listen(first, lambda: len(first) == 1)
        await asyncio.to_thread(store.move, study_id, StudyState.RUNNING)
        monkeypatch.setattr(store, "changes", slow)
        looks.put_nowait(None)
        assert await asyncio.to_thread(begun.wait, WITHIN_S)
        one.cancel()
        await asyncio.wait([one])
        second = []
        another = await listen(second, lambda: len(second) == 2)
        monkeypatch.setattr(store, "changes", read)
        late.set()
        looks.put_nowait(None)
        while not looks.empty():  # it is taken when the late look is over
            await asyncio.wait([another], timeout=0.01)
        third = []
        last = await listen(third, lambda: len(third) >= 2)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        looks.put_nowait(None)
        return [await another, await last]

    assert run(work) == [[one.id for one in store.events(study_id)]] * 2
