"""Pages for people, by their paths; the OpenAPI document does not tell of them."""

import logging
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from math import inf
from typing import Annotated, Any
from urllib.parse import urlencode

import anyio
from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, StreamingResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent

from api.events import Feed
from api.inputs import Context, InContext, StudyId
from api.pages.evidence import evidence_of
from api.pages.form import (
    TypedForm,
    Wrong,
    all_wrong,
    form_of,
    initial_texts,
    place_of,
    read_form,
    texts_of,
    texts_of_study,
)
from api.pages.listing import (
    LONGEST_TEXT,
    NAME,
    ON_A_PAGE,
    STARTS,
    Wanted,
    comparison_of,
    csv_of,
    label_texts,
    list_studies,
    read_ids,
)
from api.pages.people import forgetting_cookie, told_cookie, told_of
from api.pages.probe_table import ANY, FASTEST_FIRST
from api.pages.render import render, settings_path, utc_now
from api.pages.study import head_of
from api.pages.what_if import changes, page_of
from api.problems import ProblemError
from api.schemas import STUDY_ID
from api.security import HOME, SIGN_IN, SIGN_OUT, Admin, Reader, Submitter, local_path, note_refused
from api.sessions import SESSION, VISIT, Formed, Visit, cookie, formed, visit_of
from api.studies import LARGEST_EVENT, cancel, listened, study_status
from tuner.core.measurement import Fidelity
from tuner.core.study import StudyState, parse_labels
from tuner.core.words import number_text, rank_word, rough_duration_text
from tuner.errors import OtherLimitsError, TunerError, UsageError
from tuner.results.summary import LEAST_COMPARED
from tuner.space import enumerate_space
from tuner.store import why_kept
from tuner.store.access import IDLE, LASTS, Action, AuditNote, Keys, Sessions, includes
from tuner.store.figures import usual_probe_s
from tuner.store.tables import Scope
from tuner.text import count_text, json_text

# Problems that are told above the form, which keeps what was typed.
TOLD = frozenset({409, 422, 429})
# The field that gives an open study the limits of the form.
REPLACE = "replace"
# The button that asks how much there is to try, and nothing else.
CHECK = "check"

LONGEST_WORD = 64
# Characters of one value of a configuration in the address.
LONGEST_VALUE = 1000
# Seconds between two loads of a page that stands still otherwise: at least, and at most.
RELOADS_S = (5, 3600)
# Seconds between two changes that are sent to the same viewer, at least.
PAUSE_S = 1.0
# Seconds after which the page of a queued study is looked at again: workers come and go without an
# event.
WAITING_S = 15.0

Sort = Annotated[str, Query(max_length=LONGEST_WORD)]
Outcome = Annotated[str, Query(max_length=LONGEST_WORD)]
# Of a dry run `d1`, as it is written, or -1, as JSON has it.
NUMBER = r"^[d-]?[1-9]\d{0,17}$"
ProbeNumber = Annotated[str, Path(pattern=NUMBER)]
EventId = Annotated[int, Query(ge=0, le=LARGEST_EVENT)]
NOT_KNOWN = "This key is not known, or was revoked."
NOTHING = "Paste a key: tuner_ and what follows it."
# Characters of what is looked at as a key; they have 67.
LONGEST_KEY = 200

log = logging.getLogger("api.pages")
router = APIRouter(include_in_schema=False)

# -- lists and the form ------------------------------------------------------------------------


@router.get("/", response_class=HTMLResponse)
def studies_page(request: Request, context: InContext, caller: Reader) -> Response:
    """The list; what is wanted of it is in the address."""
    wanted = Wanted.of(request.query_params)
    if request.query_params.get("csv") == "true":
        headers = {"Content-Disposition": 'attachment; filename="studies.csv"'}
        return StreamingResponse(csv_of(context.store, wanted), 200, headers, "text/csv")
    listing = list_studies(context.store, context.answers, wanted)
    return render(
        request,
        "studies.html",
        listing=listing,
        states=tuple(StudyState),
        starts=STARTS,
        may_submit=includes(caller.scope, Scope.SUBMIT),
    )


@router.get("/compare", response_class=HTMLResponse)
async def compare_page(request: Request, context: InContext, caller: Reader) -> Response:
    """Two to four studies side by side; with fewer in the address, others to choose from."""
    return await context.turns.run(caller.owner, _compared, request, context)


