"""``tuner export``: a study's answer as a launcher's file."""

from pathlib import Path

import typer

from tuner.cli.errors import print_json, tell
from tuner.cli.options import ExportAsked
from tuner.client.answered import (
    check_replaceable,
    exported,
    read_into,
    read_path,
    with_launch,
    write_text,
)
from tuner.core.script import tuned_name
from tuner.errors import UnknownNameError, UsageError
from tuner.explain.known import answer, require_best
from tuner.launchfiles import FORMATS
from tuner.launchfiles.files import READERS, open_file
from tuner.store import open_store
from tuner.text import count_text

# In the place of a format: the template of a user's script, with the answer filled in.
TEMPLATE = "template"
# In the place of a format: a storage of Optuna's with the study, which its dashboard opens.
OPTUNA = "optuna"


def run(asked: ExportAsked) -> int:
    """Print the file, or write it; the exit code. A file of the user's own that the answer is
    merged into is not written."""
    format_name = asked.format_name
    if format_name == OPTUNA:
        return _export_optuna(asked)
    opened, into = None, None
    path = None if asked.write is None else read_path("write", asked.write)
    if _is_put(format_name, asked.into):
        opened = open_file(str(asked.into), format_name)
    else:
        into = _checked(asked, path)
    with open_store(asked.db, create=False) as store:
        study = store.study(asked.study)
    name = tuned_name(study.question.script)
    if format_name == TEMPLATE and not name:
        raise UsageError("format", TEMPLATE, "is for studies of a --script with a --template")
    suggestion = answer(study)
    best = require_best(study, suggestion)
    beside: tuple[str, ...] = ()
    if opened is not None:
        from tuner.client.from_file import put_into  # with all that reads files

        knobs = opened.found.knobs
        text, wanted = put_into(opened, str(asked.into), knobs, study.question, best.settings)
        if opened.other is not None and opened.other.split(wanted)[1]:
            allowed = f"{opened.other.path} must change too: tuner suggest --from does both"
            raise UsageError("into", asked.into, allowed)
    elif format_name == TEMPLATE:
        text = with_launch(suggestion, study.question).launch["files"][name]
    else:
        where = str(path or asked.into or "")
        text = exported(format_name, study.question, best, study.id, study.state, where)
        found = FORMATS[format_name]
        beside = found.beside(study.question, best.settings)
        if into is not None and found.merge is not None:
            text = found.merge(text, into)
    if path is not None:
        write_text(path, text)
    if asked.json:
        shown = {"study_id": study.id, "format": format_name, "path": str(path) if path else None}
        print_json({**shown, "text": text, "beside": list(beside)})
        return 0
    if path is None:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"wrote {path}", err=True)
    for sentence in beside:  # what the file cannot say
        typer.echo(f"beside it: {sentence}", err=True)
    return 0


def _is_put(format_name: str, into_text: str | None) -> bool:
    """Whether the answer is put into a file of the user's own, whatever else it says."""
    if format_name not in (*FORMATS, TEMPLATE, *READERS):
        raise UnknownNameError("format", format_name, (*FORMATS, TEMPLATE, OPTUNA))
    merges = format_name in FORMATS and FORMATS[format_name].merge is not None
    if merges or format_name not in READERS:
        return False
    if into_text is None and format_name not in FORMATS:
        raise UsageError("format", format_name, "is written into a file only: name it as --into")
    return into_text is not None


def _checked(asked: ExportAsked, path: Path | None) -> str | None:
    """The text of the user's own file; what may be written over is checked before anything else."""
    if asked.format_name == TEMPLATE:
        if asked.into is not None:
            raise UsageError("into", asked.into, f"is not applied with {TEMPLATE}")
        if path is not None and path.exists():  # it is anybody's file
            raise UsageError("write", str(path), "is there; name another file")
    elif asked.into is not None:
        return read_into(asked.into, asked.format_name)
    elif path is not None:
        check_replaceable("write", asked.format_name, path)
    return None


def _export_optuna(asked: ExportAsked) -> int:
    """Write the study into a storage; one without an answer too, as far as it has come."""
    if asked.write is not None:
        allowed = "is not applied with optuna: name a storage as --into"
        raise UsageError("write", asked.write, allowed)
    if asked.into is None:
        raise UsageError("into", "nothing", "must name the storage, such as --into study.db")
    if "://" in asked.into:
        allowed = "is an address: name the SQLite file alone, such as --into study.db"
        raise UsageError("into", asked.into, allowed)
    from tuner.results.optuna_storage import write_storage  # imports Optuna, which takes a second

    path = read_path("into", asked.into)
    with open_store(asked.db, create=False) as store:
        study = store.study(asked.study)
    count = write_storage(study, path)
    wrote = {"study_id": study.id, "format": OPTUNA, "path": str(path), "trials": count}
    trials = count_text(count, "trial")
    text = f"wrote {trials} into {path}; see them: optuna-dashboard sqlite:///{path}"
    return tell(wrote, text, as_json=asked.json)
