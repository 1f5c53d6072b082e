"""Keys on both databases: made once, kept as hashes, checked, used, revoked."""

import hmac
import logging
import re
from datetime import timedelta

import pytest
from sqlalchemy import delete, text, update

from tuner.errors import StoreError, UsageError
from tuner.store import access
from tuner.store.access import Action, Audit, Keys, includes
from tuner.store.tables import AuditRow, KeyRow, Scope, clock


@pytest.fixture
def keys(store):
    """The keys of a database without any."""
    with store.transactions.write() as session:
        session.execute(delete(KeyRow))
        session.execute(delete(AuditRow))
    return Keys(store.transactions)


def use_was_noted(keys, ago):
    """Lets every key have been used last so long ago."""
    with keys.transactions.write() as session:
        session.execute(update(KeyRow).values(last_used_at=clock(session) - ago))


def test_a_key_is_shown_once_and_kept_as_a_hash(keys):
    key, secret = keys.create("the scheduler", Scope.SUBMIT)
    assert re.fullmatch(rf"tuner_{key.id}_[A-Za-z0-9_-]{{43}}", secret)
    assert (key.name, key.scope) == ("the scheduler", Scope.SUBMIT)
    assert key.last_used_at is None
    assert key.revoked_at is None
    with keys.transactions.read() as session:
        for table in ("keys", "audit"):
            rows = session.execute(text(f"SELECT * FROM {table}")).all()
            assert rows
            assert secret[-43:] not in repr(rows)


def test_anything_else_is_not_a_key(keys):
    key, secret = keys.create("a", Scope.ADMIN)
    other = keys.create("b", Scope.ADMIN)[1]
    last = "A" if secret[-1] != "A" else "B"
    for wrong in (
        "",
        "tuner",
        key.id,
        secret[:-1],
        secret[:-1] + last,
        secret + "A",
        secret + "\n",
        " " + secret,
        secret.upper(),
        f"tuner_{key.id}_{other[-43:]}",
        f"tuner_{'0' * 16}_{secret[-43:]}",
        f"tuner_{key.id}_" + "\N{LATIN SMALL LETTER E WITH ACUTE}" * 43,
        "tuner_%_" + "%" * 43,
        "x" * 100_000,
    ):
        assert keys.check(wrong) is None, wrong[:100]
    assert all(one.last_used_at is None for one in keys.list())


def test_a_key_that_does_not_exist_is_compared_too(keys, monkeypatch):
    compared = []

    def compare(kept, given):
        compared.append((kept, given))
        return hmac.compare_digest(kept, given)

    monkeypatch.setattr(access, "compare_digest", compare)
    _, secret = keys.create("a", Scope.READ)
    assert keys.check(secret)
    assert not keys.check(secret[:-43] + "A" * 43)
    assert not keys.check(f"tuner_{'0' * 16}_{'A' * 43}")
    assert [(len(kept), len(given)) for kept, given in compared] == [(64, 64)] * 3


def test_a_revoked_key_is_refused_at_once_and_for_ever(keys):
    key, secret = keys.create("a", Scope.READ)
    kept = keys.create("b", Scope.READ)[1]
    assert keys.check(secret)
    revoked = keys.revoke(key.id)
    assert revoked.revoked_at is not None
    assert keys.check(secret) is None
    assert keys.check(kept)
    assert keys.revoke(key.id).revoked_at == revoked.revoked_at
    actions = [entry.action for entry in Audit(keys.transactions).newest(10)]
    assert actions == [Action.KEY_REVOKE, Action.KEY_CREATE, Action.KEY_CREATE]


def test_a_beginning_that_two_keys_share_names_none(keys):
    with keys.transactions.write() as session:
        now = clock(session)
        for number in ("00000000000000aa", "00000000000000ab"):
            session.add(KeyRow(id=number, name="n", hash="", scope=Scope.READ, created_at=now))
    with pytest.raises(UsageError, match="more than one key begins so"):
        keys.revoke("0000")
    assert keys.revoke("00000000000000aa").revoked_at is not None


def test_use_is_noted_at_most_once_a_minute(keys):
    _, secret = keys.create("a", Scope.READ)
    assert keys.check(secret)
    (first,) = keys.list()
    assert first.last_used_at is not None
    use_was_noted(keys, timedelta(seconds=30))
    (lately,) = keys.list()
    assert keys.check(secret)
    assert keys.list() == [lately]
    use_was_noted(keys, timedelta(seconds=61))
    (long_ago,) = keys.list()
    assert keys.check(secret)
    (again,) = keys.list()
    assert again.last_used_at > long_ago.last_used_at


def test_a_key_is_good_although_its_use_cannot_be_noted(keys, monkeypatch, caplog):
    key, secret = keys.create("a", Scope.READ)

    def full():
        raise StoreError("the disk is full")

    monkeypatch.setattr(keys.transactions, "write_if_free", full)
    with caplog.at_level(logging.WARNING):
        assert all(keys.check(secret) for _ in range(3))
    assert caplog.messages == [f"that key {key.id} was used could not be noted: the disk is full"]


def test_each_scope_includes_those_before_it():
    allowed = {(str(a), str(b)) for a in Scope for b in Scope if includes(a, b)}
    assert allowed == {
        ("read", "read"),
        ("submit", "read"),
        ("submit", "submit"),
        ("admin", "read"),
        ("admin", "submit"),
        ("admin", "admin"),
    }
