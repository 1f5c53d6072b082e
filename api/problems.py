"""Every error as an RFC 9457 problem: the only place where errors become HTTP statuses.

A problem's ``type`` and ``code`` are stable; its ``detail`` is for people. Nothing of the machine
is in it: no trace, no address of the database, no path.
"""

import logging
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from api import EXAMPLES
from tuner.client.values import NotCoveredError, errors_of
from tuner.errors import (
    NothingFitsError,
    OtherLimitsError,
    ProbeError,
    SpeedUnknownError,
    StoreError,
    TrainsWronglyError,
    TunerError,
    UnknownNameError,
    UnreadableStudyError,
    UsageError,
    all_of,
)

MEDIA_TYPE = "application/problem+json"
TYPE = "urn:tuner:problem:{code}"
# Seconds after which to ask again while the database cannot be used.
RETRY_S = 5
# Characters of a name that an error repeats.
LONGEST_SHOWN = 80
MISTAKE = "the service made a mistake, and its log says which"

# Python's own phrases are those of an older RFC until 3.13.
TITLES: Mapping[int, str] = {
    413: "Content Too Large",
    414: "URI Too Long",
    422: "Unprocessable Content",
}

log = logging.getLogger("api")


class ProblemCode(StrEnum):
    """The kinds of problems."""

    BAD_REQUEST = "bad_request"  # 400: no JSON, a header twice, a path that cannot be printed
    WRONG_HOST = "wrong_host"  # 400: the Host header names another service
    KEY_NEEDED = "key_needed"  # 401: no key was given
    KEY_REFUSED = "key_refused"  # 401: the key is unknown or revoked, or the session is over
    SCOPE_TOO_SMALL = "scope_too_small"  # 403: the key does not allow this
    OTHER_ORIGIN = "other_origin"  # 403: a page of another site sent it
    FORM_OUT_OF_DATE = "form_out_of_date"  # 403: a page's form without its token
    NOT_FOUND = "not_found"  # 404: there is nothing at this path
    STUDY_NOT_FOUND = "study_not_found"  # 404: there is no study of this id
    FORMAT_NOT_FOUND = "format_not_found"  # 404: no export has this name
    METHOD_NOT_ALLOWED = "method_not_allowed"  # 405: the path takes others, see Allow
    BODY_TOO_SLOW = "body_too_slow"  # 408: the body did not arrive in time
    OTHER_LIMITS = "other_limits"  # 409: the study is held to other limits than were asked for
    STUDY_ENDED = "study_ended"  # 409: there is nothing left to cancel
    NO_ANSWER = "no_answer"  # 409: there is nothing to export yet, or no probe could be run
    NOTHING_FITS = "nothing_fits"  # 409: no configuration fits in memory
    SPEED_UNKNOWN = "speed_unknown"  # 409: nothing says which configuration is the fastest
    TRAINS_WRONGLY = "trains_wrongly"  # 409: all that fits trains something else
    NOT_EXPORTABLE = "not_exportable"  # 409: the launcher cannot run the answer
    BODY_TOO_LARGE = "body_too_large"  # 413: of a body, or of a form's fields
    URI_TOO_LONG = "uri_too_long"  # 414: path and query together
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"  # 415: of a body, or its encoding
    INVALID_VALUE = "invalid_value"  # 422: see field and allowed
    TOO_MANY_REQUESTS = "too_many_requests"  # 429: of one key or address
    TOO_MANY_STUDIES = "too_many_studies"  # 429: as many are open as may be
    HEADERS_TOO_LARGE = "headers_too_large"  # 431: in number or in bytes
    INTERNAL_ERROR = "internal_error"  # 500: a mistake of the service's
    STUDY_UNREADABLE = "study_unreadable"  # 500: another version wrote the study
    UNAVAILABLE = "unavailable"  # 503: the database cannot be used now


# The code of a status where no closer one is named.
CODES: Mapping[int, ProblemCode] = {
    400: ProblemCode.BAD_REQUEST,
    401: ProblemCode.KEY_NEEDED,
    403: ProblemCode.SCOPE_TOO_SMALL,
    404: ProblemCode.NOT_FOUND,
    405: ProblemCode.METHOD_NOT_ALLOWED,
    408: ProblemCode.BODY_TOO_SLOW,
    409: ProblemCode.STUDY_ENDED,
    413: ProblemCode.BODY_TOO_LARGE,
    414: ProblemCode.URI_TOO_LONG,
    415: ProblemCode.UNSUPPORTED_MEDIA_TYPE,
    422: ProblemCode.INVALID_VALUE,
    429: ProblemCode.TOO_MANY_REQUESTS,
    431: ProblemCode.HEADERS_TOO_LARGE,
    500: ProblemCode.INTERNAL_ERROR,
    503: ProblemCode.UNAVAILABLE,
}

# Errors that say why there is no answer; any other that has no status of its own is a mistake.
NO_ANSWER = (NothingFitsError, SpeedUnknownError, TrainsWronglyError)


class FieldError(BaseModel):
    """A field that is wrong."""

    field: str = Field(description="Its path.")
    value: Any = Field(description="What was given.")
    allowed: str = Field(description="What would have been accepted.")


