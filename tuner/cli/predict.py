"""The options of ``predict`` and ``check``: settings that are there, on a cluster that need not be.

As :mod:`tuner.cli.options` has it, values stay text here.
"""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, cast

import typer
from rich.console import Console
from rich.status import Status

from tuner.cli.case_options import PredictAsked
from tuner.cli.console import stdout_console
from tuner.cli.errors import print_json, report
from tuner.cli.values import Texts
from tuner.client.cases import Case, DryRuns, Policy, answer_cases, answer_of
from tuner.client.cases.lines import Stream
from tuner.client.predict import dry_runs_of, read_single_case
from tuner.client.values import model_note
from tuner.core.bounds import choice
from tuner.cost.explain import compared_classes
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    TrainsWronglyError,
    TunerError,
    UsageError,
)
from tuner.text import count_text


class QuietWatch:
    """Shows notes only."""

    def waiting(self, text: str) -> None:
        """Nothing is shown."""

    def note(self, text: str) -> None:
        """A line of its own."""
        typer.echo(f"tuner: {text}", err=True)


class TerminalWatch(QuietWatch):
    """Shows what is waited for in the terminal's last line, and takes it away afterwards."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status: Status | None = None

    def waiting(self, text: str) -> None:
        """Show ``text`` until the next call; nothing for an empty one."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if text:
            self._status = self._console.status(text)
            self._status.start()


@contextmanager
def watch_of(*, as_json: bool) -> Iterator[QuietWatch]:
    """Chooses what fits stderr: progress for people at a terminal, notes for all."""
    console = Console(stderr=True)
    watch = TerminalWatch(console) if console.is_terminal and not as_json else QuietWatch()
    try:
        yield watch
    finally:
        watch.waiting("")


STDIN = "-"
# Exit code when nobody reads stdout any more, as of other programs in a pipe.
CLOSED = 128 + signal.SIGPIPE
# Options without which there is no single case.
NEEDED = ("model", "cluster", "global_batch_size", "sequence_length", "settings")
# Options that go with ``--cases``.
OF_ALL = ("cases", "dry_runs", "json", "db")


def run(asked: PredictAsked) -> int:
    """Answer; the exit code: 0, or for a single case 3 if it does not fit, and 4 if it is known to
    train something else.

    Raises:
        UsageError: an option is wrong, or the file cannot be read; nothing was answered then.
        TunerError: the single case cannot be answered, or the database cannot be used.
    """
    policy = choice("dry_runs", Policy, asked.dry_runs)
    if asked.cases is None:
        return _run_one(asked, policy)
    for field in fields(asked):
        if field.name not in OF_ALL and (value := getattr(asked, field.name)) is not None:
            raise UsageError(field.name, value, "goes into each case when there is --cases")
    with _opened(asked.cases) as file:
        return _run_all(file, asked, policy)


def _run_all(file: Stream, asked: PredictAsked, policy: Policy) -> int:
    """One line for each case. Wrong ones are counted on stderr."""
    answered = wrong = 0
    try:
        with _dry_runs(asked, policy) as dry_runs:
            for answer in answer_cases(file, dry_runs):
                sys.stdout.write(json.dumps(answer, allow_nan=False) + "\n")
                sys.stdout.flush()
                answered += 1
                wrong += "error" in answer
    except BrokenPipeError:
        # What is still buffered has nowhere to go either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED
    if wrong:
        counted = count_text(answered, "case")
        typer.echo(f"tuner: {wrong} of {counted} answered with an error", err=True)
    return 0


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Stream]:
    """The file of cases.

    Raises:
        UsageError: it cannot be read.
    """
    if path == STDIN:
        if sys.stdin is None:
            raise UsageError("cases", path, "cannot be read: stdin is closed")
        yield cast("Stream", sys.stdin.buffer)
        return
    try:
        file = open(os.path.expanduser(path), "rb")  # noqa: PTH111, PTH123, SIM115
    except (OSError, ValueError) as error:  # a ValueError: a null character in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError("cases", path, f"cannot be read: {reason}") from error
    with file:
        yield file


@contextlib.contextmanager
def _dry_runs(asked: PredictAsked, policy: Policy) -> Iterator[DryRuns]:
    with watch_of(as_json=asked.json) as watch, dry_runs_of(asked.db, policy, watch) as dry_runs:
        yield dry_runs


# --------------------------------------------------------------------------------------------
# One case
# --------------------------------------------------------------------------------------------


def _run_one(asked: PredictAsked, policy: Policy) -> int:
    case = _single(asked)
    with _dry_runs(asked, policy) as dry_runs:
        dry_runs.prepare([case])
        finding = dry_runs.of(case)
        classes = () if asked.json else compared_classes(case.question, case.settings)
        profiles = dry_runs.kept(case, classes)
    answer = answer_of(case, finding)
    if asked.json:
        print_json({**_as_written(asked, case), **answer})
    elif answer["fits"] is not None:
        from tuner.cli.predictions import show_prediction  # files of cases need none of it

        show_prediction(stdout_console(), case, finding, profiles)
    if why := _why_not(answer):
        return report(why, as_json=False)
    return 0


def _why_not(answer: Mapping[str, Any]) -> TunerError | None:
    """Why the settings should not be used; ``None`` for those that fit."""
    reason = answer["reason"]
    if answer["fits"] is False:
        return NothingFitsError(f"these settings do not fit: {reason}")
    if wrong := answer["trains_wrongly"]:
        return TrainsWronglyError(f"these settings train something else: {wrong}")
    if answer["fits"] is None:
        return ProbeError(f"nothing is known of these settings: {reason}")
    return None


def _single(asked: PredictAsked) -> Case:
    """The case of the options.

    Raises:
        UsageError: options are missing, or cannot be read.
    """
    missing = [name for name in NEEDED if getattr(asked, name) is None]
    texts, allowed = Texts(), "is required, unless --cases names a file of cases"
    texts.wrong += [UsageError(name, None, allowed) for name in missing]
    given: dict[str, Any] = {**texts.limits(asked), "settings": asked.settings}
    case = read_single_case(**given, beside=texts.wrong)
    if note := model_note(str(asked.model)):
        typer.echo(note, err=True)
    return case


def _as_written(asked: PredictAsked, case: Case) -> dict[str, Any]:
    """The case as a line of a file would have it, with what was written and no more."""
    question, workload = case.question, case.question.workload.as_dict()
    optional = ("optimizer", "precision", "reduce_dtype")
    left_out = [name for name in optional if getattr(asked, name) is None]
    limits = {"headroom": case.headroom, "memory_limit_gib": case.memory_limit_gib}
    written = {"headroom": asked.headroom, "memory_limit_gib": asked.memory_limit}
    return {
        "workload": {name: v for name, v in workload.items() if name not in left_out},
        "cluster": question.cluster.as_dict(),
        "framework": question.framework.as_dict(),
        "settings": asked.settings,
        **{name: limits[name] for name, text in written.items() if text is not None},
    }
