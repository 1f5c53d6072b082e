"""How an answer is launched: the launcher's files, and the command that reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from tuner.core.answer import Candidate, Suggestion
from tuner.core.framework import FrameworkName
from tuner.core.script import Launch
from tuner.core.study import Question
from tuner.core.words import memory_range_text, rank_word, speed_range_text
from tuner.launchfiles import FORMATS, About, export, why_not
from tuner.launchfiles.contract import torchrun
from tuner.script.launching import CONFIGURATION, script_launch

# Formats of each framework's own files; the first that can express the answer is shown with it.
_OF_FRAMEWORK: Mapping[FrameworkName, tuple[str, ...]] = {
    FrameworkName.TORCH: (),  # a script of the user's own
    FrameworkName.ACCELERATE: ("accelerate",),
    FrameworkName.TRAINER: ("trainer", "accelerate"),
    FrameworkName.NANOTRON: ("nanotron",),
}


def with_launch(
    suggestion: Suggestion, question: Question, wanted: Sequence[tuple[str, str]] = ()
) -> Suggestion:
    """The suggestion with the launcher's files, and the command that reads them."""
    best = suggestion.best
    if best is None:
        return suggestion
    named = list(wanted)
    script = question.script
    is_accelerates = script is not None and script.launch is Launch.ACCELERATE
    if is_accelerates and "accelerate" not in dict(named):
        named.insert(0, ("accelerate", CONFIGURATION))
    elif script is None and not named:
        own = _OF_FRAMEWORK[question.framework.name]
        names = [name for name in own if why_not(name, question, best.settings) is None]
        named = [(name, FORMATS[name].file_name) for name in names[:1]]
    files = {path: exported(name, question, best, suggestion.study_id) for name, path in named}
    if script is not None:  # its command, with the settings filled in
        path = dict(named).get("accelerate", CONFIGURATION)
        return replace(suggestion, launch=script_launch(question, best.settings, path, files))
    formats = {path: name for name, path in named}
    return replace(suggestion, launch=launch_of(question, files, formats))


def launch_of(
    question: Question, files: Mapping[str, str], formats: Mapping[str, str]
) -> dict[str, object]:
    """The command that reads the first of ``files`` that can be started, and these."""
    started = ((path, FORMATS[formats[path]].argv) for path in files)
    commands = (argv(question, path) for path, argv in started if argv is not None)
    return {"argv": list(next(commands, torchrun(question, "SCRIPT.py"))), "files": dict(files)}


def exported(format_name: str, question: Question, best: Candidate, study_id: str) -> str:
    """The text of a launcher's file for ``best``.

    Raises:
        UsageError: there is no such format, or it cannot express the settings.
    """
    per = rank_word(question)
    about = About(
        study_id=study_id,
        date=datetime.now(UTC).date().isoformat(),
        provenance=best.provenance,
        versions=best.guard.versions,
        figures=(speed_range_text(best, per), memory_range_text(best, per)),
    )
    return export(format_name, question, best.settings, about)
