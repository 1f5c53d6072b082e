"""``tuner predict``: one case in words, or a line for each line of a file."""

import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, cast

import typer

from tuner.cli.console import stdout_console, watch_of
from tuner.cli.errors import print_json, report
from tuner.cli.options import PredictAsked
from tuner.cli.values import Texts
from tuner.client.cases import Case, DryRuns, Policy, answer_cases, answer_of
from tuner.client.cases.reading import CaseGiven, Stream
from tuner.client.predict import read_single_case
from tuner.client.values import model_note
from tuner.core.bounds import choice
from tuner.errors import (
    NothingFitsError,
    ProbeError,
    TrainsWronglyError,
    TunerError,
    UsageError,
    why_unreadable,
)
from tuner.explain.memory import compared_layouts
from tuner.store import open_store
from tuner.text import count_text

# Exit code when nobody reads stdout any more, as of other programs in a pipe.
CLOSED = 128 + signal.SIGPIPE
# Options without which there is no single case.
NEEDED = ("model", "cluster", "global_batch_size", "sequence_length", "settings")
# Options that go with ``--cases``.
OF_ALL = ("cases", "dry_runs", "question_file", "json", "db")


def run(asked: PredictAsked) -> int:
    """Answer; the exit code: 0, or for a single case 3 if it does not fit, and 4 if it is known to
    train something else.
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
            open_store(asked.db) as store,
            DryRuns(store, policy, watch) as dry_runs,
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
    if path == "-":
        if sys.stdin is None:
            raise UsageError("cases", path, "cannot be read: stdin is closed")
        yield cast("Stream", sys.stdin.buffer)
        return
    try:
        file = open(os.path.expanduser(path), "rb")  # noqa: PTH111, PTH123, SIM115
    except (OSError, ValueError) as error:  # a ValueError: a null character in the path
        raise UsageError("cases", path, why_unreadable(error)) from error
    with file:
        yield file


def _run_one(asked: PredictAsked, policy: Policy) -> int:
    texts, allowed = Texts(), "is required, unless --cases names a file of cases"
    texts.wrong += [UsageError(one, None, allowed) for one in NEEDED if getattr(asked, one) is None]
    case = read_single_case(**texts.arguments(asked, CaseGiven), beside=texts.wrong)
    task = case.question.workload.model.task
    if note := model_note(str(asked.model), task):  # told once, and before what takes long
        typer.echo(note, err=True)
        case = replace(case, notes=tuple(one for one in case.notes if one != note))
    with (
        watch_of(as_json=asked.json) as watch,
        open_store(asked.db) as store,
        DryRuns(store, policy, watch) as dry_runs,
    ):
        dry_runs.prepare([case])
        finding = dry_runs.of(case)
        classes = () if asked.json else compared_layouts(case.question, case.settings)
        profiles = dry_runs.kept(case, classes)
    answer = answer_of(case, finding)
    if asked.json:
        print_json({**_as_written(asked, case), **answer.as_dict()})
    elif answer.fits is not None:
        from tuner.cli.predictions import show_prediction  # files of cases need none of it

        show_prediction(stdout_console(), case, finding, profiles)
    why = why_not("these settings", answer.fits, answer.trains_wrongly, answer.reason)
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


def _as_written(asked: PredictAsked, case: Case) -> dict[str, Any]:
    """The case as a line of a file would have it: what was written, and the precision."""
    question, workload = case.question, case.question.workload.as_dict()
    left_out = {one for one in workload if getattr(asked, one, 0) is None} - {"precision"}
    limits = {"headroom": case.headroom, "memory_limit_gib": case.memory_limit_gib}
    written = {"headroom": asked.headroom, "memory_limit_gib": asked.memory_limit}
    return {
        "workload": {name: v for name, v in workload.items() if name not in left_out},
        "cluster": question.cluster.as_dict(),
        "framework": question.framework.as_dict(),
        "settings": asked.settings,
        **{name: limits[name] for name, text in written.items() if text is not None},
    }
