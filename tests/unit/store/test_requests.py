"""Requests that are sent twice, on both databases."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from tuner.core.study import Limits, StudyState
from tuner.errors import OtherLimitsError, UsageError
from tuner.store.access import Action, Audit, AuditNote
from tuner.store.requests import KEPT_S, RequestKey, Requests, body_hash
from tuner.store.tables import RequestRow, clock

BODY = {"workload": {"model": "tiny"}, "cluster": "cpu:2"}


NOTE = AuditNote(actor="a", action=Action.SUBMIT)


def noted(store):
    """Studies that the audit names."""
    return [entry.study_id for entry in Audit(store.transactions).newest(10)]


def key_of(key="k", owner="", body=BODY):
    return RequestKey(owner=owner, key=key, body_hash=body_hash(body))


def test_the_same_request_asks_once(store, question):
    requests = Requests(store.transactions)
    asked = [requests.ask(question, Limits(), key_of(), NOTE) for _ in range(3)]
    assert len(set(asked)) == 1
    assert noted(store) == asked[:1]
    assert len(store.events(asked[0])) == 1
    assert requests.answered(key_of()) == asked[0]


def test_another_body_with_the_same_key_is_refused_and_asks_nothing(store, question):
    requests = Requests(store.transactions)
    study_id = requests.ask(question, Limits(), key_of())
    other = key_of(body={**BODY, "cluster": "cpu:4"})
    with pytest.raises(UsageError, match="Idempotency-Key: got 'k'; was sent with another body"):
        requests.ask(question, Limits(max_probes=3), other)
    with pytest.raises(UsageError, match="another body"):
        requests.answered(other)
    assert store.study(study_id).limits == Limits()


def test_keys_of_two_owners_are_two(store, question):
    requests = Requests(store.transactions)
    requests.ask(question, Limits(), key_of(owner="a"))
    assert requests.answered(key_of(owner="b")) is None


def test_an_open_study_keeps_its_terms_unless_they_are_to_be_replaced(store, question):
    requests = Requests(store.transactions)
    study_id = requests.ask(question, Limits(), None, replace=False)
    other = Limits(max_probes=3, wall_s=60.0)
    with pytest.raises(OtherLimitsError) as caught:
        requests.ask(question, other, key_of(), NOTE, replace=False)
    assert caught.value.study_id == study_id
    assert caught.value.apart == {"max_probes": (20, 3), "wall_s": (None, 60.0)}
    assert "(max_probes 20, not 3, wall_s none, not 60.0)" in str(caught.value)
    assert noted(store) == []
    assert requests.answered(key_of()) is None, "the key is still free"
    assert store.study(study_id).limits == Limits()
    assert len(store.events(study_id)) == 1
    requests.ask(question, Limits(headroom=0.05), None, replace=False)  # the same, so it joins
    requests.ask(question, other, key_of(), replace=True)
    assert store.study(study_id).limits == other
    store.move(study_id, StudyState.CANCELLED)
    requests.ask(question, Limits(), None, replace=False)  # nobody waits for one that has ended
    assert store.study(study_id).limits == Limits()


def test_a_key_is_forgotten_after_a_day(store, question):
    requests = Requests(store.transactions)
    requests.ask(question, Limits(), key_of("old"))
    with store.transactions.write() as session:
        then = clock(session) - timedelta(seconds=KEPT_S + 1)
        session.execute(update(RequestRow).values(created_at=then))
    other = key_of("old", body={})
    assert requests.answered(other) is None
    study_id = requests.ask(question, Limits(), other)
    assert len(store.events(study_id)) == 2
    with store.transactions.read() as session:
        assert session.scalar(select(func.count()).select_from(RequestRow)) == 1


def test_a_request_that_asked_nothing_is_remembered_too(store, question):
    study_id = store.ask(question, Limits()).id
    requests = Requests(store.transactions)
    requests.remember(key_of(), study_id)
    requests.remember(key_of(), study_id)
    assert requests.answered(key_of()) == study_id
    assert len(store.events(study_id)) == 1


def test_what_is_written_beside_is_written_with_it_or_not_at_all(store, question, monkeypatch):
    def fail(*_):
        raise RuntimeError

    requests = Requests(store.transactions)
    monkeypatch.setattr("tuner.store.requests.add_audit", fail)
    with pytest.raises(RuntimeError):
        requests.ask(question, Limits(), key_of(), NOTE)
    assert requests.answered(key_of()) is None
    assert store.find(question) is None


def test_many_at_once_ask_once(store, question):
    requests = Requests(store.transactions)
    with ThreadPoolExecutor(8) as pool:
        asked = list(pool.map(lambda _: requests.ask(question, Limits(), key_of()), range(24)))
    assert len(set(asked)) == 1
    assert len(store.events(asked[0])) == 1
