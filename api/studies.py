"""``/tune``: ask a question, see studies, follow, export and cancel one."""

from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from typing import Annotated, Literal

import anyio
from fastapi import APIRouter, Depends, Header, Path, Query, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from api import EXAMPLES, schemas
from api.answers import Body, brief, with_told, without_name
from api.events import EventSent, Feed
from api.inputs import (
    PRINTABLE,
    Context,
    InContext,
    JsonBody,
    StudyId,
    cursor_of,
    read_cursor,
)
from api.openapi import EVENT_ITEM, answer, body_of, links, problems, text_answer
from api.problems import ProblemCode, ProblemError, unknown_study
from api.security import Caller, Reader, Submitter
from tuner.client.answered import exported
from tuner.client.from_file import TuneFromRequest
from tuner.client.request import TuneRequest
from tuner.core.measurement import Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import MOST_LABELS, Limits, StudyState, parse_labels
from tuner.errors import UnknownNameError
from tuner.explain.known import require_best
from tuner.launchfiles import FORMATS, why_not
from tuner.store import StudyStatus
from tuner.store.access import Action, AuditNote
from tuner.store.requests import LONGEST_KEY

LONGEST_WAIT_S = 60
LONGEST_QUERY = 100
LONGEST_CURSOR = 200
LARGEST_EVENT = 2**63 - 1
# An answer may be kept, if it is asked each time whether it still holds.
REVALIDATED = {"Cache-Control": "private, no-cache"}

ETags = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        max_length=1000,
        pattern=PRINTABLE,
        description="ETag of what is known already.",
    ),
]
WithinLimits = Annotated[
    str | None,
    Query(
        pattern=r"^[0-9a-f]{12}$",
        description="`terms_id` of an answer: 409 when the study has other limits.",
        examples=[EXAMPLES["terms_id"]],
    ),
]
View = Annotated[
    Literal["full", "brief"],
    Query(
        description="`brief`: state, settings, speed, memory, provenance and launch alone, in"
        " less than a kilobyte."
    ),
]
STUDY_HEADERS = {"ETag": "Of this answer."}

router = APIRouter(tags=["studies"])


@router.post(
    "/tune",
    openapi_extra=body_of(TuneRequest, TuneFromRequest),
    status_code=202,
    summary="Ask for the fastest settings that fit",
    responses={
        202: {
            **answer(
                schemas.Submitted,
                "The study that answers, with the best that is known now.",
                Location="The study's path.",
                **STUDY_HEADERS,
            ),
            "model": schemas.Submitted | schemas.SubmittedBrief,
            "links": links(
                "show_study", "show_probes", "stream_events", "export_study", "cancel_study"
            ),
        },
        **problems(409, 413, 415, 422),
    },
)
async def submit_question(
    context: InContext,
    caller: Submitter,
    body: JsonBody,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=LONGEST_KEY,
            pattern=PRINTABLE,
            description="A word of yours for this request: sent again within a day with the same"
            " body, it asks nothing new.",
        ),
    ] = None,
    view: View = "full",
) -> Response:
    """A question is asked once within the same limits: who asks again joins, or gets its answer.

    While its study is open with others it is refused (409), unless ``replace`` gives it these.
    Versions that are not stated are those of the living workers. ``suggestion`` is null
    until a worker has made the first dry runs, and ``pending`` true until one has a best. With
    ``from`` a configuration file says the rest, ``notes`` what of it is not counted, and
    ``left_out`` which values it could not be made to say.
    """
    submit = context.submissions.submit
    submission = partial(
        submit, body, owner=caller.owner, key=idempotency_key, address=caller.address
    )
    done = await context.turns.write(caller.owner, submission)
    content = brief(done.body.content) if view == "brief" else done.body.content
    told = {} if done.left_out is None else {"left_out": done.left_out}
    return Response(
        with_told(content, notes=done.notes, **told),
        202,
        {"Location": f"/tune/{done.body.status.id}", "ETag": done.body.etag, **REVALIDATED},
        "application/json",
    )