class Problem(BaseModel):
    """What went wrong, as RFC 9457 has it."""

    model_config = ConfigDict(extra="allow", json_schema_extra={"examples": [EXAMPLES["problem"]]})

    type: str = Field(description="`urn:tuner:problem:` and the code.")
    title: str
    status: int
    code: ProblemCode = Field(description="The kind of problem, for programs.")
    detail: str = Field(description="The problem in a sentence, for people.")
    field: str | None = Field(default=None, description="Path of the field that is wrong.")
    allowed: str | None = Field(default=None, description="What would have been accepted.")
    errors: list[FieldError] | None = Field(
        default=None, description="All fields that are wrong; the first is told above too."
    )
    study_id: str | None = Field(
        default=None, description="The study that has other limits than those asked for."
    )
    terms: dict[str, Any] | None = Field(
        default=None,
        description="Where these differ: by name, what the `study` has and what was `asked`.",
    )


class ProblemError(Exception):
    """A problem that is raised where it is found.

    ``code`` is a closer one than the status has; ``members`` are further members of the problem.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        headers: Mapping[str, str] | None = None,
        *,
        code: ProblemCode | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers
        self.code = code or CODES.get(status, ProblemCode.BAD_REQUEST)
        self.members = members

    def response(self) -> JSONResponse:
        found = Problem(
            type=TYPE.format(code=self.code),
            title=title_of(self.status),
            status=self.status,
            code=self.code,
            detail=self.detail,
            **self.members,
        )
        return JSONResponse(
            found.model_dump(mode="json", exclude_unset=True),
            status_code=self.status,
            headers=dict(self.headers or {}),
            media_type=MEDIA_TYPE,
        )


def problem(
    status: int, detail: str, headers: Mapping[str, str] | None = None, **more: Any
) -> JSONResponse:
    """A problem as an answer; arguments are those of :class:`ProblemError`."""
    return ProblemError(status, detail, headers, **more).response()


def title_of(status: int) -> str:
    return TITLES.get(status) or HTTPStatus(status).phrase


def unknown_study(study_id: str) -> ProblemError:
    detail = f"there is no study {study_id[:LONGEST_SHOWN]}"
    return ProblemError(404, detail, code=ProblemCode.STUDY_NOT_FOUND)


def problem_of(error: TunerError) -> JSONResponse:
    if isinstance(error, UnreadableStudyError):  # nor will it be readable when asked again
        log.error("%s", error)
        detail = "this version cannot read the study, and its log says why"
        return problem(500, detail, code=ProblemCode.STUDY_UNREADABLE)
    if isinstance(error, StoreError) or (isinstance(error, UsageError) and error.field == "db"):
        log.error("%s", error)  # not told: it names the database
        retry = {"Retry-After": str(RETRY_S)}
        return problem(503, "the database cannot be used now", retry)
    if isinstance(error, OtherLimitsError):
        apart = {
            name: {"study": there, "asked": ours} for name, (there, ours) in error.apart.items()
        }
        code = ProblemCode.OTHER_LIMITS
        return problem(409, str(error), code=code, study_id=error.study_id, terms=apart)
    if isinstance(error, UsageError) and error.field == "study":  # deleted at this moment
        return unknown_study(str(error.given)).response()
    members: dict[str, Any]
    if isinstance(error, UsageError):
        first = error.errors[0]
        members = {"field": first.field, "allowed": first.allowed}
        members["errors"] = [FieldError(**one.as_dict()) for one in error.errors]
        if isinstance(first, UnknownNameError | NotCoveredError) and first.nearest is not None:
            members["nearest"] = first.nearest
        others = len(error.errors) - 1
        detail = f"{first}; and {others} more, see errors" if others else str(first)
        return problem(422, detail, **members)
    if isinstance(error, ProbeError):
        return problem(409, str(error), code=ProblemCode.NO_ANSWER)
    if isinstance(error, NO_ANSWER):
        code, members = ProblemCode(error.kind), {}
        if isinstance(error, TrainsWronglyError):
            members["reason"] = error.kind
        return problem(409, str(error), code=code, **members)
    return problem(500, str(error))


def add_problems(app: FastAPI, headers: Mapping[str, str] | None = None) -> None:
    """Has every error of ``app`` answered as a problem; ``headers`` are of the answer to a mistake
    of ours, which no middleware sees."""

    @app.exception_handler(ProblemError)
    async def raised(request: Request, error: ProblemError) -> JSONResponse:
        return error.response()

    @app.exception_handler(TunerError)
    async def told(request: Request, error: TunerError) -> JSONResponse:
        return problem_of(error)

    @app.exception_handler(RequestValidationError)
    async def refused(request: Request, error: RequestValidationError) -> JSONResponse:
        # Of a parameter's path the first part says where it is: in path, query or a header.
        lines = ({**line, "loc": line["loc"][1:] or line["loc"]} for line in error.errors())
        return problem_of(all_of(errors_of(lines)))

    @app.exception_handler(Exception)
    async def mistake(request: Request, error: Exception) -> JSONResponse:
        # Starlette raises it again after this answer, and the server logs it.
        return problem(500, MISTAKE, headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 404:
            return problem(404, "there is nothing at this path")
        if error.status_code == 405:
            # Methods that the request's path takes, by all of its routes.
            template = getattr(request.scope.get("route"), "path_format", None)
            routes = iter_route_contexts(request.app.routes)
            same = (one for one in routes if one.path_format == template)
            found = {method for one in same for method in one.methods or ()}
            if "GET" in found:
                found.add("HEAD")  # see api.app.Heads
            allowed = ", ".join(sorted(found))
            return problem(405, f"this path takes {allowed}", {"Allow": allowed})
        if error.status_code == 400:
            # FastAPI says it of a body that Python's reader gives up at with no JSONDecodeError.
            return problem(400, "the body is JSON too deep, or with a number too long, to be read")
        return problem(error.status_code, str(error.detail), error.headers)
