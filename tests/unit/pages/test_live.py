"""Pages that move: what viewers are sent, and what it costs."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import event

from api.context import Context
from api.pages import routes as module
from api.settings import Settings
from tests.unit.api.studies import MEASURED, probe, question_of
from tuner.core.study import Limits, StudyState
from tuner.store import Store

WITHIN_S = 60
VIEWERS = 20


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are sent as they come."""
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


@pytest.fixture
def context(store: Store) -> Context:
    """The application's."""
    return Context.of(store, Settings(_env_file=None, poll_s=0.01))


@pytest.fixture
def study_id(store: Store) -> str:
    """A study of which something was measured."""
    study = store.ask(question_of(MEASURED), Limits(max_probes=50))
    probe(store, study.id)
    return study.id


@pytest.fixture
def statements(store: Store) -> Iterator[list[str]]:
    """What is sent to the database from now on, but for the poller's looks."""
    seen: list[str] = []
    looks = threading.local()
    read = store.events

    # The poller reads events in one look or in two, as the writer's moment falls between them.
    def events(*arguments: Any, **more: Any) -> Any:
        looks.now = True
        try:
            return read(*arguments, **more)
        finally:
            looks.now = False

    object.__setattr__(store, "events", events)

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        framing = statement.lstrip().upper().startswith(("BEGIN", "COMMIT", "PRAGMA"))
        if not framing and "newest_event" not in statement and not getattr(looks, "now", False):
            seen.append(statement)

    engine = store.transactions.engine
    event.listen(engine, "before_cursor_execute", note)
    yield seen
    event.remove(engine, "before_cursor_execute", note)


async def watch(context: Context, study_id: str, seen: list[Any], **known: Any) -> None:
    """What one viewer is sent, until the end."""
    async with context.poller.listen(study_id) as feed:
        assert feed is not None
        async for sent in module.stream_page(context, None, feed, **known):  # type: ignore[arg-type]
            assert sent.raw_data is not None
            seen.append({"id": sent.id, **json.loads(sent.raw_data)})


def run(*work: Callable[[], Awaitable[Any]]) -> None:
    async def limited() -> None:
        await asyncio.wait_for(asyncio.gather(*(one() for one in work)), WITHIN_S)

    asyncio.run(limited())


async def until(ready: Callable[[], bool]) -> None:
    while not ready():
        await asyncio.sleep(0.005)


def test_a_viewer_is_sent_each_change_and_the_end(
    store: Store, context: Context, study_id: str
) -> None:
    seen: list[Any] = []

    async def happen() -> None:
        await until(lambda: len(seen) == 1)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED, "enough")

    run(lambda: watch(context, study_id, seen), happen)
    standing = store.status(study_id)
    assert standing is not None
    page = context.pages.of(standing)
    assert (seen[0]["is_open"], seen[-1]["is_open"]) == (True, False)
    assert seen[-1]["parts"] == page.parts
    assert seen[-1]["said"] == page.status.said
    assert seen[-1]["id"] == str(standing.newest_event)
    assert "enough" in seen[-1]["parts"]["status"]


def test_one_who_has_the_page_is_sent_nothing_until_something_happens(
    store: Store, context: Context, study_id: str
) -> None:
    standing = store.status(study_id)
    assert standing is not None
    seen: list[Any] = []
    looked = threading.Event()
    made = context.pages.soon

    async def soon(now: Any) -> Any:
        found = await made(now)
        looked.set()
        return found

    object.__setattr__(context.pages, "soon", soon)

    async def happen() -> None:
        await until(looked.is_set)
        await asyncio.sleep(0.02)
        assert seen == []
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED)

    run(lambda: watch(context, study_id, seen, after=standing.newest_event), happen)
    assert [one["is_open"] for one in seen] == [False]
    seen.clear()
    known = int(store.status(study_id).newest_event)  # type: ignore[union-attr]
    run(lambda: watch(context, study_id, seen, last_event_id=known))
    assert [one["is_open"] for one in seen] == [False], "one who comes after the end is told so"


def test_many_viewers_cost_no_more_statements_than_one(
    store: Store, context: Context, study_id: str, statements: list[str]
) -> None:
    counts = []
    for viewers in (1, VIEWERS):
        seen: list[list[Any]] = [[] for _ in range(viewers)]

        async def happen(seen: list[list[Any]] = seen) -> None:
            await until(lambda: all(seen))
            statements.clear()
            before = [len(one) for one in seen]
            other = StudyState.QUEUED if len(seen) == 1 else StudyState.RUNNING
            await asyncio.to_thread(store.move, study_id, other, f"{len(seen)} look on")
            await until(lambda: all(len(o) > b for o, b in zip(seen, before, strict=True)))
            counts.append(len(statements))
            if len(seen) == VIEWERS:
                context.poller.stop()
            else:
                await asyncio.to_thread(store.move, study_id, StudyState.DONE)

        run(*(lambda one=one: watch(context, study_id, one) for one in seen), happen)
        if viewers == 1:
            store.ask(question_of(MEASURED), Limits(max_probes=51))
    assert 0 < counts[1] <= counts[0]


def test_the_table_stays_in_its_order(store: Store, context: Context, study_id: str) -> None:
    store.move(study_id, StudyState.CANCELLED)
    seen: list[Any] = []
    run(lambda: watch(context, study_id, seen, sort="id"))
    assert 'data-key="id" aria-sort="ascending"' in seen[0]["parts"]["probes"]
