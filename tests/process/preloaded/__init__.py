"""Programs of ours in forks of a process that has imported the training stack already.

Importing torch and transformers takes a rank three seconds of a core; a fork of a process that
has done so takes none. Tests that judge what ranks find, not how they come to life, start them
so: ``start(argv)`` is the argv of a small client that stands for the program of ``argv``. It has
the program's files, environment and exit code, and the program ends with it.
"""

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
    """Start the process that forks; what is asked of it before its imports are done waits."""
    address = folder / "socket"
    command = [sys.executable, "-P", str(HERE / "server.py"), str(address)]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as server,
    ):
        while not address.exists():
            assert server.poll() is None, "it ended at its start"
            time.sleep(0.01)
        yield lambda argv: _client_argv(address, argv)
        server.kill()


def _client_argv(address: Path, argv: Sequence[str]) -> tuple[str, ...]:
    """The client's, in the place of ``python ...``."""
    assert argv[0] == sys.executable, argv
    return (argv[0], "-I", "-S", str(HERE / "client.py"), str(address), *argv[1:])
