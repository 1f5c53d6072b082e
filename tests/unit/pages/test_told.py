"""Notes that a form's answer leaves for the page after it."""

from base64 import urlsafe_b64encode

import pytest
from fastapi import Request

from api.pages.people import LONGEST_TOLD, forgetting_cookie, told_cookie, told_of

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
    notes = ("versions: torch 2.13.0; newest", "“quoted”, <b>")
    header = told_cookie(ID, notes, secure=scheme == "https")
    assert header is not None
    assert ("Secure" in header) == (scheme == "https")
    assert told_of(request_with(header, scheme), ID) == notes
    assert told_of(request_with(header, scheme), "st-ba9876543210") == ()


def test_without_notes_there_is_no_cookie() -> None:
    assert told_cookie(ID, (), secure=False) is None
    assert told_of(request_with(forgetting_cookie(secure=False)), ID) == ()


def test_a_cookie_is_short_enough_for_browsers() -> None:
    header = told_cookie(ID, ["a" * 900, "b" * 900, "c" * 900], secure=True)
    assert header is not None
    assert len(header) < LONGEST_TOLD + 200
    assert told_of(request_with(header, "https"), ID) == ("a" * 900, "b" * 900)
    assert told_cookie(ID, ["a" * 5000], secure=True) is None


@pytest.mark.parametrize(
    "value", ["%%%", "e30=", "WzFd", "bnVsbA==", pytest.param("x" * 5000, id="long"), "Wy"]
)
def test_what_is_not_ours_is_nothing(value: str) -> None:
    assert told_of(request_with(f"tuner_told={value}"), ID) == ()


@pytest.mark.parametrize(
    "text",
    ["[" * 2000, f'["{ID}", "\\ud800"]', f'["{ID}", 1]'],
    ids=["deep", "half a pair", "a number"],
)
def test_what_no_page_can_show_is_nothing(text: str) -> None:
    """Where there is no https, a neighbour of our domain can set the cookie."""
    value = urlsafe_b64encode(text.encode()).decode()
    assert told_of(request_with(f"tuner_told={value}"), ID) == ()
