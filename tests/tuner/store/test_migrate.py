"""Migrations: what they make is what the tables say, and nobody collides while migrating."""

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect, text

from tuner.errors import StoreError, UsageError
from tuner.store import migrate, open_store
from tuner.store.engine import make_engine, parse_url
from tuner.store.page_tables import METADATA
from tuner.store.tables import VERSION_TABLE
from tuner.study import Question, Terms

TABLES = {
    "studies",
    "probes",
    "attempts",
    "measurements",
    "events",
    "dry_runs",
    "guards",
    "calibrations",
    "devices",
    "requests",
    "workers",
    "keys",
    "audit",
    "headlines",
    "sessions",
}

ON_ONE_SERVER = pytest.mark.xdist_group("postgresql")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=ON_ONE_SERVER)])
def empty_url(request: pytest.FixtureRequest) -> str:
    """The address of a database without tables, once for each kind."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    return str(request.getfixturevalue("new_postgresql")())


@pytest.fixture
def engine(empty_url: str) -> Iterator[Engine]:
    parsed = parse_url(empty_url)
    migrate.make_file(parsed.database if parsed.drivername == "sqlite" else None)
    made = make_engine(parsed)
    yield made
    made.dispose()


def described(connection: Connection) -> dict[str, object]:
    """All tables, as the database describes them, constraints and indexes by name."""
    inspector = inspect(connection)
    return {
        table: {
            "columns": {
                c["name"]: (str(c["type"]), c["nullable"], c["default"])
                for c in inspector.get_columns(table)
            },
            "key": inspector.get_pk_constraint(table),
            "unique": named(inspector.get_unique_constraints(table)),
            "foreign": named(inspector.get_foreign_keys(table)),
            "indexes": named(inspector.get_indexes(table)),
            "checks": named(inspector.get_check_constraints(table)),
            "options": inspector.get_table_options(table),
        }
        for table in sorted(inspector.get_table_names())
        if table != VERSION_TABLE
    }


def named(found: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {one["name"]: plain(one) for one in found}


def plain(value: object) -> str:
    if isinstance(value, Mapping):
        return str({key: plain(item) for key, item in value.items()})
    return re.sub(r"\s+", " ", str(value))


def autoincrement(connection: Connection) -> list[str]:
    """SQLite's tables that never give an id twice."""
    if connection.dialect.name != "sqlite":
        return []
    which = "SELECT name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%' ORDER BY name"
    return list(connection.exec_driver_sql(which).scalars())


def test_migrations_make_what_the_tables_say(engine: Engine) -> None:
    with migrate.migration_lock(engine) as connection:
        command.upgrade(migrate.alembic_config(connection), "head")
    with engine.begin() as connection:
        migrated = described(connection), autoincrement(connection)
        METADATA.drop_all(connection)
        METADATA.create_all(connection)
        assert migrated == (described(connection), autoincrement(connection))
    assert set(migrated[0]) == TABLES


def test_down_and_up_again(engine: Engine) -> None:
    seen = []
    for _ in range(2):
        with migrate.migration_lock(engine) as connection:
            command.upgrade(migrate.alembic_config(connection), "head")
            seen.append(described(connection))
        with migrate.migration_lock(engine) as connection:
            command.downgrade(migrate.alembic_config(connection), "base")
            assert described(connection) == {}
    assert seen[0] == seen[1]


def test_the_known_revisions_are_those_of_the_scripts(engine: Engine) -> None:
    with engine.connect() as connection:
        scripts = ScriptDirectory.from_config(migrate.alembic_config(connection))
    assert scripts.get_heads() == [migrate.HEAD]
    found = [script.revision for script in scripts.walk_revisions()]
    assert tuple(reversed(found)) == migrate.REVISIONS


def test_upgrade_brings_to_head_once(empty_url: str) -> None:
    assert migrate.upgrade(empty_url) == list(migrate.REVISIONS)
    assert migrate.upgrade(empty_url) == []
    assert migrate.check(empty_url) == []
    open_store(empty_url).close()


def test_check_tells_what_is_different(empty_url: str, engine: Engine) -> None:
    migrate.upgrade(empty_url)
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE studies ADD COLUMN other INTEGER"))
        connection.execute(text("DROP INDEX uq_attempts_running"))
    found = migrate.check(empty_url)
    assert len(found) == 2
    assert any("other" in line for line in found)
    assert any("uq_attempts_running" in line for line in found)


