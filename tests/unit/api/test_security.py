"""Who is let in, for how long, and with how much of the service."""

import asyncio
import threading
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.app import create_app, protect
from api.problems import add_problems
from api.security import Admin, KeysNeeded, Reader, Revocation, Submitter, check_bind, keys_needed
from api.settings import Settings
from tests.unit.api.asgi import HOST, body_of, connection, send_to
from tests.unit.api.studies import PREDICTED, question_of
from tuner.core.study import Limits
from tuner.errors import StoreError, UsageError
from tuner.store.access import Keys, Sessions
from tuner.store.tables import Scope


def settings(**given):
    return Settings(_env_file=None, **given)


@pytest.fixture
def keys(store):
    return Keys(store.transactions)


def app_of(store, **given):
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
    protect(app, settings(**given), Keys(store.transactions))
    return app


@pytest.fixture
def client(store):
    """A service with such settings; keys are needed unless they say otherwise."""

    def make(**given):
        app = app_of(store, **{"require_keys": True, **given})
        return TestClient(app, base_url="http://localhost", client=("192.0.2.1", 50000))

    return make


def bearer(text):
    return {"Authorization": f"Bearer {text}"}


def test_who_needs_a_key():
    named = {"allowed_hosts": ("tuner.example.org",)}
    for given, needed in (
        ({}, KeysNeeded.FROM_OTHERS),
        ({"host": "localhost"}, KeysNeeded.FROM_OTHERS),
        ({"host": "::1", "allowed_hosts": ("localhost",)}, KeysNeeded.FROM_OTHERS),
        ({"require_keys": True}, KeysNeeded.ALWAYS),
        ({"require_keys": False}, KeysNeeded.NEVER),
        ({**named, "require_keys": False}, KeysNeeded.NEVER),
        (named, KeysNeeded.ALWAYS),
        ({"allowed_hosts": ("*",)}, KeysNeeded.ALWAYS),
        ({"proxies": ("127.0.0.1",)}, KeysNeeded.ALWAYS),
        *(
            ({"host": host}, KeysNeeded.ALWAYS)
            for host in ("0.0.0.0", "192.168.0.7", "example.org", "", "127.1")
        ),
    ):
        assert keys_needed(settings(**given)) is needed, given
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):
        with pytest.raises(UsageError, match="require_keys"):
            keys_needed(settings(host=host, require_keys=False))


def test_a_service_that_needs_keys_does_not_start_without_one(keys):
    check_bind(settings(), keys)  # of this machine
    for given, named in (
        ({"host": "0.0.0.0"}, ""),
        ({"require_keys": True}, ""),
        ({"db": "sqlite:///studies.db"}, " --db sqlite:///studies.db"),
        ({"db": "sqlite:///my studies.db"}, " --db 'sqlite:///my studies.db'"),
        ({"db": "postgresql://a:secret@host/t"}, " --db 'postgresql://a:***@host/t'"),
    ):
        asked = settings(**{"host": "0.0.0.0", **given})
        with pytest.raises(UsageError, match=r"^host: ") as caught:
            check_bind(asked, keys)
        assert caught.value.allowed.endswith(f"tuner keys create NAME --scope submit{named}")
        made, _ = keys.create("a", Scope.READ)
        check_bind(asked, keys)
        keys.revoke(made.id)


def test_without_a_key_no_body_is_read(store):
    app = app_of(store, require_keys=True)
    answer = asyncio.run(send_to(app, connection("POST", "/submit"), ()))  # no body ever comes
    assert answer.status == 401


def test_what_a_proxy_passes_on_is_not_of_this_machine(client, keys):
    _, text = keys.create("a", Scope.READ)
    opened, never = client(require_keys=None), client(require_keys=False)
    for header in ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Real-IP", "Via"):
        passed_on = {header: "192.0.2.7"}
        response = opened.get("/read", headers=passed_on)
        assert response.status_code == 401
        assert "proxy" in response.json()["detail"]
        assert opened.get("/read", headers={**passed_on, **bearer(text)}).status_code == 200
        assert never.get("/read", headers=passed_on).status_code == 200


