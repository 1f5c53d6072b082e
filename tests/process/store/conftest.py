"""The fixtures of the store's tests, on a PostgreSQL server that is started for them."""

from itertools import count

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.postgresql import postgresql_server
from tests.unit.store.conftest import *  # noqa: F403  (the same fixtures, but for the database)
from tuner.store import migrate


@pytest.fixture(scope="session")
def new_postgresql():
    """Makes empty databases in a PostgreSQL server that is started for the tests."""
    with postgresql_server() as server:
        admin = create_engine(server.get_uri(), isolation_level="AUTOCOMMIT")
        numbers = count()

        def make():
            name = f"test_{next(numbers)}"
            with admin.connect() as connection:
                connection.execute(text(f"CREATE DATABASE {name}"))
            return make_url(server.get_uri()).set(database=name).render_as_string(False)

        with admin.connect() as connection:  # nothing here must survive a power cut
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
        yield make
        admin.dispose()


@pytest.fixture(scope="session")
def shared_postgresql(new_postgresql):
    """The address of a database at the schema."""
    url = new_postgresql()
    migrate.upgrade(url)
    return url


@pytest.fixture
def url(shared_postgresql):
    """The address of a database without studies."""
    engine = create_engine(shared_postgresql)
    with engine.begin() as connection:
        tables = "studies, checks, dry_runs, calibrations, workers, keys, audit"
        connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))
    engine.dispose()
    return shared_postgresql
