"""The command that becomes the service."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest

from tuner.environment import passed
from tuner.store.migrate import BEFORE_RELEASE

SERVICE = [sys.executable, "-P", "-m", "api"]


class BecameError(Exception):
    """This process would be another now."""


@pytest.fixture
def became(monkeypatch, environment):
    """What the process became, instead of becoming it."""
    commands = []

    def become(path, argv):
        assert path == argv[0]
        commands.append(argv)
        raise BecameError

    monkeypatch.setattr("tuner.cli.serve.os.execv", become)
    return commands


def test_options_are_handed_on(cli, became):
    with pytest.raises(BecameError):
        cli("serve", "--host", "0.0.0.0", "--port", "80", "--require-keys", "--json")
    (argv,) = became
    assert argv == [*SERVICE, "--host", "0.0.0.0", "--port", "80", "--require-keys", "--json"]
    with pytest.raises(BecameError):
        cli("serve", "--no-require-keys")
    assert became[1] == [*SERVICE, "--no-require-keys"]


def test_variables_that_ranks_inherit_are_handed_on(cli, became, monkeypatch):
    monkeypatch.setenv("TUNER_PASS_ENV", "SITE_A")
    with pytest.raises(BecameError):
        cli("worker", "--pass-env", "HF_TOKEN", "--pass-env", "NOT_*")
    known = {"SITE_A": "1", "HF_TOKEN": "2", "NOT_A": "3", "NOT_MY_KEY": "4", "OTHER": "5"}
    ranks = passed({**os.environ, **known})
    assert {name: ranks[name] for name in known.keys() & ranks.keys()} == {
        "SITE_A": "1", "HF_TOKEN": "2", "NOT_A": "3",
    }  # fmt: skip


def test_a_database_with_its_password_is_no_argument(cli, became, monkeypatch):
    monkeypatch.setenv("TUNER_DB", "sqlite:///other.db")
    with pytest.raises(BecameError):
        cli("serve", "--db", "postgresql://user:secret@host/tuner")
    (argv,) = became
    assert "secret" not in str(argv)
    assert os.environ["TUNER_DB"] == "postgresql://user:secret@host/tuner"


def test_a_database_of_an_older_schema_is_named_and_nothing_is_served(cli, tmp_path):
    database = tmp_path / "old.db"
    assert cli("db", "upgrade", "--db", f"sqlite:///{database}").code == 0
    with closing(sqlite3.connect(database)) as old:
        old.execute("UPDATE tuner_alembic_version SET version_num = ?", (BEFORE_RELEASE[-1],))
        old.commit()
    main = "from tuner.cli import main; main()"
    command = [sys.executable, "-P", "-c", main, "serve", "--port", "0", "--db"]
    result = subprocess.run(
        [*command, f"sqlite:///{database}"], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 1
    assert f"{database} was written before the first release" in result.stderr
    assert "Traceback" not in result.stderr
