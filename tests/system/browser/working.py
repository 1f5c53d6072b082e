"""A real worker beside a service."""

import subprocess
import sys
from contextlib import contextmanager

from tests.system.chaos.processes import environment

PROGRAM = "import sys; from tuner.cli import main; sys.exit(main())"
END_S = 120


@contextmanager
def working(database, folder):
    """A worker of the database, with its files in the folder; it ends as SIGTERM has it end."""
    argv = [sys.executable, "-P", "-c", PROGRAM, "worker", "--db", database]
    with (folder / "worker.log").open("w") as log:
        process = subprocess.Popen(argv, cwd=folder, env=environment(folder), stderr=log)
        try:
            yield
        finally:
            process.terminate()
            code = process.wait(END_S)
    assert code == 0, (folder / "worker.log").read_text()
