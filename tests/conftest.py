"""What tests of several packages share."""

import os
import shutil
import zlib
from pathlib import Path

import pytest
from hypothesis import settings

from tests import profiles
from tests.process.preloaded import preloaded_server
from tuner.store import engine, open_store

profiles.register()

LONGEST_ID = 80
"""Characters of a parameter in a test's name: some are a megabyte."""


def pytest_sessionstart():
    engine.DURABLY = "NORMAL"  # no power cut is survived, and no test waits for the disk
    if settings.get_current_profile_name() == profiles.SAME:
        profiles.draw_no_constants()


def pytest_make_parametrize_id(val, argname):
    """Short names for what is long: its beginning would not tell one from another."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_ID:
        raw = val.encode(errors="replace") if isinstance(val, str) else val
        return f"{argname}-of-{len(val)}-{zlib.crc32(raw):08x}"
    return None


@pytest.fixture(scope="session")
def make_database(tmp_path_factory):
    """Makes an empty SQLite database at this version's schema: its address.

    It is a copy of one file: to migrate a new one takes longer than most tests do.
    """
    made = tmp_path_factory.mktemp("database") / "empty.db"
    open_store(f"sqlite:///{made}").close()

    def make(path: Path) -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made, path)
        return f"sqlite:///{path}"

    return make


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory):
    """Runs programs in forks of a process that has torch: tests.process.preloaded."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with preloaded_server(folder / "preloaded") as start:
        yield start


@pytest.fixture
def preloading(preloaded, monkeypatch):
    """Has all that a test starts, and that trains, be such forks."""
    for name, value in preloaded.environment.items():
        monkeypatch.setenv(name, value)
