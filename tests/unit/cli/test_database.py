"""``tuner db``."""

import sqlite3
from contextlib import closing

import pytest

from tuner.store.migrate import BEFORE_RELEASE, HEAD

OF_LLAMA = ("--model", "llama-3.1-8b", "--cluster", "8xh100-80gb", "--global-batch-size", "64",
            "--sequence-length", "4096", "--fidelity", "predicted")  # fmt: skip


def test_a_backup_is_made_and_never_overwritten(cli, answered, database, tmp_path):
    copy = tmp_path / "copy.db"
    result = cli("db", "backup", str(copy))
    assert result.code == 0
    assert f": copied to {copy}, " in result.out
    assert cli("studies", "show", answered.id, "--db", f"sqlite:///{copy}").code == 0
    before = copy.read_bytes()
    result = cli("db", "backup", str(copy))
    assert (result.code, result.out) == (2, "")
    assert "is there already, and is not overwritten" in result.err
    assert copy.read_bytes() == before
    other = tmp_path / "other.db"
    found = cli("db", "backup", str(other), "--json").json
    size = other.stat().st_size
    assert found == {"db": str(database), "path": str(other), "size_bytes": size}


def test_a_database_is_checked(cli, answered, database):
    assert cli("db", "check").out == f"{database}: in order\n"
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("DROP TABLE measurements")
        connection.commit()
    result = cli("db", "check", "--json")
    assert result.code == 1
    assert result.json["problems"]
    database.unlink()
    assert cli("db", "check").code == 2
    assert not database.exists()


@pytest.mark.parametrize(
    "arguments",
    [("doctor",), ("studies", "list"), ("suggest", *OF_LLAMA),
     ("workers",), ("keys", "list"), ("db", "upgrade")],
    ids=" ".join,
)  # fmt: skip
def test_a_database_of_an_older_schema_is_named_with_what_to_do(cli, database, arguments):
    assert cli("db", "upgrade").code == 0
    with closing(sqlite3.connect(database)) as old:
        old.execute("UPDATE tuner_alembic_version SET version_num = ?", (BEFORE_RELEASE[-1],))
        old.commit()
    result = cli(*arguments)
    assert result.code == 1
    said = result.out if arguments == ("doctor",) else result.err
    (line,) = (one for one in said.splitlines() if str(database) in one)
    assert line.endswith(
        f"was written before the first release of tuner (its schema is {BEFORE_RELEASE[-1]}, this"
        f" version's is {HEAD}) and cannot be upgraded: delete it, or name another with --db; tuner"
        " db backup PATH keeps a copy of it first"
    )
    assert "Traceback" not in result.out + result.err
    assert arguments != ("doctor",) or "measured   yes" in result.out, "it diagnoses all the same"
