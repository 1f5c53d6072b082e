"""``tuner predict``: one case in words, or a line for each line of a file."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, cast

import typer

from tuner.cli.case_options import PredictAsked
from tuner.cli.console import stdout_console, watch_of
from tuner.cli.errors import print_json, report
from tuner.client.cases import Policy, answer_cases, answer_of
from tuner.client.cases.lines import Stream
from tuner.client.predict import case_values, dry_runs_of, read_single_case
from tuner.client.values import model_note
from tuner.core.framework import parse_stated_versions
from tuner.core.workload import choice
from tuner.cost.explain import compared_classes
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    TrainsWronglyError,
    TunerError,
    UsageError,
)
from tuner.text import count_text, read_share, read_size, read_whole

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
        with (
            watch_of(as_json=asked.json) as watch,
            dry_runs_of(asked.db, policy, watch) as dry_runs,
        ):
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
    if path == "-":
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


def _run_one(asked: PredictAsked, policy: Policy) -> int:
    values = _values(asked)
    case = read_single_case(values)
    with (
        watch_of(as_json=asked.json) as watch,
        dry_runs_of(asked.db, policy, watch) as dry_runs,
    ):
        dry_runs.prepare([case])
        finding = dry_runs.of(case)
        classes = () if asked.json else compared_classes(case.question, case.settings)
        profiles = dry_runs.kept(case, classes)
    answer = answer_of(case, finding)
    if asked.json:
        print_json({**values, "framework": case.question.framework.as_dict(), **answer})
    elif answer["fits"] is not None:
        from tuner.cli.predictions import show_prediction  # files of cases need none of it

        show_prediction(stdout_console(), case, finding, profiles)
    whys = answer["fits"], answer["trains_wrongly"], answer["reason"]
    why = why_not("these settings", *whys)
    return 0 if why is None else report(why, as_json=False)


def why_not(these: str, fits: bool | None, wrong: str, reason: str) -> TunerError | None:
    """Why a configuration should not be used; ``None`` for one that fits."""
    one = these.startswith("this")
    if fits is False:
        return NothingFitsError(f"{these} {'does' if one else 'do'} not fit: {reason}")
    if wrong:
        return TrainsWronglyError(f"{these} train{'s' * one} something else: {wrong}")
    if fits is None:
        return ProbeError(f"nothing is known of these settings: {reason}")
    return None


def _values(asked: PredictAsked) -> dict[str, Any]:
    """The options as a case of a file would have them.

    Raises:
        UsageError: one is missing, or cannot be read.
    """
    for name in NEEDED:
        if getattr(asked, name) is None:
            raise UsageError(name, None, "is required, unless --cases names a file of cases")
    model, headroom, memory = str(asked.model), asked.headroom, asked.memory_limit
    values = case_values(
        model=model,
        cluster=str(asked.cluster),
        global_batch_size=read_whole("global_batch_size", str(asked.global_batch_size)),
        sequence_length=read_whole("sequence_length", str(asked.sequence_length)),
        settings=str(asked.settings),
        optimizer=asked.optimizer,
        precision=asked.precision,
        reduce_dtype=asked.reduce_dtype,
        framework=asked.framework,
        framework_versions=parse_stated_versions(asked.framework_version or ()),
        headroom=None if headroom is None else read_share("headroom", headroom),
        memory_limit_gib=None if memory is None else read_size("memory_limit", memory) / 2**30,
    )
    if note := model_note(model):
        typer.echo(note, err=True)
    return values