def test_a_key_allows_its_scope_and_no_more(client, keys):
    opened = client()
    for scope in Scope:
        key, text = keys.create("a", scope)
        statuses = {
            "read": opened.get("/read", headers=bearer(text)).status_code,
            "submit": opened.post("/submit", headers=bearer(text), json={}).status_code,
            "admin": opened.get("/admin", headers=bearer(text)).status_code,
        }
        allowed = list(Scope)[: list(Scope).index(scope) + 1]
        assert statuses == {str(one): 200 if one in allowed else 403 for one in Scope}
        found = {"id": key.id, "owner": key.id, "scope": str(scope)}
        assert opened.get("/read", headers=bearer(text)).json() == found
    small = opened.get("/admin", headers=bearer(keys.create("a", Scope.READ)[1]))
    assert (small.status_code, small.json()["code"]) == (403, "scope_too_small")
    challenge = small.headers["www-authenticate"]
    assert 'error="insufficient_scope", scope="admin"' in challenge
    keys.revoke(key.id)
    assert opened.get("/read", headers=bearer(text)).status_code == 401, "from the next request on"


def test_on_this_machine_none_is_needed_and_one_that_is_given_counts(client, keys):
    opened = client(require_keys=None, rate_burst=1, rate_per_s=0.001)  # nor is there a rate
    assert opened.get("/read").json() == {"id": "local", "owner": "", "scope": "admin"}
    assert opened.post("/submit", json={}).json() == "local"
    key, text = keys.create("a", Scope.READ)
    assert opened.get("/read", headers=bearer(text)).json()["owner"] == key.id
    assert opened.post("/submit", headers=bearer(text), json={}).status_code == 403


def test_a_key_that_is_not_good_is_refused_and_logged(client, keys, caplog):
    key, text = keys.create("a", Scope.ADMIN)
    wrong = text[:-1] + ("A" if text[-1] != "A" else "B")
    response = client().get("/read", headers=bearer(wrong))
    assert (response.status_code, response.json()["code"]) == (401, "key_refused")
    assert 'error="invalid_token"' in response.headers["www-authenticate"]
    (line,) = [vars(one) for one in caplog.records if one.name == "api.security"]
    assert (line["key"], line["client"]) == (key.id, "192.0.2.1")
    assert wrong[-43:] not in repr(line)


def test_headers_that_hold_a_key_and_others(client, keys):
    _, text = keys.create("a", Scope.ADMIN)
    for opened in (client(), client(require_keys=None)):
        for given, status in (
            *((form, 200) for form in ("Bearer {}", "bearer {}", "BEARER {}", "Bearer  {} ")),
            *((form, 401) for form in ("", "Bearer", "Bearer ", "Basic {}", "{}", "Token {}")),
            *((form, 401) for form in ("Bearer {} {}", "Bearer {}x")),
        ):
            headers = {"Authorization": given.replace("{}", text)}
            assert opened.get("/read", headers=headers).status_code == status, given
        twice = [("authorization", f"Bearer {text}")] * 2
        scope = connection(path="/read", headers=[HOST, *twice])
        answer = asyncio.run(send_to(opened.app, scope, body_of(b"")))
        assert answer.status == 401


def test_each_key_has_its_rate(client, keys):
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


def test_who_guesses_keys_has_the_rate_of_the_address(client, keys):
    _, good = keys.create("a", Scope.READ)
    opened = client(rate_burst=3, rate_per_s=0.001)
    assert opened.get("/read", headers=bearer(good)).status_code == 200
    guesses = [f"tuner_{i:016x}_{'A' * 43}" for i in range(5)]
    statuses = [opened.get("/read", headers=bearer(text)).status_code for text in guesses]
    assert statuses == [401, 401, 429, 429, 429]
    assert opened.get("/read").status_code == 429, "also without any"
    assert opened.get("/read", headers=bearer(good)).status_code == 200, "not whose key is good"


