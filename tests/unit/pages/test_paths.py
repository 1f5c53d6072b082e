"""Which paths are pages, and where a page may send whoever has signed in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api.pages.paths import is_open, is_page, local_path, wants_page
from tests.unit.api.asgi import HOST, connection
from tests.unit.api.browsers import PAGE


@pytest.mark.parametrize(
    "path",
    ["/", "/new", "/compare", "/studies/st-0123456789ab", "/studies/st-0/cancel", "/sign-in"],
)
def test_pages_are_for_people(path: str) -> None:
    assert is_page(path)
    assert wants_page(connection(path=path, headers=[HOST, *PAGE.items()]))
    assert not wants_page(connection(path=path, headers=[HOST, ("Accept", "application/json")]))
    assert not wants_page(connection(path=path, headers=[HOST, ("Accept", "*/*")]))
    assert not wants_page(connection(path=path))


@pytest.mark.parametrize(
    "path",
    [
        "/tune",
        "/tune/st-0123456789ab/export/accelerate",
        "//tune",
        "/openapi.json",
        "/metrics",
        "/audit",
        "/healthz",
        "/static/0/style.css",
        "/favicon.ico",
    ],
)
def test_what_tools_read_is_not(path: str) -> None:
    assert not is_page(path)
    assert not wants_page(connection(path=path, headers=[HOST, *PAGE.items()]))


@pytest.mark.parametrize("path", ["/nowhere", "/studios", "/New", "/tunes"])
def test_where_nothing_is_people_are_told_so_and_forms_are_not_taken(path: str) -> None:
    assert not is_page(path)
    assert wants_page(connection(path=path, headers=[HOST, *PAGE.items()]))


def test_a_media_type_may_be_written_otherwise() -> None:
    assert wants_page(connection(path="/", headers=[HOST, ("ACCEPT", "a/b, Text/HTML;q=0.1")]))
    twice = [HOST, ("Accept", "a/b"), ("Accept", "text/html")]
    assert wants_page(connection(path="/", headers=twice))


@pytest.mark.parametrize(
    ("path", "is_so"),
    [
        ("/sign-in", True),
        ("/sign-out", True),
        ("/static/0/style.css", True),
        ("/favicon.ico", True),
        ("/", False),
        ("/static", False),
        ("/sign-in/", False),
        ("/sign-inn", False),
        ("//sign-in", False),
        ("/x/static/", False),
    ],
)
def test_little_is_open(path: str, is_so: bool) -> None:
    assert is_open(path) is is_so


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/new",
        "/new?like=st-0123456789ab",
        "/studies/st-0123456789ab",
        "/?query=a%20b&state=done",
        "/?query=http://evil.example",
        "/compare?ids=st-0,st-1#top",
        "/studies/st-0/settings?tp_size=2",
    ],
)
def test_pages_may_be_gone_on_to(path: str) -> None:
    assert local_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "new",
        "//evil.example",
        "///evil.example",
        "///new",
        "////studies/st-0",
        "/\\evil.example",
        "\\\\evil.example",
        "/\\/evil.example",
        "/new\\..\\..",
        "http:evil.example",
        "http://evil.example/",
        "https:/evil.example",
        "http:///evil.example",
        "//evil.example/new",
        "javascript:alert(1)",
        "data:text/html,x",
        " //evil.example",
        "/ /evil.example",
        "/\t/evil.example",
        "\t//evil.example",
        "/\n/evil.example",
        "/new\r\nSet-Cookie: a=b",
        "/new\x00",
        "/../new",
        "/./new",
        "/..//evil.example",
        "/new//evil.example",
        "/new/..//evil.example",
        "//[::1]/",
        "//[",
        "/é",
        "/\u2028/evil.example",
        "/\uff0f/evil.example",
        "@evil.example",
        "/sign-in",
        "/sign-in?next=/new",
        "/sign-out",
        "/tune",
        "/static/0/style.css",
        "/nowhere",
        "/new?" + "x" * 2000,
    ],
)
def test_all_else_leads_to_the_first_page(path: str) -> None:
    assert local_path(path) == "/"


@given(st.text(alphabet="/\\.:@?#%[]\t\n newhtp\u3002", max_size=12).map(lambda text: "/" + text))
def test_whatever_is_given_stays_here(path: str) -> None:
    """Browsers leave tabs and newlines out, and take a backslash for a slash."""
    found = local_path(path)
    seen = found.replace("\t", "").replace("\n", "").replace("\r", "").replace("\\", "/")
    assert seen.startswith("/")
    assert not seen.startswith("//")
    assert found.isascii()
    assert found.isprintable()
