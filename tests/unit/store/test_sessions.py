"""Sessions on both databases: begun, checked, used, and over."""

from datetime import timedelta

import pytest
from sqlalchemy import delete, func, select, text, update

from tuner.store.access import IDLE, LASTS, Action, Audit, Keys, Sessions, SignedIn
from tuner.store.tables import AuditRow, KeyRow, Scope, SessionRow, clock

MINUTE = timedelta(minutes=1)


@pytest.fixture
def sessions(store):
    """The sessions of a database without any."""
    with store.transactions.write() as session:
        for table in (SessionRow, KeyRow, AuditRow):
            session.execute(delete(table))
    return Sessions(store.transactions)


@pytest.fixture
def key(sessions):
    return Keys(sessions.transactions).create("the team", Scope.SUBMIT)[0]


def made_to_end(sessions, begun_ago, soon):
    """Lets every session have begun so long ago, and end so soon if it is not used."""
    with sessions.transactions.write() as session:
        now = clock(session)
        times = {"created_at": now - begun_ago, "expires_at": now + soon}
        session.execute(update(SessionRow).values(times))


def left(sessions):
    """Until the one session ends."""
    with sessions.transactions.read() as session:
        return session.scalars(select(SessionRow.expires_at)).one() - clock(session)


def count(sessions):
    with sessions.transactions.read() as session:
        return session.scalar(select(func.count()).select_from(SessionRow)) or 0


def test_a_session_is_of_its_key(sessions, key):
    token = sessions.begin(key.id, address="192.0.2.1")
    found = sessions.check(token)
    assert found == SignedIn(
        key_id=key.id, name="the team", scope=Scope.SUBMIT, session_id=found.session_id
    )
    assert sessions.open_ids() == {found.session_id}
    assert token not in found.session_id


def test_its_token_is_kept_as_a_hash(sessions, key):
    token = sessions.begin(key.id, address="192.0.2.1")
    assert len(token) == 43
    with sessions.transactions.read() as session:
        for table in ("sessions", "audit"):
            rows = session.execute(text(f"SELECT * FROM {table}")).all()
            assert rows
            assert token not in repr(rows)


def test_anything_else_is_no_session(sessions, key):
    token = sessions.begin(key.id)
    for wrong in ("", token[:-1], token + "A", "A" * 43, "%", "' OR 1=1 --"):
        assert sessions.check(wrong) is None


def test_one_that_is_not_used_is_over(sessions, key):
    token = sessions.begin(key.id)
    assert IDLE - MINUTE < left(sessions) <= IDLE
    made_to_end(sessions, IDLE, -timedelta(milliseconds=1))
    assert sessions.check(token) is None
    assert sessions.check(token) is None, "asking makes it no younger"


def test_it_is_over_after_a_week_however_much_it_is_used(sessions, key):
    token = sessions.begin(key.id)
    made_to_end(sessions, LASTS - timedelta(hours=2), timedelta(hours=1))
    assert sessions.check(token) is not None
    assert timedelta(hours=1) < left(sessions) <= timedelta(hours=2)
    made_to_end(sessions, LASTS, timedelta(0))
    assert sessions.check(token) is None


def test_use_is_noted_once_a_minute(sessions, key, monkeypatch):
    token = sessions.begin(key.id)
    writes = []
    write = sessions.transactions.write_if_free
    monkeypatch.setattr(sessions.transactions, "write_if_free", lambda: writes.append(1) or write())
    for _ in range(3):
        assert sessions.check(token) is not None
    assert writes == []
    made_to_end(sessions, 2 * MINUTE, IDLE - 2 * MINUTE)
    writes.clear()
    for _ in range(3):
        assert sessions.check(token) is not None
    assert writes == [1]


def test_it_ends_with_its_key(sessions, key):
    token = sessions.begin(key.id)
    other, _ = Keys(sessions.transactions).create("another", Scope.READ)
    kept = sessions.begin(other.id)
    Keys(sessions.transactions).revoke(key.id)
    assert sessions.check(token) is None
    assert sessions.check(kept) is not None


def test_it_ends_when_it_is_ended(sessions, key):
    token, other = sessions.begin(key.id), sessions.begin(key.id)
    sessions.end(token)
    assert sessions.check(token) is None
    assert sessions.check(other) is not None
    sessions.end(token)
    assert count(sessions) == 1


def test_those_that_are_over_are_not_kept(sessions, key):
    for _ in range(3):
        sessions.begin(key.id)
    made_to_end(sessions, IDLE, -MINUTE)
    sessions.begin(key.id)
    assert count(sessions) == 1


def test_a_key_has_so_many_of_them_and_no_more(sessions, key, monkeypatch):
    monkeypatch.setattr("tuner.store.access.MOST_SESSIONS", 2)
    other, _ = Keys(sessions.transactions).create("another", Scope.READ)
    theirs = sessions.begin(other.id)
    first, second, third = (sessions.begin(key.id) for _ in range(3))
    assert sessions.check(first) is None
    assert all(sessions.check(token) for token in (second, third, theirs))


def test_begin_and_end_are_in_the_audit(sessions, key):
    sessions.end(sessions.begin(key.id, address="192.0.2.1"), address="192.0.2.2")
    ended, begun = Audit(sessions.transactions).newest(2)
    assert (begun.actor, begun.action, begun.data) == (
        key.id,
        Action.SIGN_IN,
        {"address": "192.0.2.1"},
    )
    assert (ended.actor, ended.action, ended.data) == (
        key.id,
        Action.SIGN_OUT,
        {"address": "192.0.2.2"},
    )
