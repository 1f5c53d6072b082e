"""How a script is launched with the settings of an answer: the user's own command, filled in."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from tuner.script.command import command_of
from tuner.script.script import Script
from tuner.settings import Settings

if TYPE_CHECKING:
    from tuner.study import Question


def script_launch(
    question: "Question",
    settings: Settings,
    configuration: str,
    files: Mapping[str, str],
) -> dict[str, Any]:
    """``argv`` and ``files`` of a suggestion.

    Args:
        question: one with a script.
        settings: the answer's.
        configuration: path of accelerate's file, where that is what the launcher reads.
        files: text by path, beside that of the rendered template.
    """
    script = question.script
    assert script is not None
    name = tuned_name(script)
    command = command_of(question, settings, template=name, configuration=configuration)
    own = {name: command.template} if name else {}
    return {"argv": list(command.typed), "files": {**files, **own}}


def reads_configuration(script: Script) -> bool:
    """Whether the script's launcher is given accelerate's configuration file."""
    return script.launch == "accelerate"


def tuned_name(script: Script | None) -> str:
    """The name of a script's template with an answer filled in, which is never the template's own;
    empty where it has none."""
    if script is None or script.template is None:
        return ""
    path = PurePath(script.template.name)
    return f"{path.stem}.tuned{path.suffix}"
