"""``tuner db backup``; the other two are tested with what else reads a database."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tuner.core.study import Study


def test_a_backup_is_made_and_said(cli: Any, answered: Study, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    result = cli("db", "backup", str(copy))
    assert result.code == 0
    assert f": copied to {copy}, " in result.out
    url = f"sqlite:///{copy}"
    assert cli("studies", "show", answered.id, "--db", url).code == 0
    assert cli("db", "check", "--db", url).code == 0


def test_a_backup_as_json(cli: Any, answered: Study, database: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    found = cli("db", "backup", str(copy), "--json").json
    assert found == {
        "db": str(database),
        "path": str(copy),
        "size_bytes": copy.stat().st_size,
    }
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT count(*) FROM studies").fetchone() == (1,)


def test_a_second_backup_does_not_overwrite_the_first(
    cli: Any, answered: Study, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.db"
    cli("db", "backup", str(copy))
    before = copy.read_bytes()
    result = cli("db", "backup", str(copy))
    assert (result.code, result.out) == (2, "")
    assert "is there already, and is not overwritten" in result.err
    assert copy.read_bytes() == before


def test_postgresql_is_sent_to_its_own_tool(cli: Any, tmp_path: Path) -> None:
    url = "postgresql://user:secret@host/tuner"
    result = cli("db", "backup", str(tmp_path / "copy"), "--db", url, "--json")
    assert result.code == 2
    assert result.json["error"]["field"] == "db"
    assert "pg_dump --format=custom" in result.err
    assert "secret" not in result.out + result.err
    assert list(tmp_path.glob("copy*")) == []
