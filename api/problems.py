"""Every error as an RFC 9457 problem: the only place where errors become HTTP statuses.

Nothing of the machine is told: no trace, no address of the database, no path.
"""

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from starlette.exceptions import HTTPException

from tuner.errors import (
    NothingFitsError,
    OtherTermsError,
    ProbeError,
    SpeedUnknownError,
    StoreError,
    TrainsWronglyError,
    TunerError,
    UnknownNameError,
    UnreadableStudyError,
    UsageError,
)

MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
"""Seconds after which to ask again while the database cannot be used."""

STATUS: Mapping[type[TunerError], int] = {
    UsageError: 422,
    NothingFitsError: 409,
    SpeedUnknownError: 409,
    TrainsWronglyError: 409,
    OtherTermsError: 409,
    ProbeError: 409,
    StoreError: 503,
}
"""HTTP status of each kind of error."""

TITLES: Mapping[int, str] = {
    413: "Content Too Large",
    414: "URI Too Long",
    422: "Unprocessable Content",
}
"""Names of RFC 9110 that older releases of Python do not have yet."""

ALLOWED: Mapping[str, str] = {
    "missing": "is required",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of 64 bits",
    "greater_than_equal": "must be at least {ge}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be below {lt}",
    "string_too_short": "must have {min_length} characters or more",
    "string_too_long": "must have {max_length} characters or fewer",
    "string_pattern_mismatch": "must match {pattern}",
    "enum": "must be {expected}",
}
"""What would have been accepted in a path, a query or a header, by the reader's kind of error."""

UNREADABLE = "There was an error parsing the body"
"""What the framework says of a body that Python's reader of JSON gives up at."""

MISTAKE = "the service made a mistake, and its log says which"

log = logging.getLogger("api")


class ProblemError(Exception):
    """An error that is told as it is."""

    def __init__(
        self, status: int, detail: str, headers: Mapping[str, str] | None = None, **members: Any
    ) -> None:
        """``members`` are further members of the problem, such as ``field``."""
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers, self.members = headers, members


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **members: Any
) -> JSONResponse:
    """A problem as a response; ``members`` are further members of it."""
    body = {"type": "about:blank", "title": title_of(status), "status": status}
    return JSONResponse(
        {**body, "detail": detail, **members},
        status_code=status,
        headers=dict(headers or {}),
        media_type=MEDIA_TYPE,
    )


def title_of(status: int) -> str:
    """What a status is called."""
    return TITLES.get(status) or HTTPStatus(status).phrase


def add_problems(app: FastAPI, headers: Mapping[str, str] | None = None) -> None:
    """Have every error of ``app`` answered as a problem.

    Args:
        app: the application.
        headers: of the answer to a mistake of ours, which no middleware sees.
    """

    async def mistake(request: Request, error: Exception) -> JSONResponse:
        # Starlette raises it again after this answer, and the server logs it.
        return problem(500, MISTAKE, headers)

    app.add_exception_handler(ProblemError, _told)
    app.add_exception_handler(TunerError, _tuner_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(Exception, mistake)


def problem_of(error: TunerError) -> JSONResponse:
    """One of the product's errors as a problem."""
    if isinstance(error, UnreadableStudyError):  # nor will it be readable when asked again
        log.error("%s", error)
        return problem(500, "this version cannot read the study, and its log says why")
    if isinstance(error, StoreError) or (isinstance(error, UsageError) and error.field == "db"):
        log.error("%s", error)  # it names the database
        retry = {"Retry-After": str(RETRY_S)}
        return problem(503, "the database cannot be used now", retry)
    if isinstance(error, OtherTermsError):
        return problem(409, str(error), study_id=error.study_id, terms=_apart(error))
    status = next((s for kind, s in STATUS.items() if isinstance(error, kind)), 500)
    if isinstance(error, TrainsWronglyError):
        return problem(status, str(error), reason="trains_wrongly")
    if not isinstance(error, UsageError):
        return problem(status, str(error))
    members: dict[str, Any] = {"field": error.field, "allowed": error.allowed}
    if isinstance(error, UnknownNameError):
        members["nearest"] = error.nearest
    return problem(status, str(error), **members)


def _apart(error: OtherTermsError) -> dict[str, Any]:
    return {name: {"study": there, "asked": ours} for name, (there, ours) in error.apart.items()}


async def _told(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ProblemError)
    return problem(error.status, error.detail, error.headers, **error.members)


async def _tuner_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, TunerError)
    return problem_of(error)


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return problem(404, "there is nothing at this path")
    if error.status_code == 405:
        allowed = ", ".join(_methods(request))
        return problem(405, f"this path takes {allowed}", {"Allow": allowed})
    if error.detail == UNREADABLE:
        return problem(400, "the body is JSON too deep, or with a number too long, to be read")
    return problem(error.status_code, str(error.detail), error.headers)


def _methods(request: Request) -> list[str]:
    """What the request's path takes, by all of its routes."""
    route = request.scope.get("route")
    template = getattr(route, "path_format", None)
    same = (one for one in iter_route_contexts(request.app.routes) if one.path_format == template)
    found = {method for one in same for method in one.methods or ()}
    return sorted(found | ({"HEAD"} if "GET" in found else set()))  # api.head_requests


async def _validation_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where, *path = (str(part) for part in first["loc"])
    field = where if where == "body" else ".".join(path) or where
    limits = first.get("ctx", {})
    if first["type"] == "json_invalid":
        return problem(400, f"the body is not JSON: {limits.get('error', '')}")
    known = ALLOWED.get(first["type"])
    allowed = first["msg"] if known is None else known.format_map(limits)
    return problem_of(UsageError(field, first.get("input"), allowed))
