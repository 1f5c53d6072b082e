"""Environment variables for shells, from which a script may read its settings."""

from tuner.export.contract import About, Format, Stack
from tuner.export.header import comments, header, printable, provenance
from tuner.export.shell import MEDIA_TYPE, exports
from tuner.export.variables import PREFIX, variables
from tuner.settings import Settings
from tuner.study import Question

FILE_NAME = "tuned.env"


def _why_not(question: Question, settings: Settings) -> str | None:
    return None


def _render(question: Question, settings: Settings, about: About) -> str:
    use = comments(
        f"For POSIX shells (. ./{FILE_NAME}). The settings are in force only if the training"
        " script reads them."
    )
    origin = {
        "study_id": about.study_id,
        "date": about.date,
        "provenance": str(about.provenance),
        "model": question.workload.model.name,
        "cluster": question.cluster.name,
    }
    told = {f"{PREFIX}{name.upper()}": printable(value) for name, value in origin.items()}
    lines = exports({**variables(question, settings), **told})
    return "\n".join([header(provenance(question, settings, about), use), *lines, ""])


FORMAT = Format(
    name="env",
    file_name=FILE_NAME,
    stack=Stack.ANY,
    media_type=MEDIA_TYPE,
    why_not=_why_not,
    render=_render,
    for_programs=True,
)
