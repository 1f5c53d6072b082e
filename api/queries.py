"""Query parameters that there are not: a misspelled one must not be left out without a word."""

from fastapi import Request

from api.problems import ProblemError

PROBED = frozenset({"/healthz", "/readyz"})
"""Routes for balancers, which may add something of their own."""


async def known_query(request: Request) -> None:
    """Refuse parameters that the document does not tell of.

    Raises:
        ProblemError: 422.
    """
    if not request.query_params or request.url.path in PROBED:
        return
    known = _names(request)
    for name in request.query_params:
        if name not in known:
            allowed = f"there are {', '.join(known)}" if known else "there are none here"
            detail = f"{name[:80]}: no such query parameter; {allowed}"
            raise ProblemError(422, detail, field=name[:80], allowed=allowed)


def _names(request: Request) -> list[str]:
    """Query parameters of the request's route."""
    paths = request.app.openapi()["paths"]
    operation = paths.get(request.scope["route"].path_format, {}).get(request.method.lower(), {})
    parameters = operation.get("parameters", ())
    return [parameter["name"] for parameter in parameters if parameter["in"] == "query"]
