"""The schema: made whole, checked, and refused where it is another's or of another version."""

import re
import subprocess
import sys
from collections.abc import Mapping

import pytest
from alembic import command
from sqlalchemy import inspect, text

from tuner.core.study import Limits
from tuner.errors import StoreError, UsageError
from tuner.store import migrate, open_store
from tuner.store.engine import make_engine, parse_url
from tuner.store.tables import VERSION_TABLE


@pytest.fixture
def empty_url(sqlite_url):
    """The address of a database without tables."""
    return sqlite_url


@pytest.fixture
def engine(empty_url):
    parsed = parse_url(empty_url)
    if parsed.drivername == "sqlite":
        migrate.make_file(str(parsed.database))
    made = make_engine(parsed)
    yield made
    made.dispose()


def described(connection):
    """All tables, as the database describes them, constraints and indexes by name."""
    inspector = inspect(connection)
    tables = {
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
        }
        for table in sorted(inspector.get_table_names())
        if table != VERSION_TABLE
    }
    if connection.dialect.name == "sqlite":  # tables that never give an id twice
        kept = "SELECT name FROM sqlite_master WHERE sql LIKE '%AUTOINCREMENT%' ORDER BY name"
        tables["keep ids"] = {"tables": connection.exec_driver_sql(kept).scalars().all()}
    return tables


def named(found):
    return {one["name"]: plain(one) for one in found}


def plain(value):
    if isinstance(value, Mapping):
        return str({key: plain(item) for key, item in value.items()})
    return re.sub(r"\s+", " ", str(value))


def test_migrations_make_what_the_tables_say(empty_url, engine):
    assert migrate.upgrade(empty_url) == list(migrate.REVISIONS)
    assert migrate.upgrade(empty_url) == []
    assert migrate.check(empty_url) == []
    with engine.begin() as connection:
        migrated = described(connection)
        partial = "postgresql" in str(engine.url) and migrated["attempts"]["indexes"]
        migrate.METADATA.drop_all(connection)
        migrate.METADATA.create_all(connection)
        expected = described(connection)
        if partial:  # which the tables leave to the migration
            assert "state" in partial["uq_attempts_running"]
            expected["attempts"]["indexes"]["uq_attempts_running"] = partial["uq_attempts_running"]
        assert migrated == expected


def test_check_tells_what_is_different(empty_url, engine):
    with engine.connect():  # which makes a SQLite file
        [found] = migrate.check(empty_url)
    assert re.match(r"empty: its schema is at none.*: tuner db upgrade brings it there", found)
    migrate.upgrade(empty_url)
    with engine.begin() as connection:  # tables of others beside ours are no difference
        connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32))"))
    assert migrate.check(empty_url) == []
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE studies ADD COLUMN other INTEGER"))
        connection.execute(text("DROP INDEX uq_attempts_running"))
    found = migrate.check(empty_url)
    assert len(found) == 2
    assert any("other" in line for line in found)
    assert any("uq_attempts_running" in line for line in found)


def test_check_finds_rows_that_point_nowhere(sqlite_url, question):
    with pytest.raises(UsageError, match="there is no such database yet"):
        migrate.check(sqlite_url)
    with open_store(sqlite_url) as store:
        store.ask(question, Limits())
        with store.transactions.engine.connect() as connection:
            driver = connection.connection.driver_connection
            driver.execute("PRAGMA foreign_keys = OFF")
            connection.execute(text("DELETE FROM studies"))
            connection.commit()
    assert migrate.check(sqlite_url) == ["damaged: a row of events points to none of studies"]


@pytest.mark.parametrize(
    ("revision", "state", "words"),
    [
        ("9999", "newer", r"written by a newer version of tuner .*9999.* upgrade tuner"),
        ("0001", "old", r"before the first release .*0001.* delete it.* --db; tuner db backup"),
        ("0009", "old", r"before the first release .*0009.* delete it.* --db; tuner db backup"),
    ],
)
def test_a_database_of_another_version_is_refused_and_left_alone(
    empty_url, engine, revision, state, words
):
    migrate.upgrade(empty_url)
    with engine.begin() as connection:
        connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))
        before = described(connection)
    for use in (open_store, migrate.upgrade):
        with pytest.raises(StoreError, match=words) as refused:
            use(empty_url)
        assert "\n" not in str(refused.value)
    [found] = migrate.check(empty_url)
    assert re.match(f"{state}: .*{words}", found)
    with engine.begin() as connection:
        assert described(connection) == before


def test_a_migration_that_fails_leaves_nothing(empty_url, monkeypatch):
    def fails(config, revision):
        upgrade(config, revision)
        raise RuntimeError("stop")

    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", fails)
    with pytest.raises(RuntimeError, match="stop"):
        migrate.upgrade(empty_url)
    monkeypatch.undo()
    assert migrate.upgrade(empty_url) == list(migrate.REVISIONS)


def test_an_open_store_is_ready_unless_it_is_of_another_version(store):
    assert migrate.why_not_ready(store.transactions) == ""
    update = f"UPDATE {VERSION_TABLE} SET version_num = "
    with store.transactions.write() as session:
        session.execute(text(f"{update} '9999'"))
    assert "is at 9999, this version's is" in migrate.why_not_ready(store.transactions)
    with store.transactions.write() as session:
        session.execute(text(f"{update} '{migrate.HEAD}'"))


def test_opening_a_database_at_head_imports_no_alembic(url, study):
    program = (
        "import sys; from tuner.store import open_store; open_store(sys.argv[1]).studies();"
        " print(*sorted({'alembic', 'psutil', 'torch', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", program, url], check=True, capture_output=True)
    assert run.stdout == b"\n"


def test_migrations_are_found_in_an_installed_package(monkeypatch, tmp_path, engine):
    def folder():
        with engine.connect() as connection:
            return migrate.alembic_config(connection).get_main_option("script_location")

    assert str(folder()).endswith("/migrations")
    package = tmp_path / "tuner"
    (package / "migrations").mkdir(parents=True)
    monkeypatch.setattr("tuner.__file__", str(package / "__init__.py"))
    with pytest.raises(StoreError, match="migration scripts are missing"):
        folder()
    (package / "migrations" / "env.py").touch()
    assert folder() == str(package / "migrations")
