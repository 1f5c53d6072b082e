"""Figures of the whole database: on each kind."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import update

from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Limits, ProbeState, StudyState
from tuner.store.figures import read_figures
from tuner.store.tables import AttemptRow, AttemptState, clock
from tuner.store.workers import Workers


def figures(store):
    return read_figures(store.transactions)


@pytest.fixture
def busy(store, study, requests, worker, dead, question):
    """Six probes: two queued, one of which was lost; one running; three done."""
    for number, request in enumerate(requests(6)):
        assert store.enter_probe(study.id, study.revision + number, request, None)
    for outcome, wall_s in ((Outcome.OK, 1.5), (Outcome.OK, 2.5), (Outcome.OOM, 4.0)):
        claim = store.claim(study.id, worker)
        assert claim is not None
        store.record(claim, Measurement(outcome=outcome, wall_s=wall_s))
    store.claim(study.id, dead)
    assert store.reap() == 1
    store.ask(replace(question, knobs={"tp_size": (1,)}), Limits())
    Workers(store.transactions).register(worker, (), {}, {})
    claim = store.claim(study.id, worker, devices=("GPU-0", "GPU-1"))
    assert claim is not None
    return claim


def test_what_there_is_is_counted(store, busy):
    found = figures(store)
    assert {state: n for state, n in found.studies.items() if n} == {
        StudyState.RUNNING: 1,
        StudyState.QUEUED: 1,
    }
    assert found.probes == {ProbeState.QUEUED: 2, ProbeState.RUNNING: 1, ProbeState.DONE: 3}
    assert found.attempts == {
        AttemptState.RUNNING: 1,
        AttemptState.DONE: 3,
        AttemptState.LOST: 1,
        AttemptState.GIVEN_BACK: 0,
    }
    assert {outcome: n for outcome, n in found.outcomes.items() if n} == {
        Outcome.OK: 2,
        Outcome.OOM: 1,
    }
    assert (found.probe_s[Outcome.OK], found.probe_s[Outcome.OOM]) == (4.0, 4.0)
    assert (found.devices_held, found.workers_living) == (2, 1)


def test_the_oldest_sign_of_a_worker_that_holds_a_probe(store, busy):
    assert figures(store).oldest_beat_s < 30
    with store.transactions.write() as session:
        until = clock(session) + timedelta(seconds=60 - 45)
        session.execute(update(AttemptRow).values(lease_until=until))
    assert 45 <= figures(store).oldest_beat_s < 75
    store.beat(busy)
    assert figures(store).oldest_beat_s < 30
    store.give_back(busy, "enough")
    assert figures(store).oldest_beat_s == 0.0
