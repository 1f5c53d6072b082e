"""What people get where tools get a problem, and what every page says to the browser."""

import logging
from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from api.app import create_app
from api.middleware import SECURITY_HEADERS
from api.pages.people import PAGE_HEADERS
from api.problems import ProblemError
from api.settings import Settings
from tests.unit.api.browsers import Browser
from tuner.errors import StoreError
from tuner.store import Store

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

    return Browser(app)


@pytest.fixture
def stranger(store: Store) -> Browser:
    """A browser, and a service that needs keys."""
    return Browser(create_app(store, Settings(_env_file=None, require_keys=True)))


def html(response: Any) -> str:
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
    assert response.headers["content-security-policy"] == expected
    assert response.headers["referrer-policy"] == "same-origin"
    assert response.headers["cross-origin-opener-policy"] == "same-origin"
    assert response.headers["cache-control"] == "no-store"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert len(response.headers.get_list("content-security-policy")) == 1


@pytest.mark.parametrize("path", ["/tune", f"/tune/{NO_STUDY}", "/openapi.json", "/healthz"])
def test_what_is_for_tools_says_what_it_said(browser: Browser, path: str) -> None:
    """Also to browsers."""
    response = browser.get(path)
    assert "json" in response.headers["content-type"]
    for name in ("content-security-policy", "referrer-policy"):
        assert response.headers[name] == {k.lower(): v for k, v in SECURITY_HEADERS.items()}[name]
    assert "permissions-policy" not in response.headers
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize(
    ("path", "status", "words", "back"),
    [
        (f"/studies/{NO_STUDY}", 404, f"There is no study {NO_STUDY}.", "/"),
        (f"/studies/{NO_STUDY}/probes/1", 404, f"no study {NO_STUDY}", "/"),
        ("/studies/st-1", 404, "There is no study st-1.", "/"),
        ("/nowhere", 404, "There is nothing at this path.", "/"),
        ("/studies/wrong/database", 503, "The database cannot be used now.", "/studies/wrong"),
    ],
)
def test_a_problem_is_a_page_with_a_way_back(
    browser: Browser, path: str, status: int, words: str, back: str
) -> None:
    response = browser.get(path)
    assert response.status_code == status
    page = html(response)
    assert words in page
    assert f'href="{back}"' in page
    assert page.count("<h1>") == 1
    assert "secret" not in page


@pytest.mark.parametrize("accept", ["application/json", "*/*", "application/problem+json", ""])
def test_scripts_and_tools_get_it_as_json(browser: Browser, accept: str) -> None:
    response = browser.get(f"/studies/{NO_STUDY}/live", headers={"Accept": accept})
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["detail"] == f"there is no study {NO_STUDY}"


def test_what_a_problem_says_is_text(browser: Browser) -> None:
    response = browser.get("/studies/wrong/refused")
    page = html(response)
    assert response.status_code == 409
    assert response.headers["retry-after"] == "7"
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_mistake_is_told_and_logged(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        response = browser.get("/studies/wrong/mistake")
    assert response.status_code == 500
    page = html(response)
    assert "The service made a mistake, and its log says which." in page
    assert "secret" not in page
    (line,) = [record for record in caplog.records if record.message == "answered"]
    assert line.__dict__["status"] == 500


def test_a_mistake_reaches_the_server(app: FastAPI) -> None:
    """Which logs it."""

    @app.get("/new/mistake", include_in_schema=False)
    def mistake() -> None:
        raise RuntimeError("a mistake")

    strict = Browser(app)
    strict._transport.raise_server_exceptions = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="a mistake"):
        strict.get("/new/mistake")


def test_other_methods_are_told_which_there_are(browser: Browser) -> None:
    response = browser.put("/compare")
    assert response.status_code == 405
    assert set(response.headers["allow"].split(", ")) == {"GET", "HEAD"}
    assert "This path takes GET, HEAD." in html(response)


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 400), ({"X-Long": "x" * 40_000}, 431)],
)
def test_what_is_refused_at_the_door_is_a_page_too(
    browser: Browser, headers: dict[str, str], status: int
) -> None:
    response = browser.get("/", headers=headers)
    assert response.status_code == status
    html(response)


def test_too_large_a_form_is_told_so(browser: Browser) -> None:
    response = browser.post("/new", data={"model": "x" * 300_000})
    assert response.status_code == 413
    assert "A body may have 262144 bytes." in html(response)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("path", "onward"),
    [
        ("/", "/sign-in"),
        ("/new", "/sign-in?next=/new"),
        ("/compare?ids=a,b", "/sign-in?next=/compare%3Fids%3Da%2Cb"),
        (f"/studies/{NO_STUDY}", f"/sign-in?next=/studies/{NO_STUDY}"),
        ("//evil.example/", "/sign-in"),
        ("/studies/%2f%2fevil.example", "/sign-in"),
        ("/studies/é?x=%0d%0aSet-Cookie:a", "/sign-in?next="),
        ("/nowhere", "/sign-in"),
    ],
)
def test_who_needs_a_key_is_sent_to_sign_in(
    stranger: Browser, method: str, path: str, onward: str
) -> None:
    response = stranger.request(method, f"http://localhost{path}")
    assert response.status_code == 303
    given = response.headers["location"]
    assert given.startswith(onward) if onward.endswith("=") else given == onward
    assert "set-cookie" not in response.headers


@pytest.mark.parametrize("path", ["/", "/new", f"/studies/{NO_STUDY}"])
def test_who_accepts_no_pages_is_told_that_a_key_is_needed(stranger: Browser, path: str) -> None:
    response = stranger.get(path, headers={"Accept": "application/json"})
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == 'Bearer realm="tuner"'


def test_a_page_that_is_made_elsewhere_keeps_its_own_words(app: FastAPI) -> None:
    @app.get("/new/other", include_in_schema=False)
    def other(request: Request) -> HTMLResponse:
        return HTMLResponse("x", headers={"Referrer-Policy": "no-referrer"})

    response = Browser(app).get("/new/other")
    assert response.headers["referrer-policy"] == "no-referrer"
    assert "permissions-policy" in response.headers
