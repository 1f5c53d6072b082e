"""What people get where tools get a problem, what every page says to the browser, and notes that
a form's answer leaves for the page after it.
"""

import logging
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from api.middleware import SECURITY_HEADERS
from api.pages.people import LONGEST_TOLD, PAGE_HEADERS, forgetting_cookie, told_cookie, told_of
from api.problems import ProblemError
from tests.unit.api.browsers import Browser
from tuner.errors import StoreError

NO_STUDY = "st-000000000000"
HOSTILE = '<script>alert(1)</script>"\u202e'


@pytest.fixture
def browser(app: FastAPI) -> Browser:
    """A browser on this machine, with routes that go wrong."""

    @app.get("/studies/wrong/{what}", include_in_schema=False)
    def wrong(what: str) -> HTMLResponse:
        if what == "refused":
            headers = {"Retry-After": "7"}
            raise ProblemError(409, HOSTILE, headers, field=HOSTILE)
        if what == "database":
            raise StoreError("the database /somewhere/secret.db is gone")
        raise RuntimeError("a secret of ours")

    @app.get("/new/other", include_in_schema=False)
    def other(request: Request) -> HTMLResponse:
        return HTMLResponse("x", headers={"Referrer-Policy": "no-referrer"})

    return Browser(app)


def html(response: Any, status: int = 200) -> str:
    assert response.status_code == status
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    for name, value in PAGE_HEADERS.items():
        assert response.headers[name] == value
    return str(response.text)


def test_what_every_page_says(browser: Browser) -> None:
    response = browser.get("/")
    html(response)
    expected = (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
        " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    assert response.headers.get_list("content-security-policy") == [expected]
    assert response.headers["referrer-policy"] == "same-origin"
    assert response.headers["cross-origin-opener-policy"] == "same-origin"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    own = browser.get("/new/other").headers
    assert own["referrer-policy"] == "no-referrer"
    assert "permissions-policy" in own


def test_what_is_for_tools_says_what_it_said_also_to_browsers(browser: Browser) -> None:
    policies = {"Content-Security-Policy", "Referrer-Policy"}
    for path in ("/tune", f"/tune/{NO_STUDY}", "/openapi.json", "/healthz"):
        response = browser.get(path)
        assert "json" in response.headers["content-type"]
        assert all(response.headers[name] == SECURITY_HEADERS[name] for name in policies)
        assert "permissions-policy" not in response.headers
        assert "set-cookie" not in response.headers
    for accept in ("application/json", "*/*", ""):
        response = browser.get(f"/studies/{NO_STUDY}/live", headers={"Accept": accept})
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"


def test_a_problem_is_a_page_with_a_way_back(browser: Browser) -> None:
    for path, status, words, back in (
        (f"/studies/{NO_STUDY}", 404, f"There is no study {NO_STUDY}.", "/"),
        (f"/studies/{NO_STUDY}/probes/1", 404, f"no study {NO_STUDY}", "/"),
        ("/nowhere", 404, "There is nothing at this path.", "/"),
        ("/studies/wrong/database", 503, "The database cannot be used now.", "/studies/wrong"),
        ("/studies/wrong/refused", 409, "&lt;script&gt;alert", "/studies/wrong"),
    ):
        response = browser.get(path)
        page = html(response, status)
        assert words in page
        assert f'href="{back}"' in page
        assert page.count("<h1>") == 1
        assert "secret" not in page
        assert "<script>alert" not in page
    assert response.headers["retry-after"] == "7"
    put = browser.put("/compare")
    html(put, 405)
    assert set(put.headers["allow"].split(", ")) == {"GET", "HEAD"}


def test_a_mistake_is_told_and_logged(
    browser: Browser, app: FastAPI, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        page = html(browser.get("/studies/wrong/mistake"), 500)
    assert "secret" not in page
    (line,) = [record for record in caplog.records if record.message == "answered"]
    assert line.__dict__["status"] == 500
    browser._transport.raise_server_exceptions = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="a secret of ours"):  # it reaches the server
        browser.get("/studies/wrong/mistake")


def test_what_is_refused_at_the_door_is_a_page_too(browser: Browser) -> None:
    html(browser.get("/", headers={"Host": "evil.example"}), 400)
    html(browser.get("/", headers={"X-Long": "x" * 40_000}), 431)
    html(browser.post("/new", data={"model": "x" * 300_000}), 413)


def test_who_needs_a_key_is_sent_to_sign_in(guarded: FastAPI) -> None:
    stranger = Browser(guarded)
    for path, onward in (
        ("/", "/sign-in"),
        ("/new", "/sign-in?next=/new"),
        ("/compare?ids=a,b", "/sign-in?next=/compare%3Fids%3Da%2Cb"),
        (f"/studies/{NO_STUDY}", f"/sign-in?next=/studies/{NO_STUDY}"),
        ("//evil.example/", "/sign-in"),
        ("/studies/%2f%2fevil.example", "/sign-in"),
        ("/studies/é?x=%0d%0aSet-Cookie:a", "/sign-in?next="),
        ("/nowhere", "/sign-in"),
    ):
        for method in ("GET", "HEAD"):
            response = stranger.request(method, f"http://localhost{path}")
            assert response.status_code == 303
            given = response.headers["location"]
            assert given.startswith(onward) if onward.endswith("=") else given == onward
            assert "set-cookie" not in response.headers
    response = stranger.get("/new", headers={"Accept": "application/json"})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == 'Bearer realm="tuner"'


# -- notes ------------------------------------------------------------------------------------

ID = "st-0123456789ab"


def request_with(header: str, scheme: str = "http") -> Request:
    """A request of a browser that was given this ``Set-Cookie`` header."""
    pair = header.partition(";")[0].encode()
    scope = {
        "type": "http",
        "scheme": scheme,
        "path": "/",
        "query_string": b"",
        "server": ("localhost", 80),
        "headers": [(b"cookie", pair), (b"host", b"localhost")],
    }
    return Request(scope)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_notes_reach_the_page_of_their_study_alone(scheme: str) -> None:
    notes, secure = ("versions: torch 2.13.0; newest", "“quoted”, <b>"), scheme == "https"
    header = told_cookie(ID, notes, secure=secure)
    assert header is not None
    assert ("Secure" in header) == secure
    assert told_of(request_with(header, scheme), ID) == notes
    assert told_of(request_with(header, scheme), "st-ba9876543210") == ()
    assert told_cookie(ID, (), secure=secure) is None
    assert told_of(request_with(forgetting_cookie(secure=secure), scheme), ID) == ()


def test_a_cookie_is_short_enough_for_browsers() -> None:
    header = told_cookie(ID, ["a" * 900, "b" * 900, "c" * 900], secure=True)
    assert header is not None
    assert len(header) < LONGEST_TOLD + 200
    assert told_of(request_with(header, "https"), ID) == ("a" * 900, "b" * 900)
    assert told_cookie(ID, ["a" * 5000], secure=True) is None


def test_what_is_not_ours_is_nothing() -> None:
    """Where there is no https, a neighbour of our domain can set the cookie."""
    texts = ("[" * 2000, f'["{ID}", "\\ud800"]', f'["{ID}", 1]', "{}", "null", '["a"]')
    values = [urlsafe_b64encode(text.encode()).decode() for text in texts]
    for value in (*values, "%%%", "WzFd", "x" * 5000, "Wy"):
        assert told_of(request_with(f"tuner_told={value}"), ID) == ()
