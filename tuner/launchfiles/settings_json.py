"""Everything as one JSON object, for programs of the user's own."""

import json
from collections.abc import Mapping
from typing import Any

from tuner.core.configuration import Settings
from tuner.core.study import Question
from tuner.launchfiles.contract import About, Format, Stack
from tuner.launchfiles.fields import Fields, Found, Reader
from tuner.model.shape import shown_question


def _render(question: Question, settings: Settings, about: About) -> str:
    values = {
        "written_by": "tuner",
        "study_id": about.study_id,
        "date": about.date,
        "provenance": str(about.provenance),
        "versions": dict(sorted(about.versions.items())),
        "figures": list(about.figures),
        "settings": settings.all_values(),
        **shown_question(question.as_dict()),
    }
    return json.dumps(values, indent=2) + "\n"


FORMAT = Format(
    name="json",
    file_name="tuned.json",
    stack=Stack.ANY,
    media_type="application/json",
    render=_render,
    for_programs=True,
)


NAME = "json"
# Fields that other files do not have.
MARKS = frozenset({"written_by"})


def read(values: Mapping[str, Any]) -> Found:
    """Reads the file, or raises ``UsageError`` for a field."""
    fields = Fields(values)
    fields.choice("written_by", {"tuner": True})
    fields.refuse("script", "is a study of a script of your own, which is not predicted")
    work, framework = fields.part("workload"), fields.part("framework")
    if "name" not in framework:
        raise framework.error("name", "must be there")
    may = {name: (value,) for name, value in work.values.items()}
    may |= {"framework": (framework.values["name"],), "cluster": (fields.part("cluster").values,)}
    may["framework_versions"] = (framework.part("versions").values,)
    knobs = Settings.from_dict(fields.part("settings").values).as_dict()
    return Found(format_name=NAME, knobs=knobs, may=may)


READER = Reader(name=NAME, marks=MARKS, read=read)
