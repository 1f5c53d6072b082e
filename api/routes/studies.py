"""``/tune``: ask a question, see studies, cancel one."""

from functools import partial
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, Path, Query, Response
from sqlalchemy.orm import Session

from api import examples, schemas
from api.answers import Body
from api.bodies import unique_names
from api.context import Context, InContext
from api.cursors import cursor_of, read_cursor
from api.documented import answer, links, problems
from api.keys import Caller, Reader, Submitter
from api.problems import ProblemError
from api.questions import TuneRequest
from api.schemas import STUDY_ID
from tuner.json_text import json_text
from tuner.store import StudySummary
from tuner.store.audit import Action, add_audit
from tuner.store.requests import LONGEST_KEY
from tuner.store.standing import Standing
from tuner.study import StudyState, Terms

PRINTABLE = r"^[ -~]*$"
LONGEST_WAIT_S = 60
LONGEST_QUERY = 100
LONGEST_CURSOR = 200
REVALIDATED = {"Cache-Control": "private, no-cache"}
"""An answer may be kept, if it is asked each time whether it still holds."""

StudyId = Annotated[str, Path(pattern=STUDY_ID, description="Such as st-0123456789ab.")]
ETags = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        max_length=1000,
        pattern=PRINTABLE,
        description="ETag of what is known already.",
    ),
]
OfTerms = Annotated[
    str | None,
    Query(
        pattern=r"^[0-9a-f]{12}$",
        description="`terms_id` of an answer: 409 when the study is on other terms.",
        examples=[examples.TERMS_ID],
    ),
]
STUDY_HEADERS = {"ETag": "Of this answer."}

router = APIRouter(tags=["studies"])


@router.post(
    "/tune",
    dependencies=[Depends(unique_names)],
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
    body: TuneRequest,
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
) -> Response:
    """The same question on the same terms is asked once: who asks again joins, or gets its answer.

    While its study is open on other terms it is refused (409), unless ``replace`` puts it on these.
    Versions that are not stated are those of the living workers. Where nothing is known yet,
    ``suggestion`` is null and ``pending`` is true until a worker has made the first dry runs.
    """
    given: object = body  # as it came in
    if isinstance(given, bytes):  # what FastAPI hands on where the media type is not JSON
        raise ProblemError(415, "the body must be application/json")

    submit = context.submissions.submit
    asking = partial(submit, given, owner=caller.owner, key=idempotency_key, address=caller.address)
    done = await context.turns.run(caller.owner, asking)
    return Response(
        done.body.with_notes(done.notes),
        202,
        {"Location": f"/tune/{done.body.standing.id}", "ETag": done.body.etag, **REVALIDATED},
        "application/json",
    )


@router.get(
    "/tune",
    summary="Studies, the one asked last first",
    responses={200: answer(schemas.StudyList, "A page of studies."), **problems(422)},
)
def list_studies(
    context: InContext,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=200, description="Studies at most.")] = 50,
    cursor: Annotated[
        str | None,
        Query(max_length=LONGEST_CURSOR, pattern=PRINTABLE, description="``next`` of a page."),
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
) -> Response:
    """Pages do not shift when studies are asked meanwhile."""
    before = None if cursor is None else read_cursor(cursor)
    found = context.store.page(before=before, limit=limit + 1, state=state, query=query)
    page = found[:limit]
    following = cursor_of(page[-1]) if len(found) > limit else None
    return _json({"studies": [_summary(one) for one in page], "next": following})


