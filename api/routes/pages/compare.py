"""``/compare``: two to four studies side by side."""

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from api.context import Context, InContext
from api.keys import Reader
from api.pages.compare import comparison_of, read_ids
from api.pages.listing import LONGEST_TEXT, ON_A_PAGE
from api.pages.render import render
from api.problems import ProblemError
from tuner.results.differences import LEAST_COMPARED

router = APIRouter(include_in_schema=False)


@router.get("/compare", response_class=HTMLResponse)
async def compare_page(request: Request, context: InContext, caller: Reader) -> Response:
    """The comparison; with fewer than two studies in the address, others to choose from."""
    return await context.turns.run(caller.owner, _answer, request, context)


def _answer(request: Request, context: Context) -> Response:
    ids = read_ids(request.query_params.getlist("ids"))
    standings = context.standings.of(ids)
    for study_id in ids:
        if study_id not in standings:
            raise ProblemError(404, f"there is no study {study_id}")
    if len(ids) < LEAST_COMPARED:
        return _choosing(request, context, ids)
    found = comparison_of([context.answers.whole(standings[study_id]) for study_id in ids])
    return render(request, "compare.html", found=found, choice=None, ids=ids, query="")


def _choosing(request: Request, context: Context, ids: list[str]) -> Response:
    query = request.query_params.get("query", "").strip()[:LONGEST_TEXT]
    page = context.store.page(limit=ON_A_PAGE, query=query)
    chosen = [one for study_id in ids for one in context.store.page(limit=1, query=study_id)]
    others = [one for one in page if one.id not in ids]
    choice = [*chosen, *others]
    return render(request, "compare.html", found=None, choice=choice, ids=ids, query=query)
