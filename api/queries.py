"""Query parameters that there are not, and what is there twice: a misspelled one must not be left
out without a word, and which of two is meant must not be guessed."""

from fastapi import Request

from api.pages.paths import is_page
from api.problems import ProblemError

PROBED = frozenset({"/healthz", "/readyz"})
"""Routes for balancers, which may add something of their own."""


ONCE = ("content-type", "idempotency-key", "if-none-match", "last-event-id")
"""Headers that a request may have once. RFC 9110 lets ``If-None-Match`` come in parts; here its
entity tags belong into one header."""


async def single_headers(request: Request) -> None:
    """Refuse headers that are there twice, of those of which one would be read.

    Raises:
        ProblemError: 400.
    """
    for name in ONCE:
        if len(request.headers.getlist(name)) > 1:
            allowed = "may be there once"
            raise ProblemError(400, f"{name}: is there twice", field=name, allowed=allowed)


async def known_query(request: Request) -> None:
    """Refuse parameters that the document does not tell of, and those that are there twice.

    It does not tell of pages, which leave out what somebody's link has added.

    Raises:
        ProblemError: 422.
    """
    path = request.url.path
    if not request.query_params or path in PROBED or is_page(path):
        return
    known = _names(request)
    for name in request.query_params:
        if name not in known:
            allowed = f"there are {', '.join(known)}" if known else "there are none here"
            detail = f"{name[:80]}: no such query parameter; {allowed}"
            raise ProblemError(422, detail, field=name[:80], allowed=allowed)
        if len(request.query_params.getlist(name)) > 1:
            allowed = "may be there once"
            raise ProblemError(422, f"{name}: is there twice", field=name, allowed=allowed)


def _names(request: Request) -> list[str]:
    """Query parameters of the request's route."""
    paths = request.app.openapi()["paths"]
    operation = paths.get(request.scope["route"].path_format, {}).get(request.method.lower(), {})
    parameters = operation.get("parameters", ())
    return [parameter["name"] for parameter in parameters if parameter["in"] == "query"]
