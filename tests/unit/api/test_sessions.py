"""Cookies that stand for a key, and forms that only this service's pages can send."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse
from starlette.testclient import TestClient

from api.app import protect
from api.problems import add_problems
from api.security import Reader, Submitter
from api.sessions import (
    MOST_FIELDS,
    Formed,
    LazyField,
    Visit,
    cookie,
    session_token,
    visit_of,
)
from api.settings import Settings
from tests.unit.api.asgi import HOST, connection
from tests.unit.api.browsers import TOKEN, Browser
from tuner.store import Store, open_store
from tuner.store.access import Keys, Sessions
from tuner.store.tables import Scope

A, B = "A" * 43, "B" * 43
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/studies.db") as opened:
        yield opened


@pytest.fixture
def keys(store: Store) -> Keys:
    return Keys(store.transactions)


@pytest.fixture
def sessions(store: Store) -> Sessions:
    return Sessions(store.transactions)


def pages() -> APIRouter:
    """A page, its form, one whose route does not read the form, and a part for scripts."""
    router = APIRouter(include_in_schema=False)

    @router.get("/new")
    def form(request: Request, caller: Reader) -> HTMLResponse:
        return HTMLResponse(str(LazyField(request)))

    @router.get("/compare")
    def no_form(caller: Reader) -> HTMLResponse:
        return HTMLResponse(f"{caller.name} {caller.scope} {caller.signed_in}")

    @router.post("/new")
    def sent(form: Formed, caller: Submitter) -> dict[str, list[str]]:
        return {name: form.getlist(name) for name in form}

    @router.post("/studies/forgetful")
    def forgetful(caller: Submitter) -> str:
        return "no form was read"

    return router


@pytest.fixture
def app(store: Store) -> Callable[..., FastAPI]:
    """A service with such settings; keys are needed unless they say otherwise."""

    def make(**given: Any) -> FastAPI:
        app = FastAPI(openapi_url=None)

        @app.get("/tune")
        def read(caller: Reader) -> str:
            return caller.id

        @app.post("/tune")
        def ask(caller: Submitter, body: dict[str, Any]) -> str:
            return caller.id

        @app.delete("/tune")
        def cancel(caller: Submitter) -> str:
            return caller.id

        app.include_router(pages())
        add_problems(app)
        settings = Settings(_env_file=None, **{"require_keys": True, **given})
        protect(app, settings, Keys(store.transactions))
        return app

    return make


@pytest.fixture
def browser(app: Callable[..., FastAPI]) -> Callable[..., Browser]:
    """A browser that has a session's cookie, if a token is given, and the service with settings."""

    def make(token: str | None = None, **given: Any) -> Browser:
        opened = Browser(app(**given))
        if token is not None:
            opened.cookies.set("tuner_session", token)
        return opened

    return make


def submitting(keys: Keys, sessions: Sessions, scope: Scope = Scope.SUBMIT) -> str:
    """The token of a session with a key of this scope."""
    return sessions.begin(keys.create("the team", scope)[0].id)


# -- what a session's cookie opens


def test_a_session_reads_where_its_key_does(browser: Any, keys: Keys, sessions: Sessions) -> None:
    opened = browser(submitting(keys, sessions, Scope.READ))
    assert opened.get("/tune").status_code == 200
    assert opened.head("/tune").status_code != 401
    assert opened.get("/compare").text == "the team read True"


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH", "OPTIONS"])
def test_a_session_changes_nothing_for_tools(
    browser: Any, keys: Keys, sessions: Sessions, method: str
) -> None:
    """Not for want of a form: the cookie counts for nothing there."""
    opened = browser(submitting(keys, sessions, Scope.ADMIN))
    token = opened.token("/new")
    for body in ({"json": {}}, {"data": {"csrf_token": token}}, {"content": b""}):
        response = opened.request(method, "/tune", **body)
        assert response.status_code == 401
        assert response.headers["content-type"] == "application/problem+json"


def test_on_this_machine_a_session_is_not_asked_for_what_tools_do(
    browser: Any, keys: Keys, sessions: Sessions
) -> None:
    opened = browser(submitting(keys, sessions, Scope.READ), require_keys=None)
    assert opened.get("/tune").json() != "local"
    assert opened.delete("/tune").json() == "local", "as without the cookie"


def test_a_key_counts_before_a_session(browser: Any, keys: Keys, sessions: Sessions) -> None:
    token = submitting(keys, sessions, Scope.ADMIN)
    key, text = keys.create("a", Scope.READ)
    opened = browser(token)
    bearer = {"Authorization": f"Bearer {text}"}
    assert opened.get("/tune", headers=bearer).json() == key.id
    assert opened.post("/tune", headers=bearer, json={}).status_code == 403
    wrong = {"Authorization": f"Bearer tuner_{'0' * 16}_{'A' * 43}"}
    assert opened.get("/tune", headers=wrong).status_code == 401
    assert opened.get("/compare", headers=wrong).status_code == 401, "and not sent to sign in"