def _compared(request: Request, context: Context) -> Response:
    ids = read_ids(request.query_params.getlist("ids"))
    statuses = context.store.statuses(ids)
    for study_id in ids:
        if study_id not in statuses:
            raise ProblemError(404, f"there is no study {study_id}")
    if len(ids) >= LEAST_COMPARED:
        found = comparison_of([context.answers.whole(statuses[study_id]) for study_id in ids])
        return render(request, "compare.html", found=found, choice=None, ids=ids, query="")
    query = request.query_params.get("query", "").strip()[:LONGEST_TEXT]
    page = context.store.studies(limit=ON_A_PAGE, query=query)
    chosen = [one for study_id in ids for one in context.store.studies(limit=1, query=study_id)]
    choice = [*chosen, *(one for one in page if one.id not in ids)]
    return render(request, "compare.html", found=None, choice=choice, ids=ids, query=query)


@router.get("/new", response_class=HTMLResponse)
def new_page(
    request: Request,
    context: InContext,
    caller: Submitter,
    like: Annotated[str | None, Query(pattern=STUDY_ID)] = None,
) -> Response:
    """The form: empty, with what the address says, or ``like`` a study."""
    texts = texts_of(request.query_params.multi_items())
    if like is not None:
        if context.store.status(like) is None:
            raise ProblemError(404, f"there is no study {like}")
        texts = {**texts_of_study(context.store.study(like)), **texts}
    elif texts:
        texts = {**initial_texts(), **texts}
    form = form_of(texts or None)
    return render(request, "new.html", form=form, like=like, open_study=None, sized="")


@router.post("/new", response_class=HTMLResponse)
async def ask(request: Request, context: InContext, caller: Submitter, form: Formed) -> Response:
    """Starts a study, or joins the one that asks the same; what is wrong comes back as typed."""
    asked = read_form(texts_of(form.multi_items()))
    if wrong := await anyio.to_thread.run_sync(all_wrong, asked):
        return _again(request, asked, wrong)
    request_body = {name: value for name, value in asked.request.items() if value is not None}
    if form.get(REPLACE) == "true":
        request_body[REPLACE] = True
    if form.get(CHECK) == "true":
        try:
            sized = await context.turns.run(caller.owner, _sized, context, request_body)
        except UsageError as error:
            return _again(request, asked, (place_of(asked, error),))
        return _again(request, asked, (), 200, sized=sized)
    submit = partial(
        context.submissions.submit,
        request_body,
        owner=caller.owner,
        key=None,
        address=caller.address,
    )
    try:
        submitted = await context.turns.write(caller.owner, submit)
    except UsageError as error:
        return _again(request, asked, (place_of(asked, error),))
    except OtherLimitsError as error:
        wrong = (Wrong(name="", said=f"{error.in_short}."),)
        return _again(request, asked, wrong, 409, error.study_id)
    except ProblemError as error:
        if error.status not in TOLD:
            raise
        answer = _again(request, asked, (Wrong(name="", said=error.detail),), error.status)
        answer.headers.update(error.headers or {})
        return answer
    study_id = submitted.body.status.id
    answer = RedirectResponse(f"/studies/{study_id}", 303)
    secure = visit_of(request).secure
    if (told := told_cookie(study_id, submitted.notes, secure=secure)) is not None:
        answer.headers.append("set-cookie", told)
    return answer


def _sized(context: Context, body: dict[str, Any]) -> str:
    """How much there is to try for a question, and about how long that takes."""
    placed = context.submissions.placed(body)
    question, limits = placed.question, placed.limits
    world, workload = question.cluster.world_size, question.workload
    legal = len(enumerate_space(question).legal)
    is_dry = limits.fidelity is Fidelity.PREDICTED
    most = limits.max_probes + ((limits.max_dry_runs or 0) if is_dry else 0)
    each_s = usual_probe_s(context.store.transactions, limits.fidelity)
    if each_s is None:
        time = "how long one takes is not known here yet"
    else:
        at_most_s = min(most * each_s, limits.wall_s or inf)
        time = f"about {rough_duration_text(at_most_s)} ({rough_duration_text(each_s)} each here)"
    return ", ".join((
        count_text(world, "GPU" if rank_word(question) == "GPU" else "CPU rank"),
        f"{workload.sequence_length * workload.global_batch_size:,} tokens in each optimizer step,"
        f" {count_text(legal, 'legal configuration')}",
        f"up to {count_text(most, 'dry run' if is_dry else 'probe')}, {time}.",
    ))  # fmt: skip


