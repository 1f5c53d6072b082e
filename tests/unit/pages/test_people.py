"""What people get where tools get a problem, what every page says to the browser, and notes that
a form's answer leaves for the page after it.
"""

from base64 import urlsafe_b64encode

import pytest
from fastapi import Request
from fastapi.responses import HTMLResponse

from api.pages.people import PAGE_HEADERS, forgetting_cookie, told_cookie, told_of
from api.problems import ProblemError
from tests.unit.api.browsers import Browser
from tuner.errors import StoreError

NO_STUDY = "st-000000000000"
HOSTILE = '<script>alert(1)</script>"\u202e'


@pytest.fixture
def browser(app):

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


def html(response, status=200):
    assert response.status_code == status
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    for name, value in PAGE_HEADERS.items():
        assert response.headers[name] == value
    return str(response.text)


def test_a_problem_is_a_page_with_a_way_back(browser):
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


ID = "st-0123456789ab"


def request_with(header, scheme="http"):
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
def test_notes_reach_the_page_of_their_study_alone(scheme):
    notes, secure = ("versions: torch 2.13.0; newest", "“quoted”, <b>"), scheme == "https"
    header = told_cookie(ID, notes, secure=secure)
    assert header is not None
    assert ("Secure" in header) == secure
    assert told_of(request_with(header, scheme), ID) == notes
    assert told_of(request_with(header, scheme), "st-ba9876543210") == ()
    assert told_cookie(ID, (), secure=secure) is None
    assert told_of(request_with(forgetting_cookie(secure=secure), scheme), ID) == ()


def test_what_is_not_ours_is_nothing():
    """Where there is no https, a neighbour of our domain can set the cookie."""
    texts = ("[" * 2000, f'["{ID}", "\\ud800"]', f'["{ID}", 1]', "{}", "null", '["a"]')
    values = [urlsafe_b64encode(text.encode()).decode() for text in texts]
    for value in (*values, "%%%", "WzFd", "x" * 5000, "Wy"):
        assert told_of(request_with(f"tuner_told={value}"), ID) == ()
