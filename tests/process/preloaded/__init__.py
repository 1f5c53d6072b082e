"""Programs of ours in forks of a process that has imported the training stack already.

Importing torch and transformers takes a rank three seconds of a core; a fork of a process that
has done so takes none. Tests that judge what ranks find, not how they come to life, start them
so: ``start(argv)`` is the argv of a small client that stands for the program of ``argv``. It has
the program's files, environment and exit code, and the program ends with it. All workers of
pytest share one such process, which ends with the last of them.
"""

import fcntl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent

Preloaded = Callable[[Sequence[str]], tuple[str, ...]]


@contextmanager
def preloaded_server(folder: Path) -> Iterator[Preloaded]:
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
        yield lambda argv: _client_argv(address, argv)


def _client_argv(address: Path, argv: Sequence[str]) -> tuple[str, ...]:
    """The client's, in the place of ``python ...``."""
    assert argv[0] == sys.executable, argv
    return (argv[0], "-I", "-S", str(HERE / "client.py"), str(address), *argv[1:])
