"""Everything as one JSON object, for programs of the user's own."""

import json

from tuner.core.configuration import Settings
from tuner.core.study import Question
from tuner.launchfiles.contract import About, Format, Stack
from tuner.model.shape import shown_question


def _why_not(question: Question, settings: Settings) -> str | None:
    return None


def _render(question: Question, settings: Settings, about: About) -> str:
    values = {
        "written_by": "tuner",
        "study_id": about.study_id,
        "date": about.date,
        "provenance": str(about.provenance),
        "versions": dict(sorted(about.versions.items())),
        "figures": list(about.figures),
        "settings": settings.as_dict(),
        **shown_question(question.as_dict()),
    }
    return json.dumps(values, indent=2) + "\n"


FORMAT = Format(
    name="json",
    file_name="tuned.json",
    stack=Stack.ANY,
    media_type="application/json",
    why_not=_why_not,
    render=_render,
    for_programs=True,
)
