"""``tuner export``: a study's answer as a launcher's file."""

from collections.abc import Sequence
from pathlib import Path

import typer

from tuner.cli.errors import print_json
from tuner.client.answered import check_replaceable, read_into, read_path, write_text
from tuner.client.launch import exported, with_launch
from tuner.errors import UnknownNameError, UsageError
from tuner.launchfiles import FORMATS
from tuner.planner import answer
from tuner.planner.known import require_best
from tuner.script.launching import tuned_name
from tuner.store import open_store
from tuner.text import count_text

# In the place of a format: the template of a user's script, with the answer filled in.
TEMPLATE = "template"
# In the place of a format: a storage of Optuna's with the study, which its dashboard opens.
OPTUNA = "optuna"


def run(
    study_id: str,
    format_name: str,
    path_text: str | None,
    *,
    into_text: str | None = None,
    as_json: bool,
    db: str | None,
) -> int:
    """Print the file, or write it to ``path_text``; the exit code.

    ``into_text`` is a file of the user's own that the answer is merged into, and is not written.

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
    if format_name == OPTUNA:
        return _export_optuna(study_id, path_text, into_text, as_json=as_json, db=db)
    if format_name not in FORMATS:
        raise UnknownNameError("format", format_name, (*FORMATS, TEMPLATE, OPTUNA))
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
    text = with_launch(suggestion, study.question).launch["files"][name]
    if path is not None:
        write_text(path, text)
    _tell(study.id, TEMPLATE, path, text, (), as_json=as_json)
    return 0


def _export_optuna(
    study_id: str, path_text: str | None, into_text: str | None, *, as_json: bool, db: str | None
) -> int:
    """Write the study into a storage; one without an answer too, as far as it has come."""
    if path_text is not None:
        raise UsageError("write", path_text, "is not applied with optuna: name a storage as --into")
    if into_text is None:
        raise UsageError("into", "nothing", "must name the storage, such as --into study.db")
    from tuner.results.optuna_storage import write_storage  # imports Optuna, which takes a second

    path = read_path("into", into_text)
    with open_store(db, create=False) as store:
        study = store.study(study_id)
    count = write_storage(study, path)
    if as_json:
        wrote = {"study_id": study.id, "format": OPTUNA, "path": str(path), "trials": count}
        print_json(wrote)
    else:
        trials = count_text(count, "trial")
        typer.echo(f"wrote {trials} into {path}; see them: optuna-dashboard sqlite:///{path}")
    return 0


def _tell(
    study_id: str,
    format_name: str,
    path: Path | None,
    text: str,
    beside: Sequence[str],
    *,
    as_json: bool,
) -> None:
    if as_json:
        shown = {"study_id": study_id, "format": format_name, "path": str(path) if path else None}
        print_json({**shown, "text": text, "beside": list(beside)})
        return
    if path is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {path}", err=True)
    for sentence in beside:  # what the file cannot say
        typer.echo(f"beside it: {sentence}", err=True)