def _again(
    request: Request,
    asked: TypedForm,
    wrong: tuple[Wrong, ...],
    status: int = 422,
    open_study: str | None = None,
    sized: str = "",
) -> Response:
    """The form as it was typed, with what is wrong, or how much there is to try."""
    form = form_of(asked.texts, wrong)
    values = {"form": form, "like": None, "open_study": open_study, "sized": sized}
    return render(request, "new.html", status=status, **values)


# -- a study -----------------------------------------------------------------------------------


@router.get("/studies/{study_id}")
async def show_page(
    request: Request,
    context: InContext,
    caller: Reader,
    study_id: StudyId,
    sort: Sort = FASTEST_FIRST,
    outcome: Outcome = ANY,
    refresh: Annotated[int | None, Query(ge=RELOADS_S[0], le=RELOADS_S[1])] = None,
    probe: Annotated[str | None, Query(pattern=NUMBER)] = None,
) -> Response:
    """A study; its table of probes sorted, and of one outcome, if that was asked for.

    With ``?probe=7``, which its table and its scatter say for brevity, the evidence of a probe.
    """
    if probe is not None:
        return await show_probe(request, context, caller, study_id, probe)
    status = await anyio.to_thread.run_sync(study_status, context, study_id)
    page = await context.turns.run(caller.owner, context.pages.of, status)
    told = told_of(request, study_id)
    query = urlencode({"sort": sort, "outcome": outcome, "after": page.newest_event})
    answer = render(
        request,
        "study.html",
        head=page.head,
        is_open=page.status.is_open,
        said=page.status.said,
        body=page.sorted_by(sort, outcome),
        named=page.labels.get(NAME, ""),
        labels=label_texts(page.labels),
        notes=await anyio.to_thread.run_sync(context.store.notes, study_id),
        may_delete=includes(caller.scope, Scope.ADMIN),
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
    """The page's body, whenever something has happened since ``after``, until the study's end."""
    known, said = max(after, last_event_id), ""
    while not context.poller.stopped:
        changed = feed.changed
        try:
            page = await context.pages.soon(feed.status)
        except TunerError as error:
            log.warning("%s; viewers connect again", error)
            return
        # What it waits for changes without an event.
        is_other = said not in ("", page.status.said)
        said = page.status.said
        if page.newest_event > known or is_other or not page.status.is_open:
            known = page.newest_event
            change = {
                "is_open": page.status.is_open,
                "said": page.status.said,
                "now": utc_now(),
                "body": page.sorted_by(sort, outcome),
            }
            yield ServerSentEvent(id=str(known), event="change", raw_data=json_text(change))
        if not page.status.is_open:
            return
        await context.poller.wait(feed, lambda: False, PAUSE_S)
        waits_s = WAITING_S if page.status.state is StudyState.QUEUED else None
        await context.poller.wait(feed, changed.is_set, waits_s)


@router.get("/studies/{study_id}/probes/{number}")
async def show_probe(
    request: Request, context: InContext, caller: Reader, study_id: StudyId, number: ProbeNumber
) -> Response:

    def shown() -> Response:
        study = context.answers.whole(study_status(context, study_id)).study
        ids = [probe.id for probe in study.probes]
        numbers, wanted = [number_text(one) for one in ids], number.replace("-", "d")
        if wanted not in numbers:
            raise ProblemError(404, f"study {study_id} has no probe #{wanted}")
        place = numbers.index(wanted)
        probe = study.probes[place]
        return render(
            request,
            "probe.html",
            head=head_of(study),
            probe=evidence_of(study, probe, context.store.wasted(study_id).get(probe.id, ())),
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

    def shown() -> Response:
        status = study_status(context, study_id)
        values = {name: value[:LONGEST_VALUE] for name, value in request.query_params.items()}
        suggestion = context.answers.whole(status).suggestion
        page = page_of(context.predictors.of(status), suggestion, values)
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
    await context.turns.write(caller.owner, cancel, context, caller, study_id)
    return RedirectResponse(f"/studies/{study_id}", 303)


@router.post("/studies/{study_id}/labels")
async def label_from_page(
    context: InContext, caller: Submitter, study_id: StudyId, form: Formed
) -> Response:
    """Writes a study's name, labels and notes."""
    texts = [line for line in form.get("labels", "").splitlines() if line.strip()]
    given = {name: text or "" for name, text in parse_labels("labels", texts).items()}
    if name := " ".join(form.get("name", "").split()):
        given[NAME] = name
    note = AuditNote(actor=caller.id, action=Action.LABEL, data={"address": caller.address})
    notes = form.get("notes", "").strip().replace("\r\n", "\n")

    def label() -> None:
        study_status(context, study_id)
        before = context.store.study(study_id).labels
        changes = {**dict.fromkeys(before), **given}
        context.store.label(study_id, changes, note, notes=notes)

    await anyio.to_thread.run_sync(label)
    return RedirectResponse(f"/studies/{study_id}", 303)


@router.post("/studies/{study_id}/delete")
async def delete_from_page(
    context: InContext, caller: Admin, study_id: StudyId, form: Formed
) -> Response:
    """Deletes a study that is at its end, and notes who did."""
    note = AuditNote(actor=caller.id, action=Action.DELETE, data={"address": caller.address})
    study_status(context, study_id)
    if not await anyio.to_thread.run_sync(context.store.delete, study_id, note):
        raise ProblemError(409, why_kept(study_id, study_status(context, study_id).state))
    return RedirectResponse(HOME, 303)


# -- sessions ----------------------------------------------------------------------------------


def sign_in_router(keys: Keys) -> APIRouter:
    sessions = Sessions(keys.transactions)
    router = APIRouter(include_in_schema=False)

    @router.get(SIGN_IN)
    def show_sign_in(
        request: Request, onward: Annotated[str, Query(alias="next")] = HOME
    ) -> Response:
        """The form, for whoever has not signed in and needs to."""
        if request.state.caller is not None:
            return RedirectResponse(local_path(onward), 303)
        return _form(request, local_path(onward))

    @router.post(SIGN_IN)
    async def sign_in(request: Request, context: InContext, form: Formed) -> Response:
        """A new session, whatever the browser had before; or the form again, and why."""
        text, onward = form.get("key", "").strip(), local_path(form.get("next", HOME))
        key = await anyio.to_thread.run_sync(keys.check, text[:LONGEST_KEY])
        if key is None:
            note_refused(text, request.state.address)
            return _form(request, onward, error=NOT_KNOWN if text else NOTHING)
        visit = visit_of(request)
        address, before = request.state.address, visit.session
        begin = partial(sessions.begin, key.id, address=address, instead_of=before)
        token = await context.turns.write(key.id, begin)
        answer = RedirectResponse(onward, 303)
        _forget(answer, visit, VISIT)
        age_s = int(LASTS.total_seconds())
        session = cookie(SESSION, token, secure=visit.secure, max_age_s=age_s)
        answer.headers.append("set-cookie", session)
        return answer

    @router.post(SIGN_OUT)
    async def sign_out(request: Request, context: InContext) -> Response:
        """The session ends. Where there was none, that is so already."""
        visit = visit_of(request)
        token = visit.session if visit.by_session else None
        if token is not None:
            await formed(request)
            end = partial(sessions.end, token, address=request.state.address)
            await context.turns.write(request.state.caller.owner, end)
        answer = RedirectResponse(SIGN_IN, 303)
        _forget(answer, visit, SESSION, VISIT)
        return answer

    return router


def _form(request: Request, onward: str, error: str = "") -> Response:
    lasts = {"days": LASTS.days, "hours": IDLE // timedelta(hours=1)}
    status = 401 if error else 200
    page = render(request, "sign_in.html", status, onward=onward, error=error, **lasts)
    if error:
        page.headers["WWW-Authenticate"] = 'Bearer realm="tuner"'
    return page


def _forget(answer: Response, visit: Visit, *names: str) -> None:
    for name in names:
        answer.headers.append("set-cookie", cookie(name, "", secure=visit.secure, max_age_s=0))
