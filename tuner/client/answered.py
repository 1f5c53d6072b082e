"""An answer, its files and the command that reads them; where it may be written is checked before
anything is probed.
"""

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, Protocol, Self

from tuner.client.values import FILES_OF_FRAMEWORK, Say
from tuner.core.answer import Candidate, Suggestion
from tuner.core.cluster import Device
from tuner.core.configuration import Settings
from tuner.core.quantity import Quantity
from tuner.core.script import CONFIGURATION, Launch, script_launch, torchrun
from tuner.core.study import OPEN, ProbeState, Question, Study
from tuner.core.words import (
    describe,
    memory_range_text,
    probe_name,
    rank_word,
    rate_text,
    seconds_text,
    sizes_text,
)
from tuner.errors import TunerError, UnknownNameError, UsageError, why_unreadable
from tuner.explain.brief import is_forecast
from tuner.explain.known import answer, why_none
from tuner.launchfiles import FORMATS, About, export, why_not
from tuner.results.points import row_text, rows_of
from tuner.results.summary import AnswerSummary
from tuner.space import Space
from tuner.store import Store

log = logging.getLogger(__name__)

# In every file of ours, near its beginning.
WRITTEN_BY_US = re.compile(rb'[Ww]ritten[ _]by(": ")? ?tuner|"run_name": "tuner ')
HEAD_BYTES = 8192
LARGEST_INTO_BYTES = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A file for one launcher."""

    format_name: str
    path: Path


def read_targets(texts: Sequence[str], question: Question, space: Space) -> tuple[Target, ...]:
    """The targets written as ``FORMAT=PATH``."""
    targets = []
    for text in texts:
        name, equals, path = (part.strip() for part in text.partition("="))
        known = f"the formats are {', '.join(FORMATS)}"
        if not equals or not name or not path:
            raise UsageError("write", text, f"must look like accelerate=FILE; {known}")
        if name not in FORMATS:
            raise UnknownNameError("write", name, FORMATS)
        targets.append(Target(format_name=name, path=read_path("write", path)))
        check_replaceable("write", name, targets[-1].path)
    check_targets(targets, question, space)
    if len({target.path.absolute() for target in targets}) < len(targets):
        raise UsageError("write", ", ".join(texts), "names one file twice")
    return tuple(targets)


def check_targets(targets: Sequence[Target], question: Question, space: Space) -> None:
    """Refuse targets that cannot express some settings of a space."""
    for target in targets:
        for settings in space.legal:
            if reason := why_not(target.format_name, question, settings):
                given = f"{target.format_name}={target.path}"
                raise UsageError("write", given, f"the answer might not fit the format: {reason}")


def read_path(field: str, text: str) -> Path:
    """The path of a file that can be written, with ``~`` resolved."""
    try:
        path = Path(text).expanduser()
        if path.is_dir():
            raise UsageError(field, str(path), "is a folder; name a file in it")
        if not path.parent.is_dir():
            raise UsageError(field, str(path), f"there is no folder {path.parent}")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise UsageError(field, str(path), "cannot be written: permission denied")
    except (OSError, RuntimeError) as error:  # too long, of an unknown user
        why = error.strerror if isinstance(error, OSError) else error
        raise UsageError(field, text, f"is not a usable path: {why}") from error
    return path


def check_replaceable(field: str, format_name: str, path: Path) -> None:
    """Refuse to replace a file that this program did not write.

    A file that others write too, such as nanotron's, is never replaced.
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
    """The text of a user's own file, to merge an answer into."""
    if FORMATS[format_name].merge is None:
        known = ", ".join(name for name, one in FORMATS.items() if one.merge is not None)
        raise UsageError("into", path_text, f"is for formats that are part of a file: {known}")
    try:
        with Path(path_text).expanduser().open("rb") as file:
            data = file.read(LARGEST_INTO_BYTES + 1)
        text = data.decode()
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError("into", path_text, why_unreadable(error)) from error
    if len(data) > LARGEST_INTO_BYTES:
        raise UsageError("into", path_text, f"must be at most {LARGEST_INTO_BYTES} bytes")
    return text


