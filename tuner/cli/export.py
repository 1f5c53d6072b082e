"""``tuner export``: a study's answer as a launcher's file."""

import typer

from tuner.answering import require_best
from tuner.cli.errors import print_json
from tuner.cli.targets import read_path, write_text
from tuner.errors import UnknownNameError
from tuner.export import FORMATS
from tuner.launch import exported
from tuner.planner import answer
from tuner.store import open_store


def run(
    study_id: str, format_name: str, path_text: str | None, *, as_json: bool, db: str | None
) -> int:
    """Print the file, or write it; the exit code.

    Raises:
        UsageError: there is no such study or format, the format cannot express the answer, or the
            path cannot be written.
        NothingFitsError: the study found that nothing fits.
        ProbeError: the study has no answer.
    """
    if format_name not in FORMATS:
        raise UnknownNameError("format", format_name, FORMATS)
    path = None if path_text is None else read_path("write", path_text)
    with open_store(db, create=False) as store:
        study = store.study(study_id)
    best = require_best(study, answer(study))
    text = exported(format_name, study.question, best, study.id)
    if path is not None:
        write_text(path, text)
    if as_json:
        written = str(path) if path else None
        print_json({"study_id": study.id, "format": format_name, "path": written, "text": text})
    elif path is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {path}", err=True)
    return 0
