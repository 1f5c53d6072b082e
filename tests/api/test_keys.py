"""Who is let in: without a key, with one, with one that is not good, and with one too small."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.keys import (
    Admin,
    KeysNeeded,
    Reader,
    Submitter,
    check_bind,
    keys_needed,
    protect,
)
from api.problems import add_problems
from api.settings import Settings
from tests.api.asgi import HOST, body_of, connection, send_to
from tuner.errors import StoreError, UsageError
from tuner.store import Store, open_store
from tuner.store.audit import Audit
from tuner.store.keys import Keys
from tuner.store.records import Scope


def settings(**given: Any) -> Settings:
    """Settings that no environment or file changes."""
    return Settings(_env_file=None, **given)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/studies.db") as opened:
        yield opened


@pytest.fixture
def keys(store: Store) -> Keys:
    return Keys(store.transactions)


@pytest.fixture
def audit(store: Store) -> Audit:
    return Audit(store.transactions)


def app_of(store: Store, **given: Any) -> FastAPI:
    """A service with one route for each scope, and the paths that are open."""
    app = FastAPI(openapi_url=None)

    @app.get("/healthz")
    def healthz() -> str:
        return "ok"

    @app.get("/read")
    def read(caller: Reader) -> dict[str, str]:
        return {"id": caller.id, "owner": caller.owner, "scope": caller.scope}

    @app.post("/submit")
    def submit(caller: Submitter, body: dict[str, Any]) -> str:
        return caller.id

    @app.get("/admin")
    def admin(caller: Admin) -> str:
        return caller.id

    @app.get("/forgotten")
    def forgotten() -> str:
        return "no scope was declared"

    add_problems(app)
    protect(app, settings(**given), Keys(store.transactions), Audit(store.transactions))
    return app


@pytest.fixture
def client(store: Store) -> Callable[..., TestClient]:
    """A service with such settings; keys are needed unless they say otherwise."""

    def make(**given: Any) -> TestClient:
        app = app_of(store, **{"require_keys": True, **given})
        return TestClient(app, base_url="http://localhost", client=("192.0.2.1", 50000))

    return make


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


# -- who needs a key


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        ({}, KeysNeeded.FROM_OTHERS),
        ({"host": "localhost"}, KeysNeeded.FROM_OTHERS),
        ({"host": "::1", "allowed_hosts": ("localhost",)}, KeysNeeded.FROM_OTHERS),
        ({"require_keys": True}, KeysNeeded.ALWAYS),
        ({"require_keys": False}, KeysNeeded.NEVER),
        ({"host": "0.0.0.0"}, KeysNeeded.ALWAYS),
        ({"host": "192.168.0.7"}, KeysNeeded.ALWAYS),
        ({"host": "example.org"}, KeysNeeded.ALWAYS),
        ({"allowed_hosts": ("tuner.example.org",)}, KeysNeeded.ALWAYS),
        ({"allowed_hosts": ("*",)}, KeysNeeded.ALWAYS),
        ({"proxies": ("127.0.0.1",)}, KeysNeeded.ALWAYS),
        ({"host": ""}, KeysNeeded.ALWAYS),
        ({"host": "127.1"}, KeysNeeded.ALWAYS),
        ({"allowed_hosts": ("tuner.example.org",), "require_keys": False}, KeysNeeded.NEVER),
    ],
)
def test_who_needs_a_key(given: dict[str, Any], needed: KeysNeeded) -> None:
    assert keys_needed(settings(**given)) is needed


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "example.org"])
def test_no_service_for_others_is_without_keys(store: Store, host: str) -> None:
    with pytest.raises(UsageError, match=r"^require_keys: got false; must be true unless"):
        keys_needed(settings(host=host, require_keys=False))
    with pytest.raises(UsageError):
        app_of(store, host=host, require_keys=False)


@pytest.mark.parametrize("given", [{"host": "0.0.0.0"}, {"require_keys": True}])
def test_a_service_that_needs_keys_does_not_start_without_one(
    keys: Keys, given: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=r"^host: .*tuner keys create NAME --scope submit"):
        check_bind(settings(**given), keys)
    made, _ = keys.create("a", Scope.READ)
    check_bind(settings(**given), keys)
    keys.revoke(made.id)
    with pytest.raises(UsageError):
        check_bind(settings(**given), keys)


@pytest.mark.parametrize(
    ("db", "named"),
    [
        ("sqlite:///studies.db", " --db sqlite:///studies.db"),
        ("sqlite:///my studies.db", " --db 'sqlite:///my studies.db'"),
        ("postgresql://a:secret@host/tuner", " --db 'postgresql://a:***@host/tuner'"),
        (None, ""),
    ],
)
def test_the_database_in_which_to_make_a_key_is_named(
    keys: Keys, db: str | None, named: str
) -> None:
    with pytest.raises(UsageError) as caught:
        check_bind(settings(host="0.0.0.0", db=db), keys)
    assert caught.value.allowed.endswith(f"tuner keys create NAME --scope submit{named}")


def test_a_service_of_this_machine_starts_without_one(keys: Keys) -> None:
    check_bind(settings(), keys)


# -- without a key


@pytest.mark.parametrize("path", ["/read", "/admin", "/forgotten", "/nowhere", "/", "/healthz/"])
def test_without_a_key_there_is_nothing_to_see(client: Any, path: str) -> None:
    response = client().get(path, follow_redirects=False)
    assert response.status_code == 401
    assert response.headers["content-type"] == "application/problem+json"
    assert response.headers["www-authenticate"] == 'Bearer realm="tuner"'
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.json()["status"] == 401


def test_whether_it_works_is_told_to_everybody(client: Any) -> None:
    opened = client(rate_burst=1, rate_per_s=0.001)
    assert [opened.get("/healthz").status_code for _ in range(5)] == [200] * 5
    assert opened.get("/healthz", headers={"host": "10.0.0.7"}).status_code == 200


def test_without_a_key_no_body_is_read(store: Store) -> None:
    app = app_of(store, require_keys=True)
    answer = asyncio.run(send_to(app, connection("POST", "/submit"), ()))  # no body ever comes
    assert answer is not None
    assert answer.status == 401


def test_on_this_machine_none_is_needed(client: Any) -> None:
    opened = client(require_keys=None)
    found = {"id": "local", "owner": "", "scope": "admin"}
    assert opened.get("/read").json() == found
    assert opened.get("/admin").status_code == 200
    assert opened.post("/submit", json={}).json() == "local"


@pytest.mark.parametrize(
    "header", ["Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"]
)
def test_what_a_proxy_passes_on_is_not_of_this_machine(
    client: Any, keys: Keys, header: str
) -> None:
    _, text = keys.create("a", Scope.READ)
    passed_on = {header: "192.0.2.7"}
    response = client(require_keys=None).get("/read", headers=passed_on)
    assert response.status_code == 401
    assert "proxy" in response.json()["detail"]
    opened = client(require_keys=None)
    assert opened.get("/read", headers={**passed_on, **bearer(text)}).status_code == 200
    assert client(require_keys=False).get("/read", headers=passed_on).status_code == 200


# -- with a key


@pytest.mark.parametrize("scope", Scope)
def test_a_key_allows_its_scope_and_no_more(client: Any, keys: Keys, scope: Scope) -> None:
    key, text = keys.create("a", scope)
    opened = client()
    statuses = {
        "read": opened.get("/read", headers=bearer(text)).status_code,
        "submit": opened.post("/submit", headers=bearer(text), json={}).status_code,
        "admin": opened.get("/admin", headers=bearer(text)).status_code,
    }
    allowed = list(Scope)[: list(Scope).index(scope) + 1]
    assert statuses == {str(one): 200 if one in allowed else 403 for one in Scope}
    found = {"id": key.id, "owner": key.id, "scope": str(scope)}
    assert opened.get("/read", headers=bearer(text)).json() == found


def test_too_small_a_key_is_told_what_it_lacks_and_noted(
    client: Any, keys: Keys, audit: Audit
) -> None:
    key, text = keys.create("a", Scope.READ)
    opened = client()
    for _ in range(3):
        response = opened.get("/admin", headers=bearer(text))
    assert response.status_code == 403
    assert response.headers["content-type"] == "application/problem+json"
    challenge = response.headers["www-authenticate"]
    assert 'error="insufficient_scope", scope="admin"' in challenge
    (noted,) = [entry for entry in audit.newest(10) if entry.action == "scope.refused"]
    assert noted.actor == key.id
    expected = {"has": "read", "needs": "admin", "address": "192.0.2.1", "times": 1}
    assert noted.data == expected


def test_a_key_that_is_not_good_is_refused_and_noted(client: Any, keys: Keys, audit: Audit) -> None:
    key, text = keys.create("a", Scope.ADMIN)
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    opened = client()
    for _ in range(3):
        response = opened.get("/read", headers=bearer(wrong))
        assert response.status_code == 401
    assert 'error="invalid_token"' in response.headers["www-authenticate"]
    (noted,) = [entry for entry in audit.newest(10) if entry.action == "key.refused"]
    assert noted.actor == "unknown"
    assert noted.data == {"key": key.id, "address": "192.0.2.1", "times": 1}
    assert wrong[-43:] not in repr(noted)


@pytest.mark.parametrize(
    "given",
    ["", "Bearer", "Bearer ", "Basic {}", "{}", "Bearer {} {}", "Bearer {}x", "Token {}"],
)
def test_a_header_that_holds_no_key_is_refused(client: Any, keys: Keys, given: str) -> None:
    _, text = keys.create("a", Scope.ADMIN)
    for needed in (True, None):
        opened = client(require_keys=needed)
        headers = {"Authorization": given.replace("{}", text)}
        assert opened.get("/read", headers=headers).status_code == 401


@pytest.mark.parametrize("given", ["bearer {}", "BEARER {}", "Bearer  {} "])
def test_the_scheme_may_be_spelled_otherwise(client: Any, keys: Keys, given: str) -> None:
    _, text = keys.create("a", Scope.READ)
    headers = {"Authorization": given.replace("{}", text)}
    assert client().get("/read", headers=headers).status_code == 200


def test_two_keys_are_none(store: Store, keys: Keys) -> None:
    _, text = keys.create("a", Scope.ADMIN)
    twice = [("authorization", f"Bearer {text}")] * 2
    scope = connection(path="/read", headers=[HOST, *twice])
    answer = asyncio.run(send_to(app_of(store, require_keys=True), scope, body_of(b"")))
    assert answer is not None
    assert answer.status == 401


def test_a_revoked_key_is_refused_from_the_next_request_on(client: Any, keys: Keys) -> None:
    key, text = keys.create("a", Scope.READ)
    opened = client()
    assert opened.get("/read", headers=bearer(text)).status_code == 200
    keys.revoke(key.id)
    assert opened.get("/read", headers=bearer(text)).status_code == 401


def test_a_key_that_is_given_counts_where_none_is_needed(client: Any, keys: Keys) -> None:
    key, text = keys.create("a", Scope.READ)
    opened = client(require_keys=None)
    assert opened.get("/read", headers=bearer(text)).json()["owner"] == key.id
    assert opened.post("/submit", headers=bearer(text), json={}).status_code == 403


def test_a_database_that_is_gone_is_said(
    client: Any, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, text = keys.create("a", Scope.READ)

    def gone(self: Keys, text: str) -> None:
        raise StoreError("the database /somewhere/secret.db cannot be used: it is gone")

    monkeypatch.setattr(Keys, "check", gone)
    response = client().get("/read", headers=bearer(text))
    assert response.status_code == 503
    assert "secret" not in response.text
    monkeypatch.undo()
    assert client().get("/read", headers=bearer(text)).status_code == 200


# -- too many


def test_each_key_has_its_rate(client: Any, keys: Keys) -> None:
    _, first = keys.create("a", Scope.READ)
    _, second = keys.create("b", Scope.READ)
    opened = client(rate_burst=3, rate_per_s=0.001)
    for text in (first, second):  # their first requests count by address, and make them known
        assert opened.get("/read", headers=bearer(text)).status_code == 200
    for text in (first, second):
        statuses = [opened.get("/read", headers=bearer(text)).status_code for _ in range(5)]
        assert statuses == [200, 200, 200, 429, 429]
    refused = opened.get("/read", headers=bearer(first))
    assert refused.headers["content-type"] == "application/problem+json"
    assert 900 < int(refused.headers["retry-after"]) <= 1000


def test_who_guesses_keys_has_the_rate_of_the_address(client: Any, keys: Keys) -> None:
    _, good = keys.create("a", Scope.READ)
    opened = client(rate_burst=3, rate_per_s=0.001)
    assert opened.get("/read", headers=bearer(good)).status_code == 200
    guesses = [f"tuner_{i:016x}_{'A' * 43}" for i in range(5)]
    statuses = [opened.get("/read", headers=bearer(text)).status_code for text in guesses]
    assert statuses == [401, 401, 429, 429, 429]
    assert opened.get("/read").status_code == 429, "also without any"
    assert opened.get("/read", headers=bearer(good)).status_code == 200, "not whose key is good"


def test_on_this_machine_there_is_no_rate(client: Any) -> None:
    opened = client(require_keys=None, rate_burst=1, rate_per_s=0.001)
    assert [opened.get("/read").status_code for _ in range(5)] == [200] * 5


def test_only_so_many_requests_of_one_caller_are_open(store: Store) -> None:
    app = FastAPI()
    let_go = asyncio.Event()

    @app.get("/wait")
    async def wait(caller: Reader) -> str:
        await let_go.wait()
        return "done"

    add_problems(app)
    protect(app, settings(max_concurrent=10), Keys(store.transactions), Audit(store.transactions))

    async def visit() -> tuple[list[int], int, int]:
        async def one(client: str = "127.0.0.1") -> int:
            answer = await send_to(app, connection(path="/wait", client=client), body_of(b""))
            assert answer is not None
            return answer.status

        waiting = [asyncio.create_task(one()) for _ in range(10)]
        await asyncio.sleep(0)
        refused = await one()
        other = asyncio.create_task(one("127.0.0.2"))
        await asyncio.sleep(0)
        let_go.set()
        statuses = [await task for task in (*waiting, other)]
        return statuses, refused, await one()

    assert asyncio.run(visit()) == ([200] * 11, 429, 200)
