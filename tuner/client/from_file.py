"""A configuration file as the question of ``tuner suggest``, and its answer put back into it."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.client.answered import write_text
from tuner.client.cases import DryRuns, Policy
from tuner.client.cases.dry_runs import Watch
from tuner.client.check import Checked, check
from tuner.client.files import FileSays, asked_of, case_of, with_liger
from tuner.client.place import place_here
from tuner.client.request import RequestHere, read_here
from tuner.core.configuration import Settings, knob_value
from tuner.core.study import Question
from tuner.errors import TunerError, UsageError
from tuner.launchfiles.contract import sync_acts
from tuner.launchfiles.editing import changes, spelled_in
from tuner.launchfiles.fields import Uncounted
from tuner.launchfiles.files import READERS, Opened, open_file, read_text, syntax_of
from tuner.space.rules import show
from tuner.store import Store

# Of one configuration; more would be a folder full of them.
MOST_BACKUPS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FileQuestion:
    """A file as a question."""

    path: Path
    opened: Opened
    asked: FileSays
    request: RequestHere
    beside: Mapping[str, Any]
    """What was said beside the file."""


def read_question(
    path: str,
    format_name: str | None,
    beside: Mapping[str, Any],
    more: Mapping[str, Any],
    db: str | None = None,
) -> FileQuestion:
    """The question of a file.

    Args:
        path: the file's.
        format_name: whose it is; by default told by its content.
        beside: what is said beside it, by argument of :func:`tuner.predict`.
        more: limits and knobs, by argument of :func:`tuner.suggest`.
        db: address of the database.

    Raises:
        UsageError: it cannot be read, or something is missing, or said otherwise.
    """
    opened = open_file(path, format_name)
    found = opened.found
    asked = asked_of(found, beside, Path(path).parent)
    values = dict(asked.arguments)
    if "fused_loss" in found.free:
        stated, _ = with_liger(True, values["framework"], values["framework_versions"])
        values["framework_versions"] = stated
    own = more.get("knobs") or {}
    knobs = {**_knobs(opened, asked), **own}
    uncounted = [*asked.uncounted]
    while True:
        request = read_here({**values, **more, "knobs": knobs})
        try:
            place_here(request, db).space  # noqa: B018  (which may be empty)
        except UsageError as error:
            name = error.field.removeprefix("knobs.")
            if found.strict or name in own or name not in knobs:
                raise
            effect = f"{error.allowed}; counted without"
            uncounted.append(Uncounted(key=name, value=show(knobs.pop(name)[0]), effect=effect))
        else:
            break
    asked = replace(asked, uncounted=tuple(uncounted))
    return FileQuestion(
        path=Path(path).expanduser(), opened=opened, asked=asked, request=request, beside=beside
    )


def _knobs(opened: Opened, asked: FileSays) -> dict[str, list[Any]]:
    """Values that are allowed: what the file can say otherwise is free."""
    found: dict[str, list[Any]] = {}
    for name, value in asked.knobs.items():
        if name not in opened.found.free:
            found[name] = [value]
        elif values := opened.found.free[name]:
            found[name] = [*dict.fromkeys((value, *values))]
    # it follows from what is chosen, and its own is of the file's micro-batch
    found.pop("gradient_accumulation_steps", None)
    return found


def today(
    question: FileQuestion, asked: Question, store: Store, watch: Watch, policy: Policy
) -> Checked | UsageError:
    """What is known of the file's own settings; why nothing is, where they are not legal.

    ``asked`` is the question as it was answered, in all versions.
    """
    found = question.opened.found
    beside = {**question.beside, "framework_versions": asked.framework.versions}
    try:
        case = case_of(found, beside, question.path.parent)
    except UsageError as error:
        return error
    with DryRuns(store, policy, watch) as dry_runs:
        dry_runs.prepare([case])
        return check(store, found.format_name, case, dry_runs.of(case))


def patched(question: FileQuestion, asked: Question, best: Settings) -> tuple[str, dict[str, Any]]:
    """The file's text with the best settings, and what was changed in it.

    Raises:
        UsageError: the file cannot be changed so.
    """
    knobs, free = question.asked.knobs, question.opened.found.free
    kept = [name for name in knobs if name not in free]  # also what was counted without
    return put_into(question.opened, str(question.path), knobs, asked, best, kept)


def put_into(
    opened: Opened,
    path: str,
    knobs: Mapping[str, Any],
    asked: Question,
    best: Settings,
    kept: Iterable[str] = (),
) -> tuple[str, dict[str, Any]]:
    """The same of a file at ``path`` that says ``knobs``, with settings of any study, but for those
    that are ``kept`` as they are.

    Raises:
        UsageError: the file cannot be changed so.
    """
    reader = READERS[opened.found.format_name]
    present = Settings(**{name: knob_value(name, value) for name, value in knobs.items()})
    kept = frozenset(kept)
    best = replace(best, **{name: getattr(present, name) for name in kept})
    if not sync_acts(asked, best):  # then it is left as it was
        best = replace(best, sync_each_batch=present.sync_each_batch)
    before = reader.tuned(asked, present, opened.values)
    after = reader.tuned(asked, best, opened.values)
    wanted = spelled_in(opened.values, changes(before, after))
    if not wanted:
        return opened.text, {}
    text = syntax_of(path).edit(opened.text.replace("\r\n", "\n"), wanted)
    if "\r\n" in opened.text:
        text = text.replace("\n", "\r\n")
    again = read_text(text, path, opened.found.format_name).found.knobs
    for name in again.keys() - kept:  # what is not sharded has no offload to say either
        if knob_value(name, again[name]) != getattr(best, name):
            said = f"{name}={show(getattr(best, name))}"
            allowed = f"{said} cannot be put into it: it would read {again[name]}"
            raise UsageError("file", path, allowed)
    return text, wanted


def diff(question: FileQuestion, text: str) -> str:
    """The change as a patch."""
    name = str(question.path)
    lines = difflib.unified_diff(
        question.opened.text.splitlines(keepends=True), text.splitlines(keepends=True), name, name
    )
    return "".join(lines)


def put_back(question: FileQuestion, text: str, *, backup: bool) -> Path | None:
    """Write the file anew, with a copy of what it was beside it; the copy's path."""
    path, copy = question.path, None
    was = path.read_bytes()
    if was.decode("utf-8-sig") != question.opened.text:
        raise TunerError(f"{path} was changed meanwhile: nothing is written")
    if backup:
        names = (f"{path.name}.bak{number or ''}" for number in range(MOST_BACKUPS))
        copy = next(one for one in map(path.with_name, names) if not one.exists())
        copy.write_bytes(was)
    mark = "\ufeff" if was.startswith(b"\xef\xbb\xbf") else ""
    write_text(path, f"{mark}{text}")
    return copy
