"""Files that the answer is written to, checked before anything is probed."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tuner.errors import TunerError, UsageError
from tuner.export import FORMATS, why_not
from tuner.space import Space
from tuner.study import Question

WRITTEN_BY_US = re.compile(rb'[Ww]ritten[ _]by(": ")? ?tuner|"run_name": "tuner ')
"""In every file of ours, near its beginning."""
HEAD_BYTES = 8192
LARGEST_INTO_BYTES = 2**20


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
    check_targets(targets, question, space)
    if len({target.path.absolute() for target in targets}) < len(targets):
        raise UsageError("write", ", ".join(texts), "names one file twice")
    return targets


def check_targets(targets: Sequence[Target], question: Question, space: Space) -> None:
    """Refuse targets that cannot express some settings of a space.

    Raises:
        UsageError: so it is; with the reason.
    """
    for target in targets:
        for settings in space.legal:
            if reason := why_not(target.format_name, question, settings):
                given = f"{target.format_name}={target.path}"
                raise UsageError("write", given, f"the answer might not fit the format: {reason}")


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


def check_replaceable(field: str, format_name: str, path: Path) -> None:
    """Refuse to replace a file that this program did not write.

    A file that others write too, such as nanotron's, is never replaced.

    Raises:
        UsageError: it is there; with what to do.
        OSError: it cannot be read.
    """
    if not path.exists():
        return
    if FORMATS[format_name].merge is not None:
        allowed = (
            "is there; name another file, or put the answer into it with"
            f" tuner export STUDY {format_name} --into {path} --write {path}"
        )
        raise UsageError(field, str(path), allowed)
    with path.open("rb") as file:
        head = file.read(HEAD_BYTES)
    if head.strip() and not WRITTEN_BY_US.search(head):
        raise UsageError(field, str(path), "was not written by tuner; name another file")


def read_into(path_text: str, format_name: str) -> str:
    """The text of a user's own file, to merge an answer into.

    Raises:
        UsageError: the format is not merged into files, or the file cannot be read.
    """
    if FORMATS[format_name].merge is None:
        known = ", ".join(name for name, one in FORMATS.items() if one.merge is not None)
        raise UsageError("into", path_text, f"is for formats that are part of a file: {known}")
    try:
        with Path(path_text).expanduser().open("rb") as file:
            data = file.read(LARGEST_INTO_BYTES + 1)
        text = data.decode()
    except (OSError, RuntimeError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError("into", path_text, f"cannot be read: {why}") from error
    if len(data) > LARGEST_INTO_BYTES:
        raise UsageError("into", path_text, f"must be at most {LARGEST_INTO_BYTES} bytes")
    return text


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        TunerError: it cannot be written, though :func:`check_path` found nothing wrong.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TunerError(f"{path} cannot be written: {error.strerror}") from error


def _target(text: str) -> Target:
    name, equals, path = (part.strip() for part in text.partition("="))
    if not equals or not name or not path:
        known = ", ".join(FORMATS)
        raise UsageError("write", text, f"must look like accelerate=FILE; the formats are {known}")
    if name not in FORMATS:
        raise UsageError("write", name, f"no such format; the formats are {', '.join(FORMATS)}")
    target = Target(format_name=name, path=read_path("write", path))
    check_replaceable("write", name, target.path)
    return target