@router.get(
    "/tune/{study_id}",
    summary="A study: its question, where it stands, its suggestion",
    responses={
        200: answer(schemas.Study, "The study.", **STUDY_HEADERS),
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
    terms: OfTerms = None,
    if_none_match: ETags = None,
) -> Response:
    """Waiting costs the service nothing: ask with ``wait=30`` again and again."""
    known = _tags(if_none_match)
    if wait is None:
        standing = await anyio.to_thread.run_sync(context.standings.one, study_id)
        found = _required(standing, study_id)
        if kept := context.answers.fresh(found):
            body = kept
        else:
            body = await context.turns.run(caller.owner, context.answers.of, found)
    else:
        body = await _waited(context, caller, study_id, known, wait, terms)
    check_terms(study_id, body.terms, terms)
    headers = {"ETag": body.etag, **REVALIDATED}
    if body.etag in known or "*" in known:
        return Response(None, 304, headers)
    return Response(body.content, 200, headers, "application/json")


@router.get(
    "/tune/{study_id}/probes",
    summary="A study's probes, oldest first",
    responses={200: answer(schemas.ProbeList, "The probes."), **problems(404, 422)},
)
async def show_probes(context: InContext, caller: Reader, study_id: StudyId) -> Response:
    """What was tried and measured, and what is queued or running."""
    standing = _required(await anyio.to_thread.run_sync(context.standings.one, study_id), study_id)
    content = await context.turns.run(caller.owner, context.answers.probes, standing)
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
        return context.answers.of(_required(context.standings.one(study_id), study_id))

    body = await context.turns.run(caller.owner, cancelled)
    return Response(body.content, 200, {"ETag": body.etag, **REVALIDATED}, "application/json")


def cancel(context: Context, caller: Caller, study_id: str) -> None:
    """Cancel a study, and note who did, both or neither.

    Raises:
        ProblemError: 404 when there is none of this id, 409 when it has ended.
    """

    def note(session: Session) -> None:
        add_audit(session, caller.id, Action.CANCEL, study_id, address=caller.address)

    _required(context.standings.one(study_id), study_id)
    why = "cancelled through the service"
    if not context.store.move(study_id, StudyState.CANCELLED, why, also=note):
        state = _required(context.standings.one(study_id), study_id).state
        raise ProblemError(409, f"study {study_id} is {state} already")


def check_terms(study_id: str, terms: Terms, wanted: str | None) -> None:
    """Refuse to answer on other terms than were asked for.

    Raises:
        ProblemError: 409.
    """
    if wanted is not None and wanted != terms.id:
        detail = f"study {study_id} was put on other terms meanwhile; ask the question again"
        apart = {name: {"study": value} for name, value in terms.as_dict().items()}
        raise ProblemError(409, detail, study_id=study_id, terms=apart)


async def _waited(
    context: Context,
    caller: Caller,
    study_id: str,
    known: set[str],
    wait_s: float,
    terms: str | None,
) -> Body:
    """The study at its end or, if something is known of it, when it is another than that; or as
    soon as it is on other terms."""
    until = anyio.current_time() + wait_s
    async with context.poller.listen(study_id) as feed:
        if feed is None:
            raise _unknown(study_id)
        if not known:
            await context.poller.wait(
                feed, lambda: feed.is_over or not _is_on(feed.standing, terms), wait_s
            )
            return await _soon(context, caller, feed.standing)
        while True:
            changed = feed.changed
            body = await _soon(context, caller, feed.standing)
            left_s = until - anyio.current_time()
            if body.etag not in known or left_s <= 0 or context.poller.stopped:
                return body
            await context.poller.wait(feed, changed.is_set, left_s)


async def _soon(context: Context, caller: Caller, standing: Standing) -> Body:
    """As :meth:`api.answers.Answers.soon`, in a turn of the caller's if it is to be computed."""
    if body := context.answers.fresh(standing):
        return body
    async with context.turns.taken(caller.owner):
        return await context.answers.soon(standing)


def _is_on(standing: Standing, terms: str | None) -> bool:
    return terms is None or Terms.from_dict(standing.terms).id == terms


def _required(standing: Standing | None, study_id: str) -> Standing:
    if standing is None:
        raise _unknown(study_id)
    return standing


def _unknown(study_id: str) -> ProblemError:
    return ProblemError(404, f"there is no study {study_id}")


def _tags(header: str | None) -> set[str]:
    """The entity tags of an ``If-None-Match``; weak ones count like strong ones."""
    tags = (tag.strip().removeprefix("W/") for tag in (header or "").split(","))
    return {tag for tag in tags if tag}


def _summary(summary: StudySummary) -> dict[str, Any]:
    return {
        "study_id": summary.id,
        "model": summary.model_name,
        "cluster": summary.cluster_name,
        "state": str(summary.state),
        "reason": summary.reason,
        "pool": summary.pool,
        "revision": summary.revision,
        "probes": {str(outcome): count for outcome, count in summary.probes.items()},
        "created_at": summary.created_at,
        "asked_at": summary.asked_at,
    }


def _json(value: dict[str, Any]) -> Response:
    return Response(json_text(value), media_type="application/json")
