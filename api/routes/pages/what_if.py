"""``/studies/{id}/settings``: what any settings of a study would need and take."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from api.context import Context, InContext
from api.keys import Reader
from api.pages.drawings import OUTSIDE, memory_bar
from api.pages.render import render, render_part
from api.pages.what_if import Page, page_of
from api.problems import ProblemError
from api.routes.studies import StudyId
from api.study_cache import Kept
from tuner.results import Predictor
from tuner.store.standing import Standing
from tuner.suggestion import GIB

MOST_PREDICTORS = 8
"""Studies whose predictions are kept while somebody moves their knobs."""
LONGEST_VALUE = 1000
"""Characters of one value in the address."""

router = APIRouter(include_in_schema=False)


@router.get("/studies/{study_id}/settings", response_class=HTMLResponse)
async def what_if_page(
    request: Request, context: InContext, caller: Reader, study_id: StudyId
) -> Response:
    """The page; for a script that accepts JSON, the part of it that depends on the settings."""
    return await context.turns.run(caller.owner, _answer, request, context, study_id)


def _answer(request: Request, context: Context, study_id: str) -> Response:
    standing = context.standings.one(study_id)
    if standing is None:
        raise ProblemError(404, f"there is no study {study_id}")
    values = {name: value[:LONGEST_VALUE] for name, value in request.query_params.items()}
    predictor = _predictors(request, context).of(standing)
    suggestion = context.answers.whole(standing).suggestion
    page = page_of(predictor, suggestion, values)
    headers = {"Vary": "Accept"}
    if "application/json" in request.headers.get("accept", ""):
        return JSONResponse(_part(page), headers=headers)
    answer = render(request, "what_if.html", page=page, bar=_bar(page))
    answer.headers.update(headers)
    return answer


def _part(page: Page) -> dict[str, object]:
    return {
        "html": render_part("what_if_result.html", page=page, bar=_bar(page)),
        "path": page.path,
        "from": page.key,
        "said": page.in_short,
        "summary": page.summary,
        "controls": page.state,
    }


def _bar(page: Page) -> str:
    """The predicted memory against the limit; empty where it is unknown."""
    sizes = page.sizes_bytes
    if not sizes:
        return ""
    if page.found.outside_gib > 0:
        sizes[OUTSIDE] = page.found.outside_gib * GIB
    label = f"Predicted peak memory of one {page.per}"
    return memory_bar(sizes, label=label, study=page.study, prefix="what-if")


def _predictors(request: Request, context: Context) -> Kept[Predictor]:
    """The application's predictors, one for each of the studies that were asked for last."""
    state = request.app.state
    if not hasattr(state, "predictors"):

        def make(standing: Standing) -> Predictor:
            return Predictor(context.answers.whole(standing).study)

        state.predictors = Kept(make, context.answers.turn, most=MOST_PREDICTORS)
    kept: Kept[Predictor] = state.predictors
    return kept