def test_a_revoked_key_ends_its_session(browser: Any, keys: Keys, sessions: Sessions) -> None:
    key, _ = keys.create("a", Scope.READ)
    opened = browser(sessions.begin(key.id))
    assert opened.get("/tune").status_code == 200
    keys.revoke(key.id)
    assert opened.get("/tune").status_code == 401
    assert opened.get("/compare").status_code == 303


@pytest.mark.parametrize("token", ["", "A", A, A + "=", "'; DROP TABLE sessions", "\xe4" * 43])
def test_another_cookie_is_no_session(app: Any, token: str) -> None:
    headers = [HOST, ("cookie", f"tuner_session={token}")]
    assert session_token(connection(headers=headers)) == (token if token == A else None)
    given = {"Cookie": f"tuner_session={token}".encode("latin-1")}
    opened = TestClient(app(), base_url="http://localhost", headers=given)
    assert opened.get("/tune").status_code == 401


def test_two_sessions_are_none() -> None:
    twice = f"tuner_session={A}; tuner_session={B}"
    assert session_token(connection(headers=[HOST, ("cookie", twice)])) is None
    apart = [HOST, ("cookie", f"tuner_session={A}"), ("cookie", f"tuner_session={B}")]
    assert session_token(connection(headers=apart)) is None
    others = f"a=1; tuner_session={A}; tuner_visit={B}"
    assert session_token(connection(headers=[HOST, ("cookie", others)])) == A


def test_each_session_has_the_rate_of_its_key(browser: Any, keys: Keys, sessions: Sessions) -> None:
    limited = {"rate_burst": 3, "rate_per_s": 0.001}
    opened = browser(submitting(keys, sessions), **limited)
    assert opened.get("/compare").status_code == 200  # counts by address, and makes it known
    assert [opened.get("/compare").status_code for _ in range(5)] == [200, 200, 200, 429, 429]


# -- forms


def test_a_form_of_a_page_is_taken(browser: Any, keys: Keys, sessions: Sessions) -> None:
    opened = browser(submitting(keys, sessions))
    fields = {"model": "Llama é 東京 &=+", "empty": "", "tp_size": ["1", "2"]}
    response = opened.submit("/new", fields, page="/new", Origin="http://localhost")
    expected = {"model": ["Llama é 東京 &=+"], "empty": [""], "tp_size": ["1", "2"]}
    assert response.json() == expected


@pytest.mark.parametrize("path", ["/new", "/studies/forgetful"])
@pytest.mark.parametrize("required", [True, None, False])
def test_without_its_token_no_form_is_taken(
    browser: Any, keys: Keys, sessions: Sessions, path: str, required: bool | None
) -> None:
    opened = browser(submitting(keys, sessions) if required else None, require_keys=required)
    good = opened.token("/new")
    other = browser(submitting(keys, sessions) if required else None, require_keys=required)
    another = other.token("/new")
    assert another != good
    flipped = good[:-1] + ("0" if good[-1] != "0" else "1")
    for tokens in ([], [""], ["é"], [flipped], [good[:-1]], [another], [good, good], [good, ""]):
        response = opened.post(path, data={"model": "m", "csrf_token": tokens})
        assert response.status_code == 403, tokens
        assert response.headers["content-type"].startswith("text/html")
        assert "out of date" in response.text
    assert opened.post(path, data={"csrf_token": good}).status_code == 200


@pytest.mark.parametrize(
    "sent_from",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
@pytest.mark.parametrize("required", [True, None])
def test_no_form_of_another_site_is_taken(
    browser: Any, keys: Keys, sessions: Sessions, sent_from: dict[str, str], required: bool | None
) -> None:
    opened = browser(submitting(keys, sessions) if required else None, require_keys=required)
    token = {"csrf_token": opened.token("/new")}
    assert opened.post("/new", data=token, headers=sent_from).status_code == 403
    assert opened.post("/new", data=token).status_code == 200


def test_the_own_site_may_say_so(browser: Any) -> None:
    opened = browser(require_keys=None)
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    assert opened.post("/new", data={"csrf_token": opened.token("/new")}, headers=own).is_success


def test_the_scope_of_the_session_holds(browser: Any, keys: Keys, sessions: Sessions) -> None:
    opened = browser(submitting(keys, sessions, Scope.READ))
    response = opened.submit("/new", page="/new")
    assert response.status_code == 403
    assert "This key allows read; this needs submit." in response.text


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Type": "application/json"}, b"{}", 415),
        ({"Content-Type": "text/plain"}, b"csrf_token=0", 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x--", 415),
        ({}, b"", 415),
        (FORM, b"\xff\xfe", 400),
        (FORM, b"model=%ff", 400),
        (FORM, b"&".join([b"a=1"] * (MOST_FIELDS + 1)), 413),
        ({"Content-Type": "Application/X-WWW-Form-Urlencoded; charset=utf-8"}, b"a=1", 403),
        (FORM, b"", 403),
    ],
)
def test_what_is_no_form_is_told_so(
    browser: Any, headers: dict[str, str], body: bytes, status: int
) -> None:
    assert browser(require_keys=None).post("/new", headers=headers, content=body).status_code == (
        status
    )


