"""Databases that can be ended and started again, and processes that are gone after each test."""

import pytest

from tests.system.chaos.databases import SqliteFile, postgresql


@pytest.fixture
def server():
    """A PostgreSQL server of the test's own, with an empty database at the schema."""
    with postgresql() as found:
        yield found


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=pytest.mark.xdist_group("postgresql"))]
)
def database(request, tmp_path):
    """An empty database, once of each kind."""
    if request.param == "sqlite":
        return SqliteFile(tmp_path)
    return request.getfixturevalue("server")


@pytest.fixture
def join():
    """Starts a process; none is left after the test."""
    joined = []

    def start(member):
        joined.append(member)
        member.start()
        return member

    yield start
    for member in joined:
        member.kill()
