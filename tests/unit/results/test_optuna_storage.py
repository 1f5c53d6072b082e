"""A study's copy is a study that Optuna opens, and no other file is written over."""

import sqlite3
from contextlib import closing

import pytest

from tests.unit.opened import opened_by_optuna
from tests.unit.planner.conftest import make_ok, make_oom
from tests.unit.results.studies import MIB, gpu_question, measured_study
from tuner.errors import UsageError
from tuner.results.optuna_storage import write_storage
from tuner.space import enumerate_space


def test_optuna_opens_an_exported_study(tmp_path):
    question = gpu_question()
    one, two, three = enumerate_space(question).legal[:3]
    rows = [(one, make_ok(2.0, 500 * MIB, count=one.gradient_accumulation_steps)),
            (two, make_ok(1.0, 500 * MIB, count=two.gradient_accumulation_steps)),
            (three, make_oom(9000 * MIB, 4096 * MIB))]  # fmt: skip
    study, path = measured_study(rows, question), tmp_path / "storage.db"
    for _ in range(2):  # in the place of the first copy
        assert write_storage(study, path) == 3
    with opened_by_optuna(study.id, path) as copy:
        assert [trial.user_attrs["probes"] for trial in copy.trials] == [[1], [2], [3]]
        assert copy.best_trial.user_attrs["configuration"] == str(two)
        assert {"sharding", "micro_batch_size"} <= copy.best_params.keys()


def test_another_database_is_left_alone(tmp_path):
    path = tmp_path / "tuner.db"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE studies (id)")
    with pytest.raises(UsageError, match="no storage of Optuna's"):
        write_storage(measured_study([], gpu_question()), path)