def test_without_a_session_a_form_is_not_sent_elsewhere(browser: Any) -> None:
    """What was typed would be lost on the way to signing in."""
    typed = {"workload.model": "m &<b>", "csrf_token": "0" * 64, "model": "no field of ours"}
    response = browser().post("/new", data=typed)
    assert response.status_code == 401
    onward = quote("/new?workload.model=m+%26%3Cb%3E", safe="/")
    assert f'href="/sign-in?next={onward}"' in response.text
    assert "sign in, and send the form again." in response.text


@pytest.mark.parametrize("typed", [{"workload.model": "m" * 3000}, {"csrf_token": "0"}, {}])
def test_a_form_that_is_too_long_or_empty_is_begun_anew(
    browser: Any, typed: dict[str, str]
) -> None:
    response = browser().post("/new", data=typed)
    assert response.status_code == 401
    assert 'href="/sign-in?next=/new"' in response.text


def test_what_else_was_sent_leads_back_to_its_study(browser: Any) -> None:
    response = browser().post("/studies/st-0123456789ab/cancel")
    assert response.status_code == 401
    assert 'href="/sign-in?next=/studies/st-0123456789ab"' in response.text


# -- cookies


def test_a_form_needs_a_visit_and_other_pages_do_not(browser: Any) -> None:
    opened = browser(require_keys=None)
    assert "set-cookie" not in opened.get("/compare").headers
    (given,) = opened.get("/new").headers.get_list("set-cookie")
    assert re.fullmatch(r"tuner_visit=[\w-]{43}; Path=/; HttpOnly; SameSite=Lax", given)
    assert "set-cookie" not in opened.get("/new").headers, "it has one"


def test_with_a_session_there_is_no_visit(browser: Any, keys: Keys, sessions: Sessions) -> None:
    opened = browser(submitting(keys, sessions))
    response = opened.get("/new")
    assert "set-cookie" not in response.headers
    assert opened.session() not in response.text, "the token of forms does not tell the cookie"


def test_every_form_has_a_token_of_its_own_and_all_are_good(browser: Any) -> None:
    """One that is always the same could be read from the lengths of compressed answers."""
    opened = browser(require_keys=None)
    tokens = {opened.token("/new") for _ in range(3)}
    assert len(tokens) == 3
    for token in tokens:
        assert opened.post("/new", data={"csrf_token": token}).is_success


@pytest.mark.parametrize(
    ("secure", "age_s", "expected"),
    [
        (False, None, "tuner_session=x; Path=/; HttpOnly; SameSite=Lax"),
        (True, None, "__Host-tuner_session=x; Path=/; HttpOnly; SameSite=Lax; Secure"),
        (True, 9, "__Host-tuner_session=x; Path=/; HttpOnly; SameSite=Lax; Secure; Max-Age=9"),
    ],
)
def test_a_cookie_is_for_this_host_alone(secure: bool, age_s: int | None, expected: str) -> None:
    assert cookie("tuner_session", "x", secure=secure, max_age_s=age_s) == expected


def test_by_https_only_cookies_of_https_count() -> None:
    plain = {**connection(headers=[HOST, ("cookie", f"tuner_session={A}")]), "scheme": "https"}
    assert session_token(plain) is None
    own = [HOST, ("cookie", f"__Host-tuner_session={A}; tuner_session={B}")]
    assert session_token({**connection(headers=own), "scheme": "https"}) == A


def test_a_visit_does_not_show_its_secrets() -> None:
    given = [HOST, ("cookie", f"tuner_session={A}; tuner_visit={B}")]
    visit = Visit.of(connection(headers=given))
    assert (visit.session, visit.secret, visit.is_new) == (A, B, False)
    assert A not in repr(visit)
    assert B not in repr(visit)


def test_a_template_makes_the_field_only_where_it_shows_it() -> None:
    request = Request(connection(path="/new"))
    field = LazyField(request)
    assert "visit" not in request.scope.get("state", {})
    shown = TOKEN.fullmatch(str(field))
    assert shown
    assert visit_of(request).owns(shown[1])
