"""Pages that move: what viewers are sent, and what it costs."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from api.answers import Answers
from api.pages import live as module
from api.pages.live import Change, Live
from api.pages.study import PARTS, StudyPages
from api.poller import Feed, Poller
from tests.api.studies import MEASURED, ok, probe, question_of
from tuner.errors import StoreError
from tuner.store import Store
from tuner.store.standing import Standing, Standings
from tuner.study import StudyState, Terms

WITHIN_S = 60
VIEWERS = 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are sent as they come."""
    monkeypatch.setattr(module, "LEAST_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_S", 0.01)


@pytest.fixture
def study_id(store: Store) -> str:
    """A study of which something was measured."""
    study = store.ask(question_of(MEASURED), Terms(max_probes=50))
    probe(store, study.id)
    return study.id


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


def live_of(store: Store) -> tuple[Live, Poller, StudyPages]:
    poller = Poller(store, 0.01)
    pages = StudyPages(store, Answers(store))
    return Live(pages, poller), poller, pages


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def limited() -> Any:
        return await asyncio.wait_for(work(), WITHIN_S)

    return asyncio.run(limited())


async def watch(
    live: Live, poller: Poller, study_id: str, seen: list[Change], known: str = ""
) -> None:
    """What one viewer is sent, until the end."""
    async with poller.listen(study_id) as feed:
        assert feed is not None
        async for change in live.changes(feed, known):
            seen.append(change)  # noqa: PERF401 (others look at it meanwhile)


async def until(ready: Callable[[], bool]) -> None:
    while not ready():
        await asyncio.sleep(0.005)


def test_a_viewer_is_sent_what_changes_and_the_end(store: Store, study_id: str) -> None:
    live, poller, pages = live_of(store)
    seen: list[Change] = []

    async def work() -> None:
        watching = asyncio.create_task(watch(live, poller, study_id, seen))
        await until(lambda: len(seen) == 1)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED, "enough")
        await watching

    run(work)
    first, *_, last = seen
    assert tuple(first.parts) == PARTS
    assert first.as_dict()["is_open"] is True
    assert (last.as_dict()["state"], last.as_dict()["is_open"]) == ("cancelled", False)
    assert "status" in last.parts
    assert "enough" in last.parts["status"]
    assert "probes" not in last.parts  # nothing was probed meanwhile
    shown = dict(first.parts)
    for change in seen[1:]:
        shown |= change.parts
    assert shown == pages.of(last_standing(store, study_id)).parts


def test_one_who_has_the_page_is_sent_nothing_until_something_changes(
    store: Store, study_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, poller, pages = live_of(store)
    version = pages.of(last_standing(store, study_id)).version
    seen: list[Change] = []
    whole, made = pages.of, list[Standing]()
    monkeypatch.setattr(pages, "of", lambda standing: made.append(standing) or whole(standing))

    async def work() -> None:
        watching = asyncio.create_task(watch(live, poller, study_id, seen, version))
        await until(lambda: bool(made) and not live._making)
        await asyncio.sleep(0.05)
        assert seen == []
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        await watching

    run(work)
    assert len(seen) >= 1
    assert set(seen[0].parts) < set(PARTS)


def test_one_who_comes_after_the_end_is_told_so(store: Store, study_id: str) -> None:
    store.move(study_id, StudyState.CANCELLED)
    live, poller, pages = live_of(store)
    version = pages.of(last_standing(store, study_id)).version
    seen: list[Change] = []
    run(lambda: watch(live, poller, study_id, seen, version))
    (change,) = seen
    assert (change.as_dict()["is_open"], change.parts) == (False, {})


@pytest.mark.parametrize("known", ["", "0123456789abcdef"])
def test_many_viewers_cost_no_more_queries_than_one(
    store: Store, study_id: str, statements: list[str], known: str
) -> None:
    def cost(viewers: int) -> int:
        """Statements beside the poller's looks, while one event comes to all viewers."""
        live, poller, _ = live_of(store)
        seen: list[list[Change]] = [[] for _ in range(viewers)]

        async def work() -> int:
            watching = [
                asyncio.create_task(watch(live, poller, study_id, one, known)) for one in seen
            ]
            await until(lambda: all(seen))
            statements.clear()
            other = StudyState.QUEUED if viewers == 1 else StudyState.RUNNING
            await asyncio.to_thread(store.move, study_id, other, f"{viewers} look on")
            await until(lambda: all(len(one) > 1 for one in seen))
            counted = len([one for one in statements if not is_look(one)])
            poller.stop()
            await asyncio.gather(*watching)
            return counted

        return int(run(work))

    alone = cost(1)
    assert alone > 0
    assert cost(VIEWERS) <= alone


def is_look(statement: str) -> bool:
    """Whether it is one that the poller sends again and again, or frames a transaction."""
    return statement.lstrip().upper().startswith(("BEGIN", "COMMIT", "PRAGMA")) or (
        "newest_event" in statement
    )


def test_a_database_that_is_away_is_waited_for(
    store: Store, study_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, poller, pages = live_of(store)
    tries: list[int] = []
    whole = pages.of

    def fail_twice(standing: Standing) -> Any:
        tries.append(1)
        if len(tries) < 3:
            raise StoreError("away")
        return whole(standing)

    monkeypatch.setattr(pages, "of", fail_twice)
    seen: list[Change] = []

    async def work() -> None:
        watching = asyncio.create_task(watch(live, poller, study_id, seen))
        await until(lambda: len(seen) == 1)
        poller.stop()
        await watching

    run(work)
    assert len(tries) == 3


def test_bursts_are_sent_together(
    store: Store, study_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens before a pause is over, however long it takes."""
    monkeypatch.setattr(module, "LEAST_S", 0.5)
    live, poller, _ = live_of(store)
    seen: list[Change] = []
    wait, pauses = poller.wait, list[float]()

    async def wait_for_all(feed: Feed, ready: Callable[[], bool], wait_s: float) -> None:
        pauses.append(wait_s)
        await wait(feed, ready, wait_s)
        await until(lambda: feed.is_over)

    monkeypatch.setattr(poller, "wait", wait_for_all)

    async def work() -> None:
        watching = asyncio.create_task(watch(live, poller, study_id, seen))
        await until(lambda: len(seen) == 1)
        for _ in range(3):
            await asyncio.to_thread(probe, store, study_id, ok(1.0, 1))
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
        await watching

    run(work)
    assert len(seen) == 2
    assert pauses == [0.5]


def test_between_two_changes_there_is_a_pause(
    store: Store, study_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LEAST_S", 0.2)
    live, poller, _ = live_of(store)

    async def work() -> float:
        async with poller.listen(study_id) as feed:
            assert feed is not None
            changes = live.changes(feed, "")
            await anext(changes)
            began = time.monotonic()
            await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)
            await anext(changes)
            return time.monotonic() - began

    assert run(work) > 0.19


def last_standing(store: Store, study_id: str) -> Standing:
    found = Standings(store.transactions).one(study_id)
    assert found is not None
    return found
