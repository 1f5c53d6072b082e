"""What attempts that left no result have cost a request."""

from datetime import timedelta

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from tests.unit.store.conftest import ELSEWHERE
from tuner.core import lease
from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import Limits
from tuner.store.tables import AttemptRow, StudyRow, clock


@pytest.fixture
def begin(store, study, requests, worker, long_ago):
    """Claims a probe; it was begun some seconds ago."""
    revision = store.study(study.id).revision
    assert store.enter_probe(study.id, revision, requests(1)[0], None) is not None

    def claim(seconds, who=worker):
        made = store.claim(study.id, who)
        with Session(store.transactions.writer) as session, session.begin():
            row = session.get_one(AttemptRow, made.attempt_id)
            row.started_at = clock(session) - timedelta(seconds=seconds)
        return made

    return claim


@pytest.fixture
def long_ago(store, study):
    """It was asked an hour ago."""
    with Session(store.transactions.writer) as session, session.begin():
        then = clock(session) - timedelta(hours=1)
        session.execute(update(StudyRow).values(asked_at=then))


def test_what_was_given_back_is_charged(store, study, begin):
    assert store.study(study.id).wasted_s == 0
    store.give_back(begin(200), "the study's time is spent")
    assert store.study(study.id).wasted_s == pytest.approx(200, abs=60)
    begin(1000)  # is running, and may come to something
    assert store.study(study.id).wasted_s == pytest.approx(200, abs=60)


def test_an_accident_is_charged_and_what_has_a_result_is_not(store, study, begin):
    """The last attempt's time is its measurement's."""
    crashed = Measurement(outcome=Outcome.CRASHED, wall_s=200.0)
    store.record(begin(200), crashed)
    assert store.study(study.id).wasted_s == pytest.approx(200, abs=60)
    store.record(begin(1000), crashed)
    (probe,) = store.study(study.id).probes
    assert probe.measurement == crashed
    assert store.study(study.id).wasted_s == pytest.approx(200, abs=60)


def test_a_lost_attempt_is_charged_until_the_last_sign_of_its_worker(store, study, begin):
    lost = begin(500, ELSEWHERE)
    with Session(store.transactions.writer) as session, session.begin():
        row = session.get_one(AttemptRow, lost.attempt_id)
        row.lease_until = row.started_at + timedelta(seconds=30 + lease.LEASE_S)
    assert store.reap() == 1
    assert store.study(study.id).wasted_s == pytest.approx(30)


def test_attempts_of_which_nothing_came_are_told_with_their_workers(store, study, begin):
    crashed = Measurement(outcome=Outcome.CRASHED, detail="signal 11")
    store.record(begin(9), crashed)  # and is tried again
    begin(500, ELSEWHERE)
    with Session(store.transactions.writer) as session, session.begin():
        session.execute(update(AttemptRow).values(lease_until=clock(session)))
    assert store.reap() == 1
    store.give_back(begin(3), "Ctrl-C")
    (wasted,) = store.wasted(study.id).values()
    assert [(one.number, str(one.state), one.outcome, one.detail) for one in wasted] == [
        (1, "done", Outcome.CRASHED, "signal 11"),
        (2, "lost", None, "no sign of its worker for 60 s"),
        (3, "given_back", None, "Ctrl-C"),
    ]
    assert wasted[1].worker == ELSEWHERE.name
    assert wasted[1].started_at < wasted[1].ended_at
    begin(1)
    (same,) = store.wasted(study.id).values()
    assert same == wasted, "what runs may come to something"


def test_an_earlier_request_is_not_charged(store, study, question, begin):
    store.give_back(begin(200), "Ctrl-C")
    store.ask(question, Limits(max_probes=3))
    again = store.study(study.id)
    assert again.wasted_s == 0
    assert again.wasted_before_s == pytest.approx(200, abs=60)  # which the answer's cost holds
