"""``tuner keys``: made and shown once, listed, revoked, and who did what."""

import json
import re

from tuner.store import open_store
from tuner.store.access import LOCAL, Action, Audit, Keys
from tuner.store.tables import Scope


def test_a_key_is_alone_on_stdout(cli, database):
    result = cli("keys", "create", "the scheduler", "--scope", "read")
    assert result.code == 0
    text = result.out.removesuffix("\n")
    assert re.fullmatch(r"tuner_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", text)
    assert "shown this once" in result.err
    assert text not in result.err
    with open_store() as store:
        key = Keys(store.transactions).check(text)
    assert (key.name, key.scope) == ("the scheduler", Scope.READ)


def test_a_revoked_key_is_good_for_nothing(cli):
    made = cli("keys", "create", "a", "--json").json
    assert list(made) == ["key", "id", "name", "scope", "created_at", "last_used_at", "revoked_at"]
    assert made["scope"] == "submit"
    result = cli("keys", "revoke", made["id"][:6])
    assert result.code == 0
    assert result.out.startswith(f"key {made['id']} (a) is revoked")
    with open_store() as store:
        assert Keys(store.transactions).check(made["key"]) is None
    again = cli("keys", "revoke", made["id"], "--json").json
    assert again["revoked_at"] is not None


def test_who_did_what_is_shown(cli):
    made = cli("keys", "create", "a", "--json").json
    with open_store() as store:
        audit = Audit(store.transactions)
        audit.note(made["id"], Action.SUBMIT, "st-0123456789ab", address="192.0.2.1")
        audit.note(LOCAL, Action.JOIN, address="192.0.2.9", times=2)
    lines = cli("keys", "audit").out.splitlines()
    assert lines[0].split() == ["at", "(UTC)", "who", "what", "study", "more"]
    joined, submitted, created = lines[2:]
    assert joined.split()[2:] == ["local", "tune.join", "address", "192.0.2.9,", "times", "2"]
    assert made["id"] in submitted
    assert "tune.submit  st-0123456789ab  address 192.0.2.1" in submitted
    assert "key.create" in created
    found = cli("keys", "audit", "--limit", "2", "--json").json["audit"]
    assert [entry["action"] for entry in found] == ["tune.join", "tune.submit"]
    assert made["key"][-43:] not in json.dumps(found)


def test_what_is_wrong_is_named_and_changes_nothing(cli, database):
    for words in (["list"], ["revoke", "0"], ["audit"]):  # only create makes a database
        result = cli("keys", *words)
        assert (result.code, "no such database yet" in result.err) == (2, True)
    assert not database.exists()
    cli("db", "upgrade")
    assert cli("keys", "list").out == "no keys yet: tuner keys create NAME makes one\n"
    assert cli("keys", "audit").out == "nothing is noted yet\n"
    for words, field in (
        ("create a --scope root", "scope"),
        ("revoke nothing", "key"),
        ("audit --limit 0", "limit"),
    ):
        result = cli("keys", *words.split(" "), "--json")
        assert (result.code, result.json["error"]["field"]) == (2, field), words
    assert cli("keys", "list", "--json").json == {"keys": []}
