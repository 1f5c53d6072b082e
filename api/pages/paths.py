"""The paths of pages for people, and those to which a page may send them."""

import re
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

# First segments of the paths of pages, where a session's cookie is enough to send a form.
PAGES = frozenset({"", "compare", "new", "sign-in", "sign-out", "studies"})
# First segments of the paths where nobody is shown a page, whatever they accept.
FOR_TOOLS = frozenset(
    {
        *("audit", "favicon.ico", "healthz", "metrics", "openapi.json", "readyz", "static", "tune"),
        *("size", "predict", "check", "models", "gpus", "formats", "workers"),
    }
)
HOME = "/"
NEW = "/new"
SIGN_IN = "/sign-in"
SIGN_OUT = "/sign-out"
# Characters of a path to go on to.
LONGEST_NEXT = 2000
# A path of this service in printable ASCII: browsers take backslashes for slashes, and leave tabs
# and newlines out.
_LOCAL = re.compile(r"/[!-\[\]-~]*")


def is_page(path: str) -> bool:
    """True of the path of a page, or of something that only pages use."""
    return _first(path) in PAGES


def is_open(path: str) -> bool:
    """True of a path that is answered without a key, so that one can sign in."""
    return path in (SIGN_IN, SIGN_OUT, "/favicon.ico") or path.startswith("/static/")


def wants_page(scope: Scope) -> bool:
    """True where an error is shown as a page: browsers say so, tools and our scripts do not."""
    accepts = ",".join(Headers(scope=scope).getlist("accept")).lower()
    return _first(scope["path"]) not in FOR_TOOLS and "text/html" in accepts


def local_path(given: str) -> str:
    """The path to go on to: the given one, if it is a page of this service; else its first."""
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
