"""``/studies/{id}``: a study's page, as it changes, its probes, what if, and its end."""

import logging
from collections.abc import AsyncIterator
from typing import Annotated
from urllib.parse import urlencode

import anyio
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import RedirectResponse

from api.answers import Kept
from api.context import InContext
from api.events import Feed
from api.inputs import StudyId
from api.pages.evidence import evidence_of
from api.pages.people import forgetting_cookie, told_of
from api.pages.probe_table import ANY, FASTEST_FIRST
from api.pages.render import render, settings_path, utc_now
from api.pages.study import head_of
from api.pages.what_if import changes, page_of
from api.problems import ProblemError
from api.security import Reader, Submitter
from api.sessions import Formed, visit_of
from api.studies import LARGEST_EVENT, cancel, listened, standing_of
from tuner.errors import TunerError
from tuner.results import Predictor
from tuner.store.access import includes
from tuner.store.tables import Scope
from tuner.text import json_text

LONGEST_WORD = 64
# Characters of one value of a configuration in the address.
LONGEST_VALUE = 1000
# Seconds between two loads of a page that stands still otherwise: at least, and at most.
RELOADS_S = (5, 3600)
# Seconds between two changes that are sent to the same viewer, at least.
PAUSE_S = 1.0
# Studies whose predictions are kept while somebody moves their knobs.
MOST_PREDICTORS = 8

Sort = Annotated[str, Query(max_length=LONGEST_WORD)]
Outcome = Annotated[str, Query(max_length=LONGEST_WORD)]
ProbeId = Annotated[int, Path(ge=1, lt=2**63)]
EventId = Annotated[int, Query(ge=0, le=LARGEST_EVENT)]

log = logging.getLogger("api.pages")
router = APIRouter(include_in_schema=False)


@router.get("/studies/{study_id}")
async def show_page(
    request: Request,
    context: InContext,
    caller: Reader,
    study_id: StudyId,
    sort: Sort = FASTEST_FIRST,
    outcome: Outcome = ANY,
    refresh: Annotated[int | None, Query(ge=RELOADS_S[0], le=RELOADS_S[1])] = None,
    probe: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
) -> Response:
    """A study; its table of probes sorted, and of one outcome, if that was asked for.

    With ``?probe=7``, which its table and its scatter say for brevity, the evidence of a probe.
    """
    if probe is not None:
        return await show_probe(request, context, caller, study_id, probe)
    standing = await anyio.to_thread.run_sync(standing_of, context, study_id)
    page = await context.turns.run(caller.owner, context.pages.of, standing)
    told = told_of(request, study_id)
    query = urlencode({"sort": sort, "outcome": outcome, "after": page.newest_event})
    answer = render(
        request,
        "study.html",
        head=page.head,
        is_open=page.status.is_open,
        said=page.status.said,
        parts=page.sorted_parts(sort, outcome),
        live=f"/studies/{study_id}/live?{query}",
        refresh=refresh if page.status.is_open else None,
        may_submit=includes(caller.scope, Scope.SUBMIT),
        now=utc_now(),
        told=told,
    )
    if told:
        answer.headers.append("set-cookie", forgetting_cookie(secure=visit_of(request).secure))
    return answer


@router.get("/studies/{study_id}/live", response_class=EventSourceResponse)
async def stream_page(
    context: InContext,
    caller: Reader,
    feed: Annotated[Feed, Depends(listened)],
    sort: Sort = FASTEST_FIRST,
    outcome: Outcome = ANY,
    after: EventId = 0,
    last_event_id: Annotated[int, Header(ge=0, le=LARGEST_EVENT)] = 0,
) -> AsyncIterator[ServerSentEvent]:
    """The page's parts, whenever something has happened since ``after``, until the study's end."""
    known = max(after, last_event_id)
    while not context.poller.stopped:
        changed = feed.changed
        try:
            page = await context.pages.soon(feed.standing)
        except TunerError as error:
            log.warning("%s; viewers connect again", error)
            return
        if page.newest_event > known or not page.status.is_open:
            known = page.newest_event
            change = {
                "is_open": page.status.is_open,
                "said": page.status.said,
                "now": utc_now(),
                "parts": page.sorted_parts(sort, outcome),
            }
            yield ServerSentEvent(id=str(known), event="change", raw_data=json_text(change))
        if not page.status.is_open:
            return
        await context.poller.wait(feed, lambda: False, PAUSE_S)
        while changed is feed.changed and not context.poller.stopped:
            await changed.wait()


@router.get("/studies/{study_id}/probes/{probe_id}")
async def show_probe(
    request: Request, context: InContext, caller: Reader, study_id: StudyId, probe_id: ProbeId
) -> Response:
    """The evidence of one probe."""

    def shown() -> Response:
        study = context.answers.whole(standing_of(context, study_id)).study
        ids = [probe.id for probe in study.probes]
        if probe_id not in ids:
            raise ProblemError(404, f"study {study_id} has no probe {probe_id}")
        place = ids.index(probe_id)
        probe = study.probes[place]
        return render(
            request,
            "probe.html",
            head=head_of(study),
            probe=evidence_of(study, probe),
            before=ids[place - 1] if place else None,
            after=ids[place + 1] if place + 1 < len(ids) else None,
            what_if=settings_path(study_id, probe.request.settings),
        )

    return await context.turns.run(caller.owner, shown)


@router.get("/studies/{study_id}/settings", response_class=HTMLResponse)
async def what_if_page(
    request: Request, context: InContext, caller: Reader, study_id: StudyId
) -> Response:
    """The prediction of any configuration; for a script that accepts JSON, what depends on it."""
    state = request.app.state
    if not hasattr(state, "predictors"):
        # One for each of the studies whose knobs were moved last.
        state.predictors = Kept(
            lambda standing: Predictor(context.answers.whole(standing).study),
            context.answers.turn,
            most=MOST_PREDICTORS,
        )
    predictors: Kept[Predictor] = state.predictors

    def shown() -> Response:
        standing = standing_of(context, study_id)
        values = {name: value[:LONGEST_VALUE] for name, value in request.query_params.items()}
        suggestion = context.answers.whole(standing).suggestion
        page = page_of(predictors.of(standing), suggestion, values)
        headers = {"Vary": "Accept"}
        if "application/json" in request.headers.get("accept", ""):
            return JSONResponse(changes(page), headers=headers)
        answer = render(request, "what_if.html", page=page)
        answer.headers.update(headers)
        return answer

    return await context.turns.run(caller.owner, shown)


@router.post("/studies/{study_id}/cancel")
async def cancel_from_page(
    context: InContext, caller: Submitter, study_id: StudyId, form: Formed
) -> Response:
    """Ends a study, and shows it."""
    await anyio.to_thread.run_sync(cancel, context, caller, study_id)
    return RedirectResponse(f"/studies/{study_id}", 303)
