"""Pages that move: what viewers are sent, and what it costs."""

import asyncio
import json
from datetime import datetime

import pytest
from sqlalchemy import update

from api.inputs import Context
from api.pages import routes as module
from api.settings import Settings
from tests.unit.api.studies import MEASURED, claimed, probe, question_of
from tuner.core.study import Limits, StudyState
from tuner.store.tables import AttemptRow

WITHIN_S = 60


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_S", 0.0)


@pytest.fixture
def context(store):
    return Context.of(store, Settings(_env_file=None, poll_s=0.01))


@pytest.fixture
def study_id(store):
    study = store.ask(question_of(MEASURED), Limits(max_probes=50))
    probe(store, study.id)
    return study.id


async def watch(context, study_id, seen, **known):
    """What one viewer is sent, until the end."""
    async with context.poller.listen(study_id) as feed:
        assert feed is not None
        async for sent in module.stream_page(context, None, feed, **known):
            assert sent.raw_data is not None
            seen.append({"id": sent.id, **json.loads(sent.raw_data)})


def run(*work):
    async def limited():
        await asyncio.wait_for(asyncio.gather(*(one() for one in work)), WITHIN_S)

    asyncio.run(limited())


async def until(ready):
    while not ready():
        await asyncio.sleep(0.005)


def test_a_viewer_is_sent_each_change_and_the_end(store, context, study_id):
    seen = []

    async def happen():
        await until(lambda: len(seen) == 1)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED, "enough")

    run(lambda: watch(context, study_id, seen), happen)
    status = store.status(study_id)
    page = context.pages.of(status)
    assert (seen[0]["is_open"], seen[-1]["is_open"]) == (True, False)
    assert seen[-1]["body"] == page.body
    assert seen[-1]["said"] == page.status.said
    assert seen[-1]["id"] == str(status.newest_event)
    assert "enough" in seen[-1]["body"]


def test_a_viewer_is_told_when_the_worker_is_silent_without_an_event(store, context, study_id):
    claimed(store, study_id)
    seen = []

    def run_out():
        with store.transactions.write() as session:
            session.execute(update(AttemptRow).values(lease_until=datetime(2000, 1, 1, 12)))

    async def happen():
        await until(lambda: len(seen) == 1)
        assert "#2 is running" in seen[0]["said"]
        await asyncio.to_thread(run_out)
        await until(lambda: len(seen) == 2)
        await asyncio.to_thread(store.move, study_id, StudyState.CANCELLED, "enough")

    run(lambda: watch(context, study_id, seen), happen)
    assert "Its worker gave no sign of life since 11:59:00 UTC; no worker runs" in seen[1]["body"]
    assert "is running" not in seen[1]["body"]
    assert (seen[1]["id"], seen[1]["is_open"]) == (seen[0]["id"], True)