def write_text(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TunerError(f"{path} cannot be written: {error.strerror}") from error


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Answer(Suggestion):
    """A suggestion that has a best: what :func:`tuner.suggest` returns."""

    best: Candidate
    """The fastest that fits, or one that cannot be told apart from it and is lighter."""

    def __repr__(self) -> str:
        """The best, in one line; the whole has tens of thousands of characters."""
        best = self.best
        return (
            f"Answer(study_id={self.study_id!r}, settings={str(best.settings)!r},"
            f" tokens_per_s_per_gpu={best.tokens_per_s_per_gpu.value},"
            f" allocated_gib={best.allocated_gib.value}, provenance={str(self.provenance)!r}, ...)"
        )

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each configuration, the best first, as ``pandas.DataFrame`` takes them: its
        knobs, and each figure with the ends of its interval."""
        rows = []
        for one in (self.best, *self.alternatives):
            row: dict[str, Any] = {**one.settings.all_values(), "provenance": str(one.provenance)}
            for name in _FIGURES:
                found: Quantity = getattr(one, name)
                row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
            rows.append({**row, "limit_gib": one.limit_gib})
        return rows

    def _repr_html_(self) -> str:
        """A notebook shows the best and the next ones, and why it is these."""
        heads = ("settings", "speed", "step", "needs", "of", "from")
        per = "rank" if self.cluster["gpu"]["device"] == Device.CPU else "GPU"
        lines = []
        for one in (self.best, *self.alternatives):
            step = one.step_time_s
            cells = (
                describe(one.settings).replace(",", ", "),
                rate_text(one.tokens_per_s_per_gpu, per),
                "-" if step.value is None else seconds_text(step.value),
                sizes_text(one.needed_gib),
                f"{one.limit_gib:.1f} GiB",
                str(one.provenance),
            )
            lines.append("".join(f"<td>{escape(cell)}</td>" for cell in cells))
        head = "".join(f"<th>{name}</th>" for name in heads)
        rows = "".join(f"<tr>{line}</tr>" for line in lines)
        said = "".join(f"<li>{escape(text)}</li>" for text in self.explanation[:MOST_SAID])
        title = f"<p>study {escape(self.study_id)}; in brackets 80% intervals</p>"
        return f"{title}<table><tr>{head}</tr>{rows}</table><ul>{said}</ul>"


# Figures of a configuration that a row has.
_FIGURES = ("tokens_per_s_per_gpu", "step_time_s", "needed_gib", "allocated_gib")
# Sentences of the explanation that a notebook shows, the most important first.
MOST_SAID = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A study with its answer, wherever that was found."""

    study: Study
    suggestion: Suggestion
    as_json: Mapping[str, Any]
    why_none: TunerError | None
    """Why it is none; ``None`` where it is one."""
    targets: tuple[Target, ...]
    """Those files among the launch's that are to be written."""

    @property
    def files(self) -> Mapping[str, str]:
        """Text by path of the files to write; none where it is no answer."""
        if self.why_none is not None:
            return {}
        paths = (str(target.path) for target in self.targets)
        return {path: self.suggestion.launch["files"][path] for path in paths}

    @property
    def beside(self) -> Mapping[str, tuple[str, ...]]:
        """What no file that is written can say, by its path; below a text's first line is code."""
        if self.why_none is not None:
            return {}
        said, paths = self.suggestion.launch["beside"], (str(one.path) for one in self.targets)
        return {path: tuple(said[path]) for path in paths if path in said}

    def write(self) -> None:
        for path, text in self.files.items():
            write_text(Path(path), text)

    def require(self) -> Answer:
        """The answer, which must be one.

        Raises:
            TunerError: it is none: nothing fits, no speed is known, or nothing ran. Its
                ``suggestion`` is what is known nevertheless.
        """
        if self.why_none is not None:
            self.why_none.suggestion = self.suggestion
            raise self.why_none
        return Answer(**{one.name: getattr(self.suggestion, one.name) for one in fields(Answer)})


def answered_of(study: Study, targets: Sequence[Target] = ()) -> Answered:
    """A study with the answer that its probes give, and the text of these files.

    Where the answer was to be measured or emulated, and is predicted, it is none.
    """
    wanted = [(target.format_name, str(target.path)) for target in targets]
    suggestion = with_launch(answer(study), study.question, wanted)
    is_answered = suggestion.best is not None and not is_forecast(study, suggestion)
    return Answered(
        study=study,
        suggestion=suggestion,
        as_json=suggestion.as_dict(),
        why_none=None if is_answered else why_none(study, suggestion, shown=True),
        targets=tuple(targets),
    )


def keep_line(store: Store, line: AnswerSummary, newest_event: int) -> None:
    """Keeps a study's answer in one line for lists of studies; they go without where the database
    does not take it. ``newest_event`` is the last that the study was read with."""
    try:
        store.keep_summary(
            line.study_id,
            line.as_dict(),
            newest_event,
            tokens_per_s=line.tokens_per_s_per_gpu.value,
            needed_share=line.needed_share,
        )
    except TunerError as error:
        log.warning("the summary of %s was not kept: %s", line.study_id, error)


class Progress(Protocol):
    """Shows a study while it is being answered."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...

    def show(self, study: Study) -> None:
        """Show the study as it is now; called several times a second."""

    def note(self, text: str) -> None:
        """Show a line."""


class PlainLines:
    """One line for each probe that is finished."""

    def __init__(self, study: Study, say: Say) -> None:
        self._known = {probe.id for probe in study.probes if probe.state is ProbeState.DONE}
        self._ended = 0
        self._say = say

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing is to be put back."""

    def show(self, study: Study) -> None:
        """A line for every probe that was not finished at the last call."""
        for probe in study.probes:
            if probe.state is ProbeState.DONE and probe.id not in self._known:
                self._known.add(probe.id)
                # Dry runs on the way to what was asked for are of no budget.
                is_asked = probe.request.fidelity is study.limits.fidelity
                self._ended += is_asked
                count = f" ({of_most(self._ended, study)})" if is_asked else ""
                row = rows_of(replace(study, probes=(probe,)))[0]  # without its repetitions
                found = f"{row_text(row, rank_word(study.question))} [{describe(row.settings)}]"
                self.note(f"{probe_name(probe)}{count}: {found}")

    def note(self, text: str) -> None:
        self._say(text)


def of_most(number: int, study: Study) -> str:
    """``3/10``; a probe that another worker was running when it was asked may come on top."""
    return f"{number}/{max(number, study.limits.max_probes)}"


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
        own = FILES_OF_FRAMEWORK[question.framework.name]
        names = [name for name in own if why_not(name, question, best.settings) is None]
        named = [(name, FORMATS[name].file_name) for name in names[:1]]
    of_study = suggestion.study_id, suggestion.state
    files = {path: exported(name, question, best, *of_study, path) for name, path in named}
    formats = {path: name for name, path in named}
    if script is not None:  # its command, with the settings filled in
        path = dict(named).get("accelerate", CONFIGURATION)
        launch = script_launch(question, best.settings, path, files)
        launch["beside"] = beside_of(question, best.settings, formats)
        return replace(suggestion, launch=launch)
    return replace(suggestion, launch=launch_of(question, best.settings, files, formats))


def launch_of(
    question: Question, settings: Settings, files: Mapping[str, str], formats: Mapping[str, str]
) -> dict[str, object]:
    """The command that reads the first of ``files`` that can be started, these, the knobs that none
    of their fields holds, and what else they cannot say."""
    known = {path: FORMATS[formats[path]] for path in files}
    commands = (one.argv(question, path) for path, one in known.items() if one.argv is not None)
    sets = (name for one in known.values() for name in one.script_sets(question, settings))
    return {
        "argv": list(next(commands, torchrun(question.cluster, "SCRIPT.py"))),
        "files": dict(files),
        "script_sets": list(dict.fromkeys(sets)),
        "beside": beside_of(question, settings, formats),
    }


def beside_of(
    question: Question, settings: Settings, formats: Mapping[str, str]
) -> dict[str, list[str]]:
    """What files of these formats cannot say, by path."""
    said = {path: FORMATS[name].beside(question, settings) for path, name in formats.items()}
    return {path: list(texts) for path, texts in said.items() if texts}


def exported(
    format_name: str,
    question: Question,
    best: Candidate,
    study_id: str,
    state: str,
    path: str = "",
) -> str:
    """The text of a launcher's file for ``best``, of a study that stands so, written at a path."""
    per = rank_word(question)
    about = About(
        study_id=study_id,
        date=datetime.now(UTC).date().isoformat(),
        provenance=best.provenance,
        versions=best.guard.versions,
        figures=(rate_text(best.tokens_per_s_per_gpu, per), memory_range_text(best, per)),
        is_open=state in OPEN,
        path=path,
    )
    return export(format_name, question, best.settings, about)