def test_only_so_many_requests_of_one_caller_are_open(store):
    app = FastAPI()
    let_go = asyncio.Event()

    @app.get("/wait")
    async def wait(caller: Reader) -> str:
        await let_go.wait()
        return "done"

    add_problems(app)
    protect(app, settings(max_concurrent=10), Keys(store.transactions))

    async def visit():
        async def one(client="127.0.0.1"):
            answer = await send_to(app, connection(path="/wait", client=client), body_of(b""))
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


@pytest.mark.parametrize(
    ("method", "path", "computes"),
    [
        ("POST", "/tune", "api.submissions.Submissions.submit"),
        ("GET", "/tune/{id}/export/accelerate", "api.answers.Answers.whole"),
    ],
)
def test_whatever_computes_takes_a_turn_of_its_key(store, monkeypatch, method, path, computes):
    """Of three requests of one key one is worked at; another key's has the other thread."""
    app = create_app(store, settings(require_keys=True, threads=2))
    greedy, other = (
        Keys(store.transactions).create(name, Scope.SUBMIT)[1] for name in ("greedy", "other")
    )
    study_id = store.ask(question_of(PREDICTED), Limits()).id
    held, begun, inside = threading.Event(), threading.Event(), []

    def slow(*arguments, **more):
        inside.append(arguments)
        begun.set()
        assert held.wait(60)
        raise StoreError("never mind")

    monkeypatch.setattr(computes, slow)
    monkeypatch.setattr(app.state.context.store, "move", lambda *a, **k: True)
    with TestClient(app, base_url="http://localhost") as client:

        def send(key, to, how="GET"):
            body = PREDICTED if how == "POST" else None
            url = to.format(id=study_id)
            return client.request(how, url, json=body, headers=bearer(key)).status_code

        threads = [threading.Thread(target=send, args=(greedy, path, method)) for _ in range(3)]
        for thread in threads:
            thread.start()
        assert begun.wait(30)
        try:
            assert [send(other, "/tune") for _ in range(5)] == [200] * 5
            assert len(inside) == 1
        finally:
            held.set()
            for thread in threads:
                thread.join(timeout=60)
    assert len(inside) == 3


class Away(Keys):
    """Keys of a database that cannot be used twice."""

    times = 0

    def list(self):
        self.times += 1
        if self.times <= 2:
            raise StoreError("it is away")
        return super().list()


def answering(after_s, first=lambda: None):

    async def app(scope, receive, send):
        first()
        await asyncio.sleep(after_s)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    return app


def served(revocation, proof, app, method="GET"):
    async def serve(scope, receive, send):
        await revocation.serve(proof, app, scope, receive, send)

    answer = asyncio.run(send_to(serve, connection(method)))
    assert answer is not None
    assert not revocation._open
    return answer


def test_a_database_that_is_away_ends_nothing_and_is_asked_again(keys, caplog):
    away = Away(keys.transactions)
    key, _ = keys.create("a", Scope.READ)
    revocation = Revocation(away, Sessions(keys.transactions), look_s=0.01)
    answer = served(revocation, key.id, answering(600, lambda: keys.revoke(key.id)))
    assert (answer.status, answer.json["code"]) == (401, "key_refused")
    assert away.times == 3
    assert "which keys and sessions still hold is not known" in caplog.text


def test_what_changes_something_or_needs_no_key_or_is_quick_is_answered(keys):
    away = Away(keys.transactions)
    for method, proof, after_s, look_s in (
        ("POST", "revoked", 0.1, 0.01),
        ("DELETE", "revoked", 0.1, 0.01),
        ("GET", "", 0.1, 0.01),
        ("GET", "revoked", 0, 30),
    ):
        revocation = Revocation(away, Sessions(keys.transactions), look_s=look_s)
        answer = served(revocation, proof, answering(after_s), method)
        assert (answer.status, answer.body) == (200, b"done")
    assert away.times == 0
