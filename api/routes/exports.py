"""``/tune/{id}/export/{format}``: a study's answer as a launcher's file."""

from typing import Annotated

import anyio
from fastapi import APIRouter, Path, Response

from api import examples
from api.answers import Answers
from api.context import InContext
from api.documented import problems, text_answers
from api.keys import Reader
from api.problems import ProblemError
from api.routes.studies import OfTerms, StudyId, check_terms
from tuner.answering.known import require_best
from tuner.answering.launch import exported
from tuner.errors import UnknownNameError
from tuner.export import FORMATS, why_not
from tuner.store.standing import Standing

router = APIRouter(tags=["studies"])


@router.get(
    "/tune/{study_id}/export/{format_name}",
    response_class=Response,
    summary="A study's answer as the file that a launcher reads",
    responses={
        200: text_answers(examples.EXPORTED, "The file."),
        **problems(404, 409, 422),
    },
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
    terms: OfTerms = None,
) -> Response:
    """409 while there is no answer, or one that the launcher cannot run, with the reason."""
    if format_name not in FORMATS:
        error = UnknownNameError("format", format_name, FORMATS)
        raise ProblemError(404, str(error), field="format", nearest=error.nearest)
    standing = await anyio.to_thread.run_sync(context.standings.one, study_id)
    if standing is None:
        raise ProblemError(404, f"there is no study {study_id}")
    text = await context.turns.run(
        caller.owner, _text, context.answers, standing, format_name, terms
    )
    found = FORMATS[format_name]
    named = f'attachment; filename="{found.file_name}"'
    return Response(text, media_type=found.media_type, headers={"Content-Disposition": named})


def _text(answers: Answers, standing: Standing, format_name: str, terms: str | None) -> str:
    whole = answers.whole(standing)
    study = whole.study
    check_terms(study.id, study.terms, terms)
    if whole.suggestion is None:
        raise ProblemError(409, f"study {study.id} has no suggestion yet")
    best = require_best(study, whole.suggestion)
    if reason := why_not(format_name, study.question, best.settings):
        raise ProblemError(409, f"{format_name}: {reason}", field="format")
    return exported(format_name, study.question, best, study.id)
