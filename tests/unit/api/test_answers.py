"""Studies as they are sent: kept until something happens to them."""

import json
import threading
from dataclasses import replace
from datetime import timedelta

import anyio
import pytest
from sqlalchemy import update

from api.answers import FRESH_S, OLDEST_S, Answers, Kept, with_told
from tests.unit.api.studies import MEASURED, claimed, probe, question_of
from tuner.core.study import Limits
from tuner.store.tables import AttemptRow
from tuner.store.tables import clock as clock_of


@pytest.fixture
def answers(store, clock):
    return Answers(store, clock)


@pytest.fixture
def study_id(store):
    return store.ask(question_of(MEASURED), Limits(max_probes=4)).id


def status(store, study_id):
    found = store.status(study_id)
    assert found is not None
    return found


def test_nobody_waits_for_what_is_only_old(store, answers, clock, study_id):
    """While another thread computes, what is a little old is good enough."""
    first = answers.of(status(store, study_id))

    def found_while_another_computes(within_s):
        found = []
        caller = threading.Thread(target=lambda: found.append(answers.of(first.status)))
        with answers.computing() as mine:
            assert mine
            caller.start()
            caller.join(timeout=within_s)
            seen = list(found)
        caller.join(timeout=60)
        assert len(found) == 1
        return seen

    clock.now += FRESH_S + 1
    assert found_while_another_computes(60) == [first]
    clock.now += OLDEST_S
    assert found_while_another_computes(1) == []


def test_who_waits_takes_no_thread_of_those_who_ask(store, answers, study_id):
    """All of theirs are taken, and hundreds are woken."""
    here = status(store, study_id)
    held = threading.Event()

    async def wake():
        limiter = anyio.to_thread.current_default_thread_limiter()
        limiter.total_tokens = 1
        async with anyio.create_task_group() as others:
            others.start_soon(anyio.to_thread.run_sync, held.wait)
            await anyio.sleep(0.05)
            try:
                with anyio.fail_after(120):
                    await all_at_once()
                assert limiter.borrowed_tokens == 1
            finally:
                held.set()

    async def all_at_once():
        found = []

        async def woken():
            found.append(await answers.soon(here))

        async with anyio.create_task_group() as waiting:
            for _ in range(300):
                waiting.start_soon(woken)
        assert len(found) == 300
        assert len({id(body) for body in found}) == 1, "it was made once"

    anyio.run(wake)


def test_what_is_made_is_kept_before_the_next_thread_has_its_turn(store, clock, study_id):
    here = status(store, study_id)
    seen = []

    class Turn:
        def acquire(self, *, blocking):
            return blocking

        def release(self):
            seen.append(kept.fresh(here))

    kept = Kept(lambda one: one.id, Turn(), most=2, clock=clock)
    assert kept.of(here) == study_id
    assert seen == [study_id]


def test_what_is_kept_is_not_read_again(store, answers, clock, study_id, monkeypatch):
    """Probes, answers and exports of one status are made of one reading, and once."""
    reads = []
    whole = store.study
    monkeypatch.setattr(store, "study", lambda id_: reads.append(id_) or whole(id_))
    here = status(store, study_id)
    for _ in range(3):
        answers.of(here)
        assert json.loads(answers.probes(here))["study_id"] == study_id
        assert answers.whole(here).study.id == study_id
    assert len(reads) == 1
    first = answers.of(here)
    clock.now += FRESH_S + 1
    again = answers.of(here)  # what calibrations and other studies add, no event tells
    assert again is not first
    assert again.etag == first.etag
    probe(store, study_id)
    assert len(json.loads(answers.probes(status(store, study_id)))["probes"]) == 1
    second = answers.of(status(store, study_id))
    assert second.etag != first.etag
    assert answers.of(here) is second  # one who saw it earlier gets no older one
    assert json.loads(with_told(second.content, notes=['b "quoted"']))["notes"] == ['b "quoted"']


def test_of_studies_those_asked_for_last_are_kept(store, clock, study_id):
    made = []
    turn, here = threading.RLock(), status(store, study_id)
    kept = Kept(lambda one: made.append(one.id) or one.id, turn, most=2, clock=clock)
    one, two, three = (replace(here, id=f"st-{n}") for n in (1, 2, 3))
    for wanted in (one, two, one, three, one, two):
        kept.of(wanted)
    assert len(kept) == 2
    assert made == ["st-1", "st-2", "st-3", "st-2"]


def test_what_is_kept_ends_with_the_lease(store, answers, study_id):
    """Which makes no event."""
    claimed(store, study_id)
    first = answers.of(status(store, study_id))
    assert json.loads(first.content)["state"] == "running"
    with store.transactions.write() as session:
        over = clock_of(session) - timedelta(seconds=1)
        session.execute(update(AttemptRow).values(lease_until=over))
    now = answers.of(status(store, study_id))
    assert json.loads(now.content)["state"] == "queued"
    assert now.status.newest_event == first.status.newest_event
    assert now.etag != first.etag
