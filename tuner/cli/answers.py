"""What is shown of a study at its beginning, and shown and written at its end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tuner.answering import is_forecast, why_none
from tuner.cli.console import stdout_console
from tuner.cli.errors import print_json, report
from tuner.cli.render import show_answer, show_end, show_evidence
from tuner.cli.targets import Target, write_text
from tuner.cli.units import count_text, moment_text
from tuner.cli.words import question_text
from tuner.errors import TunerError
from tuner.launch import with_launch
from tuner.measurement import Fidelity
from tuner.planner import answer
from tuner.planner.other_fidelity import ran_text
from tuner.study import ProbeState, Study, StudyState
from tuner.suggestion import Suggestion


def standing_text(study: Study, *, answered: bool) -> str:
    """Which study this is, and what of it is there already."""
    fidelity = study.terms.fidelity
    done = sum(p.state is ProbeState.DONE for p in study.at(fidelity).probes)
    what = f"study {study.id}: {question_text(study.question)}"
    since = f"{count_text(done, 'probe')} since {moment_text(study.created_at)} UTC"
    if answered:
        stored = f"{what}\nanswered from what is stored, {since}: {study.reason}"
        when = "" if fidelity is Fidelity.PREDICTED else ran_text(study.at(fidelity))
        return f"{stored}\n{fidelity} {when}" if when else stored
    lines = [what, *([f"continues from {since}"] if done else [])]
    if study.state is StudyState.RUNNING:
        lines.append("another command is at it, and this one joins in: its terms hold")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A study with its answer, wherever that was found."""

    study: Study
    """The study."""
    suggestion: Suggestion
    """The answer."""
    as_json: Mapping[str, Any]
    """The same as plain values."""
    why_none: TunerError | None
    """Why it is none; ``None`` where it is one."""
    has_targets: bool
    """Whether the files that it is launched with are to be written."""


def finish(study: Study, targets: Sequence[Target], *, as_json: bool) -> int:
    """Answer a study from what is stored, show it, and write its files; the exit code.

    Where the answer was to be measured or emulated, and is predicted, nothing is written.

    Raises:
        TunerError: a file cannot be written after all.
    """
    wanted = [(target.format_name, str(target.path)) for target in targets]
    suggestion = with_launch(answer(study), study.question, wanted)
    is_answered = suggestion.best is not None and not is_forecast(study, suggestion)
    answered = Answered(
        study=study,
        suggestion=suggestion,
        as_json=suggestion.as_dict(),
        why_none=None if is_answered else why_none(study, suggestion, shown=True),
        has_targets=bool(targets),
    )
    return show_answered(answered, as_json=as_json)


def show_answered(answered: Answered, *, as_json: bool) -> int:
    """Show an answer, and write its files; the exit code.

    Raises:
        TunerError: a file cannot be written after all.
    """
    suggestion, why = answered.suggestion, answered.why_none
    files = suggestion.launch["files"] if answered.has_targets and why is None else {}
    if as_json:
        print_json(answered.as_json)
        _write(files)
    else:
        console = stdout_console()
        show_evidence(console, answered.study, suggestion)
        show_answer(console, answered.study, suggestion)
        _write(files)
        show_end(console, suggestion, tuple(files))
    return 0 if why is None else report(why, as_json=False)


def _write(files: Mapping[str, str]) -> None:
    for path, text in files.items():
        write_text(Path(path), text)
