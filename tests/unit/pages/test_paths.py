"""Which paths are pages, and where a page may send whoever has signed in."""

from hypothesis import given
from hypothesis import strategies as st

from api.security import is_page, local_path, wants_page
from tests.unit.api.asgi import HOST, connection
from tests.unit.api.browsers import PAGE


def test_pages_are_for_people_and_what_tools_read_is_not():
    pages = ("/", "/new", "/compare", "/studies/st-0123456789ab", "/studies/st-0/cancel")
    for path in (*pages, "/sign-in"):
        assert is_page(path)
        assert wants_page(connection(path=path, headers=[HOST, *PAGE.items()]))
        for accept in ("application/json", "*/*"):
            assert not wants_page(connection(path=path, headers=[HOST, ("Accept", accept)]))
        assert not wants_page(connection(path=path))
    for path in ("/tune", "/tune/st-0123456789ab/export/accelerate", "//tune", "/openapi.json",
                 "/metrics", "/audit", "/healthz", "/favicon.ico"):  # fmt: skip
        assert not is_page(path)
        assert not wants_page(connection(path=path, headers=[HOST, *PAGE.items()]))
    for path in ("/nowhere", "/studios", "/New", "/tunes"):
        # People are told that nothing is there, and forms are not taken.
        assert not is_page(path)
        assert wants_page(connection(path=path, headers=[HOST, *PAGE.items()]))
    assert wants_page(connection(path="/", headers=[HOST, ("ACCEPT", "a/b, Text/HTML;q=0.1")]))
    twice = [HOST, ("Accept", "a/b"), ("Accept", "text/html")]
    assert wants_page(connection(path="/", headers=twice))


PAGES = (
    "/",
    "/new?like=st-0123456789ab",
    "/studies/st-0123456789ab",
    "/?query=a%20b&state=done",
    "/?query=http://evil.example",
    "/compare?ids=st-0,st-1#top",
    "/studies/st-0/settings?tp_size=2",
)
ELSEWHERE = (
    "", "new", "//evil.example", "///evil.example", "///new", "////studies/st-0",
    "/\\evil.example", "\\\\evil.example", "/\\/evil.example", "/new\\..\\..", "http:evil.example",
    "http://evil.example/", "https:/evil.example", "http:///evil.example", "//evil.example/new",
    "javascript:alert(1)", "data:text/html,x", " //evil.example", "/ /evil.example",
    "/\t/evil.example", "\t//evil.example", "/\n/evil.example", "/new\r\nSet-Cookie: a=b",
    "/new\x00", "/../new", "/./new", "/..//evil.example", "/new//evil.example",
    "/new/..//evil.example", "//[::1]/", "//[", "/é", "/\u2028/evil.example",
    "/\uff0f/evil.example", "@evil.example", "/sign-in", "/sign-in?next=/new", "/sign-out",
    "/tune", "/static/0/style.css", "/nowhere", "/new?" + "x" * 2000,
)  # fmt: skip


def test_pages_may_be_gone_on_to_and_all_else_leads_to_the_first():
    assert [local_path(path) for path in PAGES] == list(PAGES)
    assert {path: local_path(path) for path in ELSEWHERE} == dict.fromkeys(ELSEWHERE, "/")


@given(st.text(alphabet="/\\.:@?#%[]\t\n newhtp\u3002", max_size=12).map(lambda text: "/" + text))
def test_whatever_is_given_stays_here(path):
    """Browsers leave tabs and newlines out, and take a backslash for a slash."""
    found = local_path(path)
    seen = found.replace("\t", "").replace("\n", "").replace("\r", "").replace("\\", "/")
    assert seen.startswith("/")
    assert not seen.startswith("//")
    assert found.isascii()
    assert found.isprintable()
