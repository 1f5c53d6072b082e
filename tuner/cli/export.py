"""``tuner export``: a study's answer as a launcher's file."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from tuner.answering.known import require_best
from tuner.answering.launch import exported, with_launch
from tuner.asking.targets import check_replaceable, read_into, read_path, write_text
from tuner.cli.errors import print_json
from tuner.errors import UnknownNameError, UsageError
from tuner.export import FORMATS
from tuner.planner import answer
from tuner.script.launching import tuned_name
from tuner.store import open_store
from tuner.study import Study
from tuner.suggestion import Suggestion

TEMPLATE = "template"
"""In the place of a format: the template of a user's script, with the answer filled in."""


def run(
    study_id: str,
    format_name: str,
    path_text: str | None,
    *,
    into_text: str | None = None,
    as_json: bool,
    db: str | None,
) -> int:
    """Print the file, or write it; the exit code.

    Args:
        study_id: which study.
        format_name: which launcher's.
        path_text: file to write; ``None`` for stdout.
        into_text: file of the user's own that the answer is merged into; only ``path_text`` is
            written.
        as_json: print one JSON object.
        db: the database.

    Raises:
        UsageError: there is no such study or format, the format cannot express the answer, or the
            path cannot be written.
        NothingFitsError: the study found that nothing fits.
        TrainsWronglyError: it found that all that fits trains something else.
        ProbeError: the study has no answer.
    """
    path = None if path_text is None else read_path("write", path_text)
    if format_name == TEMPLATE:
        return _export_template(study_id, path, into_text, as_json=as_json, db=db)
    if format_name not in FORMATS:
        raise UnknownNameError("format", format_name, (*FORMATS, TEMPLATE))
    into = None if into_text is None else read_into(into_text, format_name)
    if path is not None and into is None:
        check_replaceable("write", format_name, path)
    with open_store(db, create=False) as store:
        study = store.study(study_id)
    best = require_best(study, answer(study))
    text = exported(format_name, study.question, best, study.id)
    found = FORMATS[format_name]
    if into is not None and found.merge is not None:
        text = found.merge(text, into)
    if path is not None:
        write_text(path, text)
    beside = found.beside(study.question, best.settings)
    _tell(study.id, format_name, path, text, beside, as_json=as_json)
    return 0


def _export_template(
    study_id: str, path: Path | None, into_text: str | None, *, as_json: bool, db: str | None
) -> int:
    """The same of a script's template, which is anybody's file: none that is there is replaced."""
    if into_text is not None:
        raise UsageError("into", into_text, f"is not applied with {TEMPLATE}")
    if path is not None and path.exists():
        raise UsageError("write", str(path), "is there; name another file")
    with open_store(db, create=False) as store:
        study = store.study(study_id)
    if not (name := tuned_name(study.question.script)):
        raise UsageError("format", TEMPLATE, "is for studies of a --script with a --template")
    suggestion = answer(study)
    require_best(study, suggestion)
    text = _launched(study, suggestion)[name]
    if path is not None:
        write_text(path, text)
    _tell(study.id, TEMPLATE, path, text, (), as_json=as_json)
    return 0


def _launched(study: Study, suggestion: Suggestion) -> Mapping[str, str]:
    """The text of the files that the launch reads, by path."""
    files: Mapping[str, str] = with_launch(suggestion, study.question).launch["files"]
    return files


def _tell(
    study_id: str,
    format_name: str,
    path: Path | None,
    text: str,
    beside: Sequence[str],
    *,
    as_json: bool,
) -> None:
    if not as_json:
        _show(text, path, beside)
        return
    print_json(
        {
            "study_id": study_id,
            "format": format_name,
            "path": str(path) if path else None,
            "text": text,
            "beside": list(beside),
        }
    )


def _show(text: str, path: Path | None, beside: Sequence[str]) -> None:
    """The text on stdout, or where it went, and what it cannot say."""
    if path is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {path}", err=True)
    for sentence in beside:
        typer.echo(f"beside it: {sentence}", err=True)
