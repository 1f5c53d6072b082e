"""What routes take: paths, queries, headers and bodies, read strictly, and what they share.

A misspelled parameter must not be left out without a word, and where something is there twice it
must not be guessed which was meant.
"""

import base64
import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from fastapi import Depends, Path, Request

from api.answers import Answers, Kept
from api.events import Poller
from api.pages.study import StudyPage, study_page
from api.problems import LONGEST_SHOWN, ProblemError, unknown_study
from api.schemas import STUDY_ID
from api.security import Turns, is_page
from api.settings import Settings
from api.submissions import Submissions
from tuner.errors import UsageError
from tuner.results.what_if import Predictor
from tuner.store import Store, StudyStatus, StudySummary
from tuner.text import DoubledNameError, read_json

# Pages that are kept, of some 300 kB each.
MOST_PAGES = 64
# Studies whose predictions are kept while somebody moves their knobs.
MOST_PREDICTORS = 8
PRINTABLE = r"^[ -~]*$"
# Routes for balancers, which may add something of their own.
PROBED = frozenset({"/healthz", "/readyz"})
# Headers that a request may have once. RFC 9110 lets ``If-None-Match`` come in parts; here its
# entity tags belong into one header.
ONCE = ("content-type", "idempotency-key", "if-none-match", "last-event-id")


async def single_headers(request: Request) -> None:
    """Refuses headers that are there twice, of those of which one would be read."""
    for name in ONCE:
        if len(request.headers.getlist(name)) > 1:
            allowed = "may be there once"
            raise ProblemError(400, f"{name}: is there twice", field=name, allowed=allowed)


async def known_query(request: Request) -> None:
    """Refuses parameters that the document does not tell of, and those that are there twice.

    It does not tell of pages, which leave out what somebody's link has added."""
    path = request.url.path
    if not request.query_params or path in PROBED or is_page(path):
        return
    operations = request.app.openapi()["paths"].get(request.scope["route"].path_format, {})
    parameters = operations.get(request.method.lower(), {}).get("parameters", ())
    known = [each["name"] for each in parameters if each["in"] == "query"]
    several = {
        each["name"]
        for each in parameters
        for schema in (each["schema"], *each["schema"].get("anyOf", ()))
        if schema.get("type") == "array"
    }
    for name in request.query_params:
        shown = name[:LONGEST_SHOWN]
        if name not in known:
            allowed = f"there are {', '.join(known)}" if known else "there are none here"
            detail = f"{shown}: no such query parameter; {allowed}"
            raise ProblemError(422, detail, field=shown, allowed=allowed)
        if name not in several and len(request.query_params.getlist(name)) > 1:
            allowed = "may be there once"
            raise ProblemError(422, f"{name}: is there twice", field=name, allowed=allowed)


async def _json_body(request: Request) -> Any:
    """The JSON value of a body, read strictly: of a name that is there twice none is taken."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/([\w.-]+\+)?json", media_type):
        raise ProblemError(415, "the body must be application/json")
    body = await request.body()
    if not body:
        raise UsageError("body", None, "is required")
    try:
        return read_json(body.decode(json.detect_encoding(body), "surrogatepass"))
    except DoubledNameError as error:
        # JSON can escape halves of characters, which no answer can hold.
        path = error.path[:LONGEST_SHOWN].encode("utf-8", "replace").decode()
        detail = f"{path}: is there twice in one object of the body"
        allowed = "may be there once in an object"
        raise ProblemError(422, detail, field=path, allowed=allowed) from error
    except json.JSONDecodeError as error:
        raise ProblemError(400, f"the body is not JSON: {error.msg}") from error
    except UnicodeDecodeError as error:
        raise ProblemError(400, "the body is not UTF-8") from error
    except RecursionError as error:
        raise ProblemError(400, "the body is JSON too deep to be read") from error
    except ValueError as error:
        raise ProblemError(400, f"the body cannot be read: {error}") from error


JsonBody = Annotated[Any, Depends(_json_body)]


def _study_id(
    study_id: Annotated[
        str, Path(description="Such as st-0123456789ab.", json_schema_extra={"pattern": STUDY_ID})
    ],
) -> str:
    # Not a pattern of the parameter: 422 would tell of a regular expression, and not of a study.
    if not re.fullmatch(STUDY_ID, study_id):
        raise unknown_study(study_id)
    return study_id


# The id of a study in a path.
StudyId = Annotated[str, Depends(_study_id)]


def cursor_of(summary: StudySummary) -> str:
    """The place after a study in a list of studies, as one opaque word."""
    text = json.dumps([summary.asked_at, summary.id])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> tuple[str, str]:
    """The moment and the id of :func:`cursor_of`."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        asked_at, study_id = json.loads(text)
        if datetime.fromisoformat(asked_at).tzinfo and re.fullmatch(STUDY_ID, study_id):
            return asked_at, study_id
    except (TypeError, ValueError, RecursionError):
        pass  # somebody made it up
    raise UsageError("cursor", cursor, "must be the next of a page")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The store, and what is made of it."""

    store: Store
    answers: Answers
    poller: Poller
    submissions: Submissions
    turns: Turns
    pages: Kept[StudyPage]
    predictors: Kept[Predictor]
    """Of the studies whose knobs were moved last."""

    @classmethod
    def of(cls, store: Store, settings: Settings) -> "Context":
        answers, poller = Answers(store), Poller(store, settings.poll_s)

        def page(status: StudyStatus) -> StudyPage:
            whole = answers.whole(status)
            return study_page(whole, store.moments(whole.study))

        return cls(
            store=store,
            answers=answers,
            poller=poller,
            submissions=Submissions(
                store,
                answers,
                settings.max_open_studies,
                most_each=settings.max_open_studies_per_key,
            ),
            turns=Turns(settings.threads),
            pages=Kept(page, answers.turn, most=MOST_PAGES),
            predictors=Kept(
                lambda status: Predictor(answers.whole(status).study),
                answers.turn,
                most=MOST_PREDICTORS,
            ),
        )


def _context(request: Request) -> Context:
    context: Context = request.app.state.context
    return context


# The application's context, as a parameter of a route.
InContext = Annotated[Context, Depends(_context)]
