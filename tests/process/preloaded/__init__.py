"""Programs of ours in forks of a process that has imported the training stack already.

Importing torch and transformers takes a rank three to eight seconds of a core; a fork of a process
that has done so takes none. Tests that judge what ranks find, not how they come to life, start them
so: ``preloaded(argv)`` is the argv of a small client that stands for the program of ``argv``. It
has the program's files, environment, signals and exit code, and the program ends with it. Where
others start the program, ``preloaded.environment`` makes it such a client (``sitecustomize.py``).
All workers of pytest share one such process, which ends with the last of them.
"""

import fcntl
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Preloaded:
    """Starts programs in forks of the process that listens at ``address``."""

    address: Path

    def __call__(self, argv):
        """The client's argv, in the place of ``python ...``."""
        assert argv[0] == sys.executable, argv
        return (argv[0], "-I", "-S", str(HERE / "client.py"), str(self.address), *argv[1:])

    @property
    def environment(self):
        """Variables with which every Python that trains is such a client, whoever starts it."""
        path = (str(HERE / "site"), str(HERE.parents[2]), os.environ.get("PYTHONPATH"))
        return {
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "PRELOADED_PYTHON": str(self.address),
            "TUNER_PASS_ENV": "PRELOADED_PYTHON",
        }


@contextmanager
def preloaded_server(folder):
    """Start the process that forks, unless another worker has.

    What is asked of it before its imports are done waits.

    Args:
        folder: for its files, the same for all workers.
    """
    folder.mkdir(exist_ok=True)
    address = folder / "socket"
    # it ends when nobody holds this lock any more
    with (folder / "users").open("w") as users:
        fcntl.flock(users, fcntl.LOCK_SH)
        with (folder / "starting").open("w") as starting, (folder / "log").open("a") as log:
            fcntl.flock(starting, fcntl.LOCK_EX)
            if not address.exists():
                command = [sys.executable, "-P", str(HERE / "server.py"), str(folder)]
                subprocess.run(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True
                )
                until = time.monotonic() + 60
                while not address.exists():
                    assert time.monotonic() < until, (folder / "log").read_text()
                    time.sleep(0.01)
        yield Preloaded(address)
