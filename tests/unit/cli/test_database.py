"""``tuner db``."""

import sqlite3
from contextlib import closing


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
