"""``/``, ``/compare`` and ``/new``: lists of studies, and the form that starts one."""

from typing import Annotated

import anyio
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from api.context import Context, InContext
from api.pages.compare import comparison_of, read_ids
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
from api.pages.listing import LONGEST_TEXT, ON_A_PAGE, STARTS, Wanted, list_studies
from api.pages.people import told_cookie
from api.pages.render import render
from api.problems import ProblemError
from api.schemas import STUDY_ID
from api.security import Caller, Reader, Submitter
from api.sessions import Formed, visit_of
from api.submissions import Submitted
from tuner.core.study import StudyState
from tuner.errors import OtherTermsError, UsageError
from tuner.results.differences import LEAST_COMPARED
from tuner.store.access import includes
from tuner.store.tables import Scope

# Problems that are told above the form, which keeps what was typed.
TOLD = frozenset({409, 422, 429})
# The field that puts an open study on the terms of the form.
REPLACE = "replace"

router = APIRouter(include_in_schema=False)


@router.get("/", response_class=HTMLResponse)
def studies_page(request: Request, context: InContext, caller: Reader) -> Response:
    """The list; what is wanted of it is in the address."""
    wanted = Wanted.of(request.query_params)
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
    standings = context.store.statuses(ids)
    for study_id in ids:
        if study_id not in standings:
            raise ProblemError(404, f"there is no study {study_id}")
    if len(ids) >= LEAST_COMPARED:
        found = comparison_of([context.answers.whole(standings[study_id]) for study_id in ids])
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
    return render(request, "new.html", form=form_of(texts or None), like=like, open_study=None)


@router.post("/new", response_class=HTMLResponse)
async def ask(request: Request, context: InContext, caller: Submitter, form: Formed) -> Response:
    """Starts a study, or joins the one that asks the same; what is wrong comes back as typed."""
    asked = read_form(texts_of(form.multi_items()))
    if wrong := await anyio.to_thread.run_sync(all_wrong, asked):
        return _again(request, asked, wrong)
    replace = form.get(REPLACE) == "true"
    try:
        submitted = await context.turns.run(
            caller.owner, _submitted, context, caller, asked, replace
        )
    except UsageError as error:
        return _again(request, asked, (place_of(asked, error),))
    except OtherTermsError as error:
        wrong = (Wrong(name="", said=f"{error.in_short}."),)
        return _again(request, asked, wrong, 409, error.study_id)
    except ProblemError as error:
        if error.status not in TOLD:
            raise
        answer = _again(request, asked, (Wrong(name="", said=error.detail),), error.status)
        answer.headers.update(error.headers or {})
        return answer
    return _to_study(request, submitted)


def _again(
    request: Request,
    asked: TypedForm,
    wrong: tuple[Wrong, ...],
    status: int = 422,
    open_study: str | None = None,
) -> Response:
    """The form as it was typed, with what is wrong beside its fields."""
    values = {"form": form_of(asked.texts, wrong), "like": None, "open_study": open_study}
    return render(request, "new.html", status=status, **values)


def _submitted(context: Context, caller: Caller, asked: TypedForm, replace: bool) -> Submitted:
    request = {name: value for name, value in asked.request.items() if value is not None}
    if replace:
        request[REPLACE] = True
    submit = context.submissions.submit
    return submit(request, owner=caller.owner, key=None, address=caller.address)


def _to_study(request: Request, submitted: Submitted) -> Response:
    study_id = submitted.body.standing.id
    answer = RedirectResponse(f"/studies/{study_id}", 303)
    secure = visit_of(request).secure
    if (told := told_cookie(study_id, submitted.notes, secure=secure)) is not None:
        answer.headers.append("set-cookie", told)
    return answer
