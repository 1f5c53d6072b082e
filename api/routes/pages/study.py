"""``/studies/{id}``: a study's page, its parts as they change, its probes, and its end."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.responses import RedirectResponse

from api.context import Context, InContext
from api.keys import Caller, Reader, Submitter
from api.pages.drawings import settings_path
from api.pages.evidence import evidence_of
from api.pages.live import Change
from api.pages.probe_table import ANY, FASTEST_FIRST
from api.pages.read import forgetting_cookie, told_of
from api.pages.render import render, render_part, utc_now
from api.pages.study import Shown, TableView, head_of
from api.poller import Feed
from api.problems import ProblemError
from api.routes.events import listened
from api.routes.studies import StudyId, cancel
from api.sessions import Formed, visit_of
from tuner.json_text import json_text
from tuner.store.keys import includes
from tuner.store.records import Scope
from tuner.store.standing import Standing

LONGEST_WORD = 64
VERSION = r"^[0-9a-f]{0,16}$"
RELOADS_S = (5, 3600)
"""Seconds between two loads of a page that stands still otherwise: at least, and at most."""

router = APIRouter(include_in_schema=False)


@router.get("/studies/{study_id}")
async def show_page(
    request: Request,
    context: InContext,
    caller: Reader,
    study_id: StudyId,
    sort: Annotated[str, Query(max_length=LONGEST_WORD)] = FASTEST_FIRST,
    outcome: Annotated[str, Query(max_length=LONGEST_WORD)] = ANY,
    refresh: Annotated[int | None, Query(ge=RELOADS_S[0], le=RELOADS_S[1])] = None,
    probe: Annotated[int | None, Query(ge=1, lt=2**63)] = None,
) -> Response:
    """A study; its table of probes sorted, and of one outcome, if that was asked for.

    With ``?probe=7``, which its table and its scatter say for brevity, the evidence of a probe.
    """
    if probe is not None:
        return await show_probe(request, context, caller, study_id, probe)
    shown = await _shown(context, caller, study_id)
    values: dict[str, Any] = {
        "head": shown.head,
        "is_open": shown.is_open,
        "said": shown.said,
        "version": shown.version,
        "parts": _parts(shown, sort, outcome),
        "refresh": refresh if shown.is_open else None,
        "may_submit": includes(caller.scope, Scope.SUBMIT),
        "now": utc_now(),
        "told": told_of(request, study_id),
    }
    page = render(request, "study.html", **values)
    if values["told"]:
        page.headers.append("set-cookie", forgetting_cookie(secure=visit_of(request).secure))
    return page


@router.get("/studies/{study_id}/parts")
async def show_parts(context: InContext, caller: Reader, study_id: StudyId) -> Response:
    """All parts of the page, for whoever cannot listen to events."""
    shown = await _shown(context, caller, study_id)
    change = Change(shown=shown, parts=shown.parts)
    return Response(json_text(change.as_dict()), media_type="application/json")


@router.get("/studies/{study_id}/live", response_class=EventSourceResponse)
async def stream_changes(
    context: InContext,
    caller: Reader,
    feed: Annotated[Feed, Depends(listened)],
    known: Annotated[str, Query(pattern=VERSION)] = "",
    last_event_id: Annotated[str, Header(pattern=VERSION)] = "",
) -> AsyncIterator[ServerSentEvent]:
    """The parts of the page that change, whenever something happens, until the study's end."""
    async for change in context.live.changes(feed, last_event_id or known):
        data = json_text(change.as_dict())
        yield ServerSentEvent(id=change.shown.version, event="change", raw_data=data)


@router.get("/studies/{study_id}/probes/{probe_id}")
async def show_probe(
    request: Request,
    context: InContext,
    caller: Reader,
    study_id: StudyId,
    probe_id: Annotated[int, Path(ge=1, lt=2**63)],
) -> Response:
    """The evidence of one probe."""
    return await context.turns.run(caller.owner, _probe_page, request, context, study_id, probe_id)


def _probe_page(request: Request, context: Context, study_id: str, probe_id: int) -> Response:
    study = context.answers.whole(_required(context.standings.one(study_id), study_id)).study
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


@router.post("/studies/{study_id}/cancel")
async def cancel_from_page(
    context: InContext, caller: Submitter, study_id: StudyId, form: Formed
) -> Response:
    """Ends a study, and shows it."""
    await anyio.to_thread.run_sync(cancel, context, caller, study_id)
    return RedirectResponse(f"/studies/{study_id}", 303)


async def _shown(context: Context, caller: Caller, study_id: str) -> Shown:
    standing = await anyio.to_thread.run_sync(context.standings.one, study_id)
    found = _required(standing, study_id)
    return await context.turns.run(caller.owner, context.pages.of, found)


def _parts(shown: Shown, sort: str, outcome: str) -> dict[str, Any]:
    if (sort, outcome) == (FASTEST_FIRST, ANY):
        return dict(shown.parts)
    view = TableView(table=shown.table.chosen(sort, outcome))
    return {**shown.parts, "probes": render_part("study/probes.html", view=view)}


def _required(standing: Standing | None, study_id: str) -> Standing:
    if standing is None:
        raise ProblemError(404, f"there is no study {study_id}")
    return standing