class ListedAnswer(BaseModel):
    """A study's answer in a list."""

    settings: schemas.SettingsAnswered | None
    provenance: Provenance
    tokens_per_s_per_gpu: schemas.Quantity
    step_time_s: schemas.Quantity
    needed_gib: schemas.Quantity
    limit_gib: float
    is_forecast: bool = Field(
        description="Predicted, while it was to be measured, emulated or rehearsed."
    )
    why_none: str


class ListedStudy(BaseModel):
    """A study in a list."""

    model_config = ConfigDict(from_attributes=True)

    study_id: str = Field(validation_alias="id")
    model: str = Field(validation_alias="model_name")
    cluster: str = Field(validation_alias="cluster_name")
    state: StudyState
    reason: str
    pool: str
    labels: dict[str, str]
    revision: int
    probes: dict[Outcome, int]
    created_at: str
    asked_at: str
    answer: ListedAnswer | None = Field(
        default=None, description="As it was when it was last computed; null of none, or none yet."
    )


class StudyList(BaseModel):
    """A page of studies, the one asked last first."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLES["studies"]]})

    studies: list[ListedStudy]
    next: str | None = Field(description="Give it as cursor for the next page; null on the last.")


@router.get(
    "/tune",
    summary="Studies, the one asked last first",
    response_description="A page of studies.",
    responses=problems(422),
)
def list_studies(
    context: InContext,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=200, description="Studies at most.")] = 50,
    cursor: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=LONGEST_CURSOR,
            pattern=PRINTABLE,
            description="``next`` of a page.",
        ),
    ] = None,
    state: Annotated[StudyState | None, Query(description="Only studies in this state.")] = None,
    query: Annotated[
        str,
        Query(
            max_length=LONGEST_QUERY,
            pattern=PRINTABLE,
            description="Only studies with this in their id, or in the name of their model or"
            " cluster.",
        ),
    ] = "",
    label: Annotated[
        list[str] | None,
        Query(
            max_length=MOST_LABELS,
            description="Only studies with this label, as `job=1234`, or `job` whatever its value;"
            " where it is there several times, with all of them.",
            examples=[["job=1234"]],
        ),
    ] = None,
) -> StudyList:
    """Pages do not shift when studies are asked meanwhile."""
    before = None if cursor is None else read_cursor(cursor)
    labels = parse_labels("label", label or ())
    found = context.store.studies(
        before=before, limit=limit + 1, state=state, query=query, labels=labels
    )
    page = found[:limit]
    answers = context.store.summaries([one.id for one in page])
    listed = [ListedStudy.model_validate(one) for one in page]
    for one in listed:
        if (kept := answers.get(one.study_id)) is not None:
            with suppress(ValidationError):  # another version's
                one.answer = ListedAnswer.model_validate(kept.content)
    return StudyList(
        studies=listed,
        next=cursor_of(page[-1]) if len(found) > limit else None,
    )


@router.get(
    "/tune/{study_id}",
    summary="A study: its question, where it stands, its suggestion",
    responses={
        200: {
            **answer(schemas.Study, "The study.", **STUDY_HEADERS),
            "model": schemas.Study | schemas.Brief,
        },
        304: {"description": "Nothing has changed."},
        **problems(404, 409, 422),
    },
)
async def show_study(
    context: InContext,
    caller: Reader,
    study_id: StudyId,
    wait: Annotated[
        int | None,
        Query(
            ge=1,
            le=LONGEST_WAIT_S,
            description="Seconds to wait until the study is at its end; with If-None-Match, until"
            " it has changed.",
        ),
    ] = None,
    terms: WithinLimits = None,
    view: View = "full",
    if_none_match: ETags = None,
) -> Response:
    """Waiting costs the service nothing: ask with ``wait=30`` again and again."""
    known = {tag for one in (if_none_match or "").split(",") if (tag := _tag(one))}
    if wait is None:
        found = await anyio.to_thread.run_sync(study_status, context, study_id)
        if kept := context.answers.fresh(found):
            body = kept
        else:
            body = await context.turns.run(caller.owner, context.answers.of, found)
    else:
        body = await _waited(context, caller, study_id, known, wait, terms)
    check_limits(study_id, body.limits, terms)
    headers = {"ETag": body.etag, **REVALIDATED}
    if _tag(body.etag) in known or "*" in known:
        return Response(None, 304, headers)
    content = brief(body.content) if view == "brief" else body.content
    return Response(content, 200, headers, "application/json")


@router.get(
    "/tune/{study_id}/probes",
    summary="A study's probes, oldest first",
    responses={200: answer(schemas.ProbeList, "The probes."), **problems(404, 422)},
)
async def show_probes(context: InContext, caller: Reader, study_id: StudyId) -> Response:
    """What was tried and measured, and what is queued or running."""
    status = await anyio.to_thread.run_sync(study_status, context, study_id)
    content = await context.turns.run(caller.owner, context.answers.probes, status)
    return Response(content, media_type="application/json")


@router.delete(
    "/tune/{study_id}",
    summary="Cancel a study",
    responses={
        200: answer(schemas.Study, "The study, cancelled.", **STUDY_HEADERS),
        **problems(404, 409, 422),
    },
)
async def cancel_study(context: InContext, caller: Submitter, study_id: StudyId) -> Response:
    """Its running probe ends within seconds; what was measured is kept."""

    def cancelled() -> Body:
        cancel(context, caller, study_id)
        return context.answers.of(study_status(context, study_id))

    body = await context.turns.write(caller.owner, cancelled)
    return Response(body.content, 200, {"ETag": body.etag, **REVALIDATED}, "application/json")


def cancel(context: Context, caller: Caller, study_id: str) -> None:
    """Cancels a study, and notes who did, both or neither."""
    note = AuditNote(actor=caller.id, action=Action.CANCEL, data={"address": caller.address})
    study_status(context, study_id)
    why = "cancelled through the service"
    if not context.store.move(study_id, StudyState.CANCELLED, why, note=note):
        state = study_status(context, study_id).state
        detail = f"study {study_id} is {state} already"
        raise ProblemError(409, detail, code=ProblemCode.STUDY_ENDED)


def check_limits(study_id: str, limits: Limits, wanted: str | None) -> None:
    """Refuses to answer within other limits than those asked for."""
    if wanted is not None and wanted != limits.id:
        detail = f"study {study_id} was given other limits meanwhile; ask the question again"
        apart = {name: {"study": value} for name, value in limits.as_dict().items()}
        code = ProblemCode.OTHER_LIMITS
        raise ProblemError(409, detail, code=code, study_id=study_id, terms=apart)


async def _waited(
    context: Context,
    caller: Caller,
    study_id: str,
    known: set[str],
    wait_s: float,
    terms: str | None,
) -> Body:
    """The study at its end or, if something is known of it, when it is another than that; or as
    soon as it has other limits."""

    async def now() -> Body:
        if body := context.answers.fresh(feed.status):
            return body
        async with context.turns.taken(caller.owner):
            return await context.answers.soon(feed.status)

    def is_over() -> bool:
        other = terms is not None and Limits.from_dict(feed.status.limits).id != terms
        return feed.is_over or other

    until = anyio.current_time() + wait_s
    async with context.poller.listen(study_id) as found:
        if found is None:
            raise unknown_study(study_id)
        feed = found
        if not known:
            await context.poller.wait(feed, is_over, wait_s)
            return await now()
        while True:
            changed = feed.changed
            body = await now()
            left_s = until - anyio.current_time()
            if _tag(body.etag) not in known or left_s <= 0 or context.poller.stopped:
                return body
            await context.poller.wait(feed, changed.is_set, left_s)


def study_status(context: Context, study_id: str) -> StudyStatus:
    """The state of a study and its newest event."""
    found = context.store.status(study_id)
    if found is None:
        raise unknown_study(study_id)
    return found


def _tag(text: str) -> str:
    return text.strip().removeprefix("W/")


# -- events -----------------------------------------------------------------------------------


async def listened(context: InContext, study_id: StudyId) -> AsyncIterator[Feed]:
    """A dependency: the study's feed, kept up while the request is answered."""
    async with context.poller.listen(study_id) as feed:
        if feed is None:
            raise unknown_study(study_id)
        yield feed


