"""Cookies that stand for a key, and forms that only this service's pages can send."""

import re
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse

from api.app import protect
from api.problems import add_problems
from api.security import Reader, Submitter
from api.sessions import Formed, LazyField, session_token
from api.settings import Settings
from tests.unit.api.asgi import HOST, connection
from tests.unit.api.browsers import Browser
from tuner.store.access import Keys, Sessions
from tuner.store.tables import Scope

A, B = "A" * 43, "B" * 43


@pytest.fixture
def keys(store):
    return Keys(store.transactions)


@pytest.fixture
def sessions(store):
    return Sessions(store.transactions)


def pages():
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
def app(store):
    """A service with such settings; keys are needed unless they say otherwise."""

    def make(**given):
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
def browser(app):
    """A browser that has a session's cookie, if a token is given, and the service with settings."""

    def make(token=None, **given):
        opened = Browser(app(**given))
        if token is not None:
            opened.cookies.set("tuner_session", token)
        return opened

    return make


def submitting(keys, sessions, scope=Scope.SUBMIT):
    return sessions.begin(keys.create("the team", scope)[0].id)


def test_a_key_counts_before_a_session(browser, keys, sessions):
    token = submitting(keys, sessions, Scope.ADMIN)
    key, text = keys.create("a", Scope.READ)
    opened = browser(token)
    bearer = {"Authorization": f"Bearer {text}"}
    assert opened.get("/tune", headers=bearer).json() == key.id
    assert opened.post("/tune", headers=bearer, json={}).status_code == 403
    wrong = {"Authorization": f"Bearer tuner_{'0' * 16}_{'A' * 43}"}
    assert opened.get("/tune", headers=wrong).status_code == 401
    assert opened.get("/compare", headers=wrong).status_code == 401, "and not sent to sign in"


def test_two_sessions_are_none():
    twice = f"tuner_session={A}; tuner_session={B}"
    assert session_token(connection(headers=[HOST, ("cookie", twice)])) is None
    apart = [HOST, ("cookie", f"tuner_session={A}"), ("cookie", f"tuner_session={B}")]
    assert session_token(connection(headers=apart)) is None
    others = f"a=1; tuner_session={A}; tuner_visit={B}"
    assert session_token(connection(headers=[HOST, ("cookie", others)])) == A


@pytest.mark.parametrize("required", [True, None])
def test_no_form_is_taken_without_its_token_or_of_another_site(browser, keys, sessions, required):
    """Also where a route forgets to read the form."""
    opened, other = (
        browser(submitting(keys, sessions) if required else None, require_keys=required)
        for _ in range(2)
    )
    good, another = opened.token("/new"), other.token("/new")
    assert len({good, another, opened.token("/new")}) == 3, "each form has a token of its own"
    flipped = good[:-1] + ("0" if good[-1] != "0" else "1")
    own = {"Origin": "http://localhost", "Sec-Fetch-Site": "same-origin"}
    foreign = (
        {"Origin": "https://evil.example"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    )
    for path in ("/new", "/studies/forgetful"):
        for tokens in ([], [""], ["é"], [flipped], [good[:-1]], [another], [good, good]):
            response = opened.post(path, data={"model": "m", "csrf_token": tokens})
            assert response.status_code == 403, tokens
            assert "out of date" in response.text
        for sent_from in foreign:
            answer = opened.post(path, data={"csrf_token": good}, headers=sent_from)
            assert answer.status_code == 403, sent_from
        assert opened.post(path, data={"csrf_token": good}, headers=own).status_code == 200


def test_without_a_session_a_form_is_kept_for_who_signs_in(browser):
    opened = browser()
    typed = {"workload.model": "m &<b>", "csrf_token": "0" * 64, "model": "no field of ours"}
    onward = quote("/new?workload.model=m+%26%3Cb%3E", safe="/")
    for fields, path in (
        (typed, onward),
        ({"workload.model": "m" * 3000}, "/new"),  # too long for an address
        ({}, "/new"),
    ):
        response = opened.post("/new", data=fields)
        assert response.status_code == 401
        assert f'href="/sign-in?next={path}"' in response.text
    response = opened.post("/studies/st-0123456789ab/cancel")
    assert 'href="/sign-in?next=/studies/st-0123456789ab"' in response.text


def test_a_form_needs_a_visit_and_other_pages_do_not(browser):
    opened = browser(require_keys=None)
    assert "set-cookie" not in opened.get("/compare").headers
    (given,) = opened.get("/new").headers.get_list("set-cookie")
    assert re.fullmatch(r"tuner_visit=[\w-]{43}; Path=/; HttpOnly; SameSite=Lax", given)
    assert "set-cookie" not in opened.get("/new").headers, "it has one"


def test_by_https_only_cookies_of_https_count():
    plain = {**connection(headers=[HOST, ("cookie", f"tuner_session={A}")]), "scheme": "https"}
    assert session_token(plain) is None
    own = [HOST, ("cookie", f"__Host-tuner_session={A}; tuner_session={B}")]
    assert session_token({**connection(headers=own), "scheme": "https"}) == A
