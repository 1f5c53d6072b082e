"""Files that the answer is written to, checked before anything is probed."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from tuner.cli.words import memory_range_text, rank_word, speed_range_text
from tuner.errors import TunerError, UsageError
from tuner.export import FORMATS, About, export, why_not
from tuner.framework import FrameworkName
from tuner.space import Space
from tuner.study import Question
from tuner.suggestion import Candidate, Suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file for one launcher."""

    format_name: str
    """The launcher's format."""
    path: Path
    """Where to write it."""


def read_targets(texts: Sequence[str], question: Question, space: Space) -> tuple[Target, ...]:
    """The targets written as ``FORMAT=PATH``.

    Raises:
        UsageError: not of that form, an unknown format, a path that cannot be written, or a
            space with settings that the format cannot express.
    """
    targets = tuple(_target(text) for text in texts)
    for target in targets:
        for settings in space.legal:
            if reason := why_not(target.format_name, question, settings):
                given = f"{target.format_name}={target.path}"
                raise UsageError("write", given, f"the answer might not fit the format: {reason}")
    if len({target.path.absolute() for target in targets}) < len(targets):
        raise UsageError("write", ", ".join(texts), "names one file twice")
    return targets


def read_path(field: str, text: str) -> Path:
    """The path of a file to write, with ``~`` resolved.

    Raises:
        UsageError: it cannot be written; see :func:`check_path`.
    """
    try:
        path = Path(text).expanduser()
        check_path(field, path)
    except (OSError, RuntimeError) as error:  # too long, of an unknown user
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(field, text, f"is not a usable path: {why}") from error
    return path


def check_path(field: str, path: Path) -> None:
    """Refuse a path that cannot be written.

    Raises:
        UsageError: it is a folder, its folder is missing, or permissions forbid it.
        OSError: it is no path at all, such as one that is too long.
    """
    if path.is_dir():
        raise UsageError(field, str(path), "is a folder; name a file in it")
    if not path.parent.is_dir():
        raise UsageError(field, str(path), f"there is no folder {path.parent}")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(field, str(path), "cannot be written: permission denied")


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        TunerError: it cannot be written, though :func:`check_path` found nothing wrong.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TunerError(f"{path} cannot be written: {error.strerror}") from error


def with_launch(
    suggestion: Suggestion, question: Question, targets: Sequence[Target]
) -> Suggestion:
    """The suggestion with the launcher's files, and the command that reads them.

    Without targets, the files are those of the framework that was asked about.
    """
    best = suggestion.best
    if best is None:
        return suggestion
    wanted = [(target.format_name, str(target.path)) for target in targets]
    if not wanted and question.framework.name is not FrameworkName.TORCH:
        names = [name for name in FORMATS if why_not(name, question, best.settings) is None]
        wanted = [(name, FORMATS[name].file_name) for name in names]
    files = {path: exported(name, question, best, suggestion.study_id) for name, path in wanted}
    return replace(suggestion, launch={"argv": _argv(question, tuple(files)), "files": files})


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


def _target(text: str) -> Target:
    name, equals, path = (part.strip() for part in text.partition("="))
    if not equals or not name or not path:
        known = ", ".join(FORMATS)
        raise UsageError("write", text, f"must look like accelerate=FILE; the formats are {known}")
    if name not in FORMATS:
        raise UsageError("write", name, f"no such format; the formats are {', '.join(FORMATS)}")
    return Target(format_name=name, path=read_path("write", path))


def _argv(question: Question, files: Sequence[str]) -> list[str]:
    if files:
        return ["accelerate", "launch", "--config_file", files[0], "SCRIPT.py"]
    cluster = question.cluster
    if cluster.nodes > 1:
        # On every node; HOST is any one of them.
        sizes = ["--nnodes", str(cluster.nodes), "--nproc-per-node", str(cluster.gpus_per_node)]
        meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
        return ["torchrun", *sizes, *meeting, "SCRIPT.py"]
    ranks = str(cluster.world_size)
    return ["torchrun", "--standalone", "--nproc-per-node", ranks, "SCRIPT.py"]
