"""A study as a storage that Optuna and its dashboard open.

It is a copy for people to look at: nothing is ever read back from it. Optuna is slow to import, so
this module is imported where a study is exported.
"""

import json
import sqlite3
from contextlib import closing
from copy import copy
from dataclasses import replace
from datetime import datetime
from math import exp, isnan
from pathlib import Path

import optuna
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial

from tuner.core.measurement import PROBED
from tuner.core.quantity import Provenance
from tuner.core.study import ProbeState, Study, by_settings
from tuner.errors import UsageError
from tuner.planner.knowledge import learned
from tuner.planner.search import Search
from tuner.search.engine import frozen_trial, quiet
from tuner.search.sampler import parameters_of
from tuner.search.trials import Result

# Some of the tables that every storage of Optuna's has.
OPTUNAS_TABLES = frozenset({"studies", "trials", "version_info"})


def write_storage(study: Study, path: Path) -> int:
    """Writes a study into an SQLite storage, in the place of an earlier copy of it.

    Args:
        study: with its probes.
        path: of the storage, which may hold other studies; made if it is not there.

    Returns:
        The number of trials.
    """
    _check_storage(path)
    trials = _trials(study)
    with quiet():
        storage = RDBStorage(f"sqlite:///{path}")
        try:
            if study.id in optuna.get_all_study_names(storage):
                optuna.delete_study(study_name=study.id, storage=storage)
            copied = optuna.create_study(storage=storage, study_name=study.id)
            copied.set_metric_names(["seconds of a step"])
            copied.set_user_attr("question", json.dumps(study.question.as_dict()))
            copied.set_user_attr("limits", json.dumps(study.limits.as_dict()))
            copied.add_trials(trials)
        except optuna.exceptions.StorageInternalError as error:
            raise UsageError("into", str(path), f"cannot be written: {error}") from error
        finally:
            storage.remove_session()
            storage.engine.dispose()
    return len(trials)


def _check_storage(path: Path) -> None:
    """Refuse what cannot be written, and a file that is no storage: above all our own database."""
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            rows = database.execute("SELECT name FROM sqlite_master").fetchall()
            database.execute("ROLLBACK")
    except sqlite3.Error as error:
        raise UsageError("into", str(path), f"cannot be written as a storage: {error}") from error
    names = {name for (name,) in rows}
    if names and not names >= OPTUNAS_TABLES:
        raise UsageError("into", str(path), "is a database, and no storage of Optuna's")


def _trials(study: Study) -> list[FrozenTrial]:
    """The study's trials as they were done, with what its probes say as attributes."""
    search = Search(learned(study))
    prior, asked, question = search.prior, study.limits.fidelity, study.question
    # Of a script whose model is not named the prior is an order by rules of thumb: no seconds.
    by_arithmetic = question.script is None or question.workload.has_arithmetic
    probes = by_settings(p for p in study.in_order if p.state is ProbeState.DONE)
    found = []
    for trial in search.trials:
        log_seconds = prior.log_seconds[trial.index]
        is_dry = asked not in PROBED and trial.result is Result.RAN and by_arithmetic
        if is_dry and not isnan(log_seconds):
            # A dry run or a rehearsal takes no time: its seconds are the cost model's.
            trial = replace(trial, seconds=exp(log_seconds))
        made = copy(frozen_trial(parameters_of(prior.settings), trial, prior.limit_bytes))
        settings = prior.settings[trial.index]
        own = [
            p for p in probes.get(settings, ()) if trial.indirect != (p.request.fidelity is asked)
        ]
        made.user_attrs = {
            "configuration": str(settings),
            "fidelity": ", ".join(sorted({str(p.request.fidelity) for p in own})),
            "outcome": ", ".join(str(p.measurement.outcome) for p in own if p.measurement),
            "probes": [probe.id for probe in own],
            **made.user_attrs,
        }
        if is_dry and not isnan(log_seconds):
            made.user_attrs["seconds_are"] = str(Provenance.PREDICTED)
        if own and own[-1].finished_at:
            # Optuna keeps moments without a zone; they are UTC.
            ended = datetime.fromisoformat(own[-1].finished_at).replace(tzinfo=None)
            made.datetime_start = made.datetime_complete = ended
        found.append(made)
    return sorted(found, key=lambda one: one.datetime_complete or datetime.max)