@router.get(
    "/tune/{study_id}/events",
    response_class=EventSourceResponse,
    summary="What happened to a study, and what happens, until its end",
    responses={
        200: {
            "description": "Server-sent events, until the study's end; their data is an Event.",
            "content": {
                "text/event-stream": {"itemSchema": EVENT_ITEM, "example": EXAMPLES["event_stream"]}
            },
        },
        **problems(404, 422),
    },
)
async def stream_events(
    context: InContext,
    caller: Reader,
    feed: Annotated[Feed, Depends(listened)],
    last_event_id: Annotated[
        int,
        Header(
            ge=0,
            le=LARGEST_EVENT,
            description="Id of the last event that is known: later ones come.",
        ),
    ] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """Every event once and in order; a comment every 15 seconds while nothing happens."""
    async for event in context.poller.events(feed, last_event_id):
        data = EventSent.model_validate(event)
        yield ServerSentEvent(id=str(event.id), event=str(event.kind), data=data)


# -- exports ----------------------------------------------------------------------------------


@router.get(
    "/tune/{study_id}/export/{format_name}",
    response_class=Response,
    summary="A study's answer as the file that a launcher reads",
    responses={200: text_answer(EXAMPLES["exported"], "The file."), **problems(404, 409, 422)},
)
async def export_study(
    context: InContext,
    caller: Reader,
    study_id: StudyId,
    format_name: Annotated[
        str,
        Path(
            max_length=40,
            pattern=r"^[a-z0-9_-]+$",
            description=f"The launcher's: {', '.join(FORMATS)}.",
            examples=list(FORMATS),
        ),
    ],
    terms: WithinLimits = None,
    path: Annotated[
        str,
        Query(
            max_length=4096,
            description="Where the file will be written, which its comments name; by default its"
            " usual name.",
            examples=["conf/accelerate.yaml"],
        ),
    ] = "",
) -> Response:
    """409 while there is no answer, or one that the launcher cannot run, with the reason."""
    if format_name not in FORMATS:
        error = UnknownNameError("format", format_name, FORMATS)
        code = ProblemCode.FORMAT_NOT_FOUND
        raise ProblemError(404, str(error), code=code, field="format", nearest=error.nearest)
    status = await anyio.to_thread.run_sync(study_status, context, study_id)

    def export() -> str:
        whole = context.answers.whole(status)
        study = whole.study
        check_limits(study.id, study.limits, terms)
        if whole.suggestion is None:
            detail = f"study {study.id} has no suggestion yet"
            raise ProblemError(409, detail, code=ProblemCode.NO_ANSWER)
        best = require_best(study, whole.suggestion)
        if reason := why_not(format_name, study.question, best.settings):
            detail = f"{format_name}: {reason}"
            raise ProblemError(409, detail, code=ProblemCode.NOT_EXPORTABLE, field="format")
        question = without_name(study.question)
        return exported(format_name, question, best, study.id, study.state, path)

    text = await context.turns.run(caller.owner, export)
    found = FORMATS[format_name]
    attachment = f'attachment; filename="{found.file_name}"'
    return Response(text, media_type=found.media_type, headers={"Content-Disposition": attachment})
