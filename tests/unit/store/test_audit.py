"""What is noted, by whom, and that it goes with what was done."""

from datetime import timedelta

import pytest
from sqlalchemy import delete, func, select, update

from tuner.store.access import LOCAL, Action, Audit, AuditNote, add_audit
from tuner.store.tables import AuditRow, clock


@pytest.fixture
def audit(store):
    """That of a database in which nothing is noted."""
    with store.transactions.write() as session:
        session.execute(delete(AuditRow))
    return Audit(store.transactions)


def test_the_newest_come_first(audit):
    audit.note(LOCAL, Action.SUBMIT, "st-0123456789ab", address="127.0.0.1")
    audit.note("k1", Action.KEY_CREATE, key="", times=3)
    newer, older = audit.newest(10)
    assert (older.actor, older.action, older.study_id) == (
        "local",
        "tune.submit",
        "st-0123456789ab",
    )
    assert older.data == {"address": "127.0.0.1"}
    assert (newer.actor, newer.action, newer.study_id) == ("k1", "key.create", "")
    assert newer.data == {"key": "", "times": 3}
    assert newer.id > older.id
    assert newer.at >= older.at
    assert newer.as_dict()["at"].endswith("Z")


def test_they_are_read_in_pages(audit):
    for number in range(5):
        audit.note(LOCAL, Action.CANCEL, times=number)
    first = audit.newest(2)
    second = audit.newest(2, before=first[-1].id)
    last = audit.newest(2, before=second[-1].id)
    assert [entry.data["times"] for entry in (*first, *second, *last)] == [4, 3, 2, 1, 0]
    assert audit.newest(2, before=last[-1].id) == []


def test_a_strangers_text_is_cut_and_made_harmless(audit):
    audit.note("k" * 500, Action.JOIN, address="a\nb\x1b[2J\0" + "x" * 10_000)
    (entry,) = audit.newest(1)
    assert entry.actor == "k" * 64
    assert entry.data["address"].startswith("a b?[2Jxxx")
    assert len(entry.data["address"]) == 200


def test_what_is_old_is_deleted_and_who_did_that_is_noted(audit, monkeypatch):
    monkeypatch.setattr("tuner.store.access.PRUNED", 3)
    with audit.transactions.write() as session:
        now = clock(session)
        for days in (400, 31, 30, 29, 3, 2, 1):
            add_audit(session, AuditNote(actor=LOCAL, action=Action.SUBMIT, data={"times": days}))
            session.flush()
            newest = select(func.max(AuditRow.id)).scalar_subquery()
            then = now - timedelta(days=days)
            session.execute(update(AuditRow).where(AuditRow.id == newest).values(at=then))
    assert audit.prune(now - timedelta(days=2, hours=1), by="local ann") == 5
    noted, *left = audit.newest(10)
    assert [entry.data["times"] for entry in left] == [1, 2]
    assert (noted.actor, noted.action) == ("local ann", "audit.prune")
    assert noted.data["before"].endswith("Z")
    assert audit.prune(now - timedelta(days=2, hours=1)) == 0


def test_no_more_are_kept_than_so_many(audit):
    for number in range(5):
        audit.note(LOCAL, Action.JOIN, times=number)
    assert audit.trim(2) == 3
    assert [entry.data["times"] for entry in audit.newest(10)] == [4, 3]
    assert audit.trim(2) == 0
