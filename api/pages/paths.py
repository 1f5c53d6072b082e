"""Which paths are pages for people, and where a page may send them."""

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

PAGES = frozenset({"", "compare", "new", "sign-in", "sign-out", "studies"})
"""First segments of the paths of pages, where a session's cookie is enough to send a form."""
FOR_TOOLS = frozenset(
    {"audit", "favicon.ico", "healthz", "metrics", "openapi.json", "readyz", "static", "tune"}
)
"""First segments of the paths where nobody is shown a page, whatever they accept."""
HOME = "/"
NEW = "/new"
SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"
LONGEST_NEXT = 2000
"""Characters of a path to go on to."""
_LOCAL = re.compile(r"/[!-\[\]-~]*")
"""A path of this service in printable ASCII: browsers take backslashes for slashes, and leave tabs
and newlines out."""


def is_page(path: str) -> bool:
    """Whether a path is a page's, or of something that only pages use."""
    return _first(path) in PAGES


def is_open(path: str) -> bool:
    """Whether a path is answered without a key, so that one can sign in."""
    return path in (SIGN_IN, SIGN_OUT, "/favicon.ico") or path.startswith("/static/")


def wants_page(scope: Scope) -> bool:
    """Whether an error is to be shown as a page: browsers say so, tools and our scripts do not."""
    accepts = ",".join(Headers(scope=scope).getlist("accept")).lower()
    return _first(scope["path"]) not in FOR_TOOLS and "text/html" in accepts


def local_path(given: str) -> str:
    """Where to go on to: what was given, if it is a page of this service; else its first."""
    if len(given) > LONGEST_NEXT or not _LOCAL.fullmatch(given):
        return HOME
    try:
        parts = urlsplit(given)
    except ValueError:
        return HOME
    # Of three slashes urlsplit leaves one in the path; browsers take what follows for a host.
    elsewhere = given.startswith("//") or "//" in parts.path or "/." in parts.path
    if elsewhere or not is_page(parts.path) or is_open(parts.path):
        return HOME
    return given


def _first(path: str) -> str:
    return path.lstrip("/").partition("/")[0]