def test_tables_of_others_beside_ours_are_no_difference(empty_url: str, engine: Engine) -> None:
    migrate.upgrade(empty_url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
    assert migrate.check(empty_url) == []
    open_store(empty_url).close()


@ON_ONE_SERVER
def test_check_tells_that_a_database_is_not_migrated(new_postgresql: object) -> None:
    url = new_postgresql()  # type: ignore[operator]
    assert migrate.check(url) == [f"empty: its schema is at none, this version's is {migrate.HEAD}"]
    with pytest.raises(StoreError, match="run tuner db upgrade"):
        open_store(url)
    migrate.upgrade(url)
    open_store(url).close()


def test_check_of_no_database_is_refused(sqlite_url: str) -> None:
    with pytest.raises(UsageError, match="there is no such database yet"):
        migrate.check(sqlite_url)


def test_check_finds_rows_that_point_nowhere(sqlite_url: str, question: Question) -> None:
    with open_store(sqlite_url) as store:
        store.ask(question, Terms())
    engine = make_engine(parse_url(sqlite_url))
    with engine.connect() as connection:
        migrate._foreign_keys(connection, on=False)
        connection.execute(text("DELETE FROM studies"))
        connection.commit()
    engine.dispose()
    assert migrate.check(sqlite_url) == ["damaged: a row of events points to none of studies"]


def test_a_database_of_a_newer_version_is_refused(empty_url: str, engine: Engine) -> None:
    migrate.upgrade(empty_url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    for use in (open_store, migrate.upgrade):
        with pytest.raises(StoreError, match=r"written by a newer version of tuner .*9999"):
            use(empty_url)
    newer = f"newer: its schema is at 9999, this version's is {migrate.HEAD}"
    assert migrate.check(empty_url) == [newer]


def test_tables_of_another_program_are_left_alone(empty_url: str, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE studies (study_id INTEGER)"))
    for use in (open_store, migrate.upgrade):
        with pytest.raises(UsageError, match="is a database of another program"):
            use(empty_url)


def test_a_migration_that_fails_leaves_nothing(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(config: Config, revision: str) -> None:
        upgrade(config, revision)
        raise RuntimeError("stop")

    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", fails)
    with pytest.raises(RuntimeError, match="stop"):
        migrate.upgrade(empty_url)
    monkeypatch.undo()
    assert migrate.upgrade(empty_url) == list(migrate.REVISIONS)


def test_a_migration_may_fill_a_table_anew(sqlite_url: str, question: Question) -> None:
    """SQLite changes a table so, and rows that point to it must stay."""
    with open_store(sqlite_url) as store:
        study = store.ask(question, Terms())
        with migrate.migration_lock(store.transactions.engine) as connection:
            connection.execute(text("CREATE TABLE anew AS SELECT * FROM studies"))
            connection.execute(text("DROP TABLE studies"))
            connection.execute(text("ALTER TABLE anew RENAME TO studies"))
            connection.execute(text("CREATE UNIQUE INDEX key ON studies (id)"))
        assert len(store.events(study.id)) == 1
        with store.transactions.engine.connect() as connection:
            assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1


STUDY_COLUMNS = (
    "id, identity, model_name, cluster_name, question, terms, state, reason, revision, seed,"
    " probes_before, worker, worker_seen_at, created_at, asked_at"
)
ATTEMPT_COLUMNS = (
    "id, probe_id, number, state, outcome, detail, worker, started_at, lease_until, ended_at"
)
"""Of the first schema, which has no others."""
OF_THE_FIRST_SCHEMA = (
    f"INSERT INTO studies ({STUDY_COLUMNS})"
    " VALUES ('st-1', 'abc', 'm', 'c', '{}', '{}', 'done', '', 3, 1, 0, NULL, NULL,"
    " '2026-01-01', '2026-01-01')",
    "INSERT INTO probes VALUES (7, 'st-1', 'a', 'measured', 0, '[]', NULL, 'done', 'ok',"
    " '2026-01-01', '2026-01-01')",
    f"INSERT INTO attempts ({ATTEMPT_COLUMNS})"
    " VALUES (5, 7, 1, 'done', 'ok', '', '{}', '2026-01-01', '2026-01-01',"
    " '2026-01-01')",
    "INSERT INTO measurements VALUES (7, 5, 'ok', 1, 2, 3, 0.5, 9.0, 1.0, 2.0, '{}', '2026-01-01')",
    "INSERT INTO probes VALUES (9, 'st-1', 'b', 'measured', 0, '[]', NULL, 'queued', NULL,"
    " '2026-01-01', NULL)",
    "DELETE FROM probes WHERE id = 9",
)
"""A study with a probe that was run, and the trace of one that was withdrawn."""


def upgraded_to(engine: Engine, revision: str) -> None:
    with migrate.migration_lock(engine) as connection:
        command.upgrade(migrate.alembic_config(connection), revision)


def rows_of(connection: Connection) -> dict[str, list[Any]]:
    of_first = {
        "studies": STUDY_COLUMNS,
        "probes": "*",
        "attempts": ATTEMPT_COLUMNS,
        "measurements": "*",
    }
    found = {
        name: connection.execute(text(f"SELECT {columns} FROM {name}")).all()
        for name, columns in of_first.items()
    }
    return {name: [tuple(row) for row in rows] for name, rows in found.items()}


def test_a_database_of_the_first_schema_keeps_its_data(empty_url: str, engine: Engine) -> None:
    upgraded_to(engine, "0001")
    with engine.begin() as connection:
        for statement in OF_THE_FIRST_SCHEMA:
            connection.execute(text(statement))
        before = rows_of(connection)
    assert migrate.upgrade(empty_url) == list(migrate.REVISIONS[1:])
    assert migrate.check(empty_url) == []
    with engine.begin() as connection:
        assert rows_of(connection) == before
        predicted = (
            "INSERT INTO probes (study_id, settings, fidelity, repetition, accumulation_counts,"
            " state, created_at) VALUES ('st-1', 'a', 'predicted', 0, '[]', 'queued',"
            " '2026-01-01') RETURNING id"
        )
        if connection.dialect.name == "sqlite":  # an id is never given twice
            assert connection.execute(text(predicted)).scalar() == 10
        else:
            connection.execute(text("SELECT setval(pg_get_serial_sequence('probes', 'id'), 9)"))
            connection.execute(text(predicted))


def test_studies_of_earlier_versions_are_found_by_their_kind(
    empty_url: str, engine: Engine, question: Question
) -> None:
    """Also one whose question this version does not know, as of none."""
    upgraded_to(engine, "0006")
    insert = text(
        f"INSERT INTO studies ({STUDY_COLUMNS}) VALUES (:id, :id, 'm', 'c', :question, '{{}}',"
        " 'done', '', 3, 1, 0, NULL, NULL, '2026-01-01', '2026-01-01')"
    )
    with engine.begin() as connection:
        for name, values in (("st-1", question.as_dict()), ("st-2", {"of": "another version"})):
            connection.execute(insert, {"id": name, "question": json.dumps(values)})
    migrate.upgrade(empty_url)
    with engine.begin() as connection:
        found = connection.execute(text("SELECT id, kind FROM studies ORDER BY id")).all()
    assert [tuple(row) for row in found] == [("st-1", question.kind), ("st-2", "")]


def test_going_back_drops_what_earlier_versions_do_not_know(empty_url: str, engine: Engine) -> None:
    upgraded_to(engine, "head")
    with engine.begin() as connection:
        for statement in OF_THE_FIRST_SCHEMA:
            connection.execute(text(statement))
        before = rows_of(connection)
        connection.execute(
            text(
                "INSERT INTO probes VALUES (11, 'st-1', 'a', 'predicted', 0, '[]', NULL, 'done',"
                " 'ok', '2026-01-01', '2026-01-01')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO probes VALUES (12, 'st-1', 'a', 'emulated', 0, '[]', NULL, 'queued',"
                " NULL, '2026-01-01', NULL)"
            )
        )
        connection.execute(
            text(
                "INSERT INTO probes VALUES (13, 'st-1', 'b', 'measured', 0, '[]', NULL, 'done',"
                " 'stopped_early', '2026-01-01', '2026-01-01')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO measurements VALUES (13, NULL, 'stopped_early', 1, 2, 3, NULL, NULL,"
                " 1.0, 0.0, '{}', '2026-01-01')"
            )
        )
        connection.execute(
            text(
                "INSERT INTO measurements VALUES (11, NULL, 'ok', 1, 2, 3, NULL, NULL, 1.0, 0.0,"
                " '{}', '2026-01-01')"
            )
        )
    with migrate.migration_lock(engine) as connection:
        command.downgrade(migrate.alembic_config(connection), "0001")
    with engine.begin() as connection:
        assert rows_of(connection) == before
    assert migrate.upgrade(empty_url) == list(migrate.REVISIONS[1:])


OPEN_AND_ASK_NOTHING = """
import sys
from tuner.store import open_store
print("ready", flush=True)
sys.stdin.readline()
with open_store(sys.argv[1]) as store:
    print(len(store.studies()))
"""


def test_processes_that_open_a_new_database_at_once_do_not_collide(sqlite_url: str) -> None:
    arguments = [sys.executable, "-c", OPEN_AND_ASK_NOTHING, sqlite_url]
    pipe = subprocess.PIPE
    processes = [
        subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        for _ in range(4)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    results = [(*process.communicate(timeout=240), process.returncode) for process in processes]
    assert results == [("0\n", "", 0)] * 4
    assert migrate.check(sqlite_url) == []


def test_opening_a_database_at_head_imports_no_alembic(sqlite_url: str) -> None:
    open_store(sqlite_url).close()
    program = (
        "import sys; from tuner.store import open_store; open_store(sys.argv[1]).studies();"
        " print(*sorted({'alembic', 'psycopg', 'psutil', 'torch', 'numpy'} & set(sys.modules)))"
    )
    arguments = [sys.executable, "-c", program, sqlite_url]
    run = subprocess.run(arguments, check=True, capture_output=True, text=True)
    assert run.stdout == "\n"


def test_migrations_are_found_in_an_installed_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    checkout = migrate.migrations_folder()
    assert checkout.name == "migrations"
    package = tmp_path / "tuner"
    (package / "migrations").mkdir(parents=True)
    monkeypatch.setattr("tuner.__file__", str(package / "__init__.py"))
    with pytest.raises(StoreError, match="migration scripts are missing"):
        migrate.migrations_folder()
    (package / "migrations" / "env.py").touch()
    assert migrate.migrations_folder() == package / "migrations"
