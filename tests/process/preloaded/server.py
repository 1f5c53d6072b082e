"""Forks programs of ours off a process that has their imports: ``server.py FOLDER``.

Each client (``client.py``) sends what ``python`` would be started with. A fork waits for its
program, which is a fork of that one, and ends it when the client is gone. The process that was
started returns at once; the one that serves ends when nobody holds the lock on ``FOLDER/users``.
Programs compute with one thread, whatever is asked for: a thread that waits for another one's
turn on a busy machine takes more time of a core than these small models do.
"""

import atexit
import faulthandler
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import socketserver
import struct
import sys
from contextlib import suppress
from fcntl import F_DUPFD, LOCK_EX, LOCK_NB, fcntl, flock
from pathlib import Path
from types import ModuleType

MODULES = (
    *(["peft"] if importlib.util.find_spec("peft") else []),
    "transformers.models.llama.modeling_llama",
    "transformers.models.mixtral.modeling_mixtral",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.trainer",
    "accelerate.commands.accelerate_cli",
    "torch.distributed.device_mesh",
    "torch.distributed.run",
    "workers.probe.series",
    "workers.probe.run",
    "workers.probe.calibrate",
    "workers.probe.dry.server",
)
MOST_FDS = 64
"""A client's, numbered below it."""


class Server(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Handles each client in a fork."""

    max_children = 100

    def __init__(self, folder):
        self.users = (folder / "users").open()
        super().__init__(str(folder / "socket"), Handler)

    def service_actions(self):
        """Reap, and end with the tests."""
        super().service_actions()
        with suppress(BlockingIOError):
            flock(self.users, LOCK_EX | LOCK_NB)
            os._exit(0)


class Handler(socketserver.BaseRequestHandler):
    """One program."""

    def handle(self):
        """Run it, and tell its exit code."""
        head, fds, *_ = socket.recv_fds(self.request, 4, MOST_FDS)
        (size,) = struct.unpack("I", head)
        asked = json.loads(self.request.recv(size, socket.MSG_WAITALL))
        program = os.fork()
        if program == 0:
            self.request.close()
            become(asked, fds)
        self.request.sendall(struct.pack("i", program))
        for fd in fds:
            os.close(fd)
        ends = os.pidfd_open(program)
        found, _, _ = select.select([ends, self.request], [], [])
        if ends not in found:  # the client is gone
            os.kill(program, signal.SIGKILL)
            return
        _, status = os.waitpid(program, 0)
        self.request.sendall(struct.pack("i", os.waitstatus_to_exitcode(status)))


def become(asked, fds):
    """Be the program that a client asks for."""
    code = 1
    try:
        take(dict(zip(asked["fds"], fds, strict=True)))
        os.chdir(asked["directory"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        if os.environ.get("PYTHONFAULTHANDLER"):
            faulthandler.enable()
        run(asked["argv"])
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())  # a program's own, where it has one, as Python does
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def take(wanted):
    """Have files under the numbers that the client has them under."""
    high = {number: fcntl(fd, F_DUPFD, MOST_FDS) for number, fd in wanted.items()}
    for number, fd in high.items():
        os.dup2(fd, number)
    for other in {*range(2 * MOST_FDS)} - {*wanted}:
        with suppress(OSError):
            os.close(other)


def run(argv):
    """As ``python`` with these arguments."""
    argv = argv[1:] if argv[0] in ("-P", "-u") else argv
    if argv[0] == "-m":
        sys.argv = argv[1:]
        runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
    elif argv[0] == "-c":
        sys.argv = ["-c", *argv[2:]]
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(argv[1], "<string>", "exec"), vars(main))
    else:
        sys.argv = argv
        sys.path.insert(0, os.path.dirname(argv[0]))  # noqa: PTH120
        runpy.run_path(argv[0], run_name="__main__")


def main():
    """Listen, import, and serve."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "USE_HUB_KERNELS": "NO"}
    os.environ |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    if os.fork():
        os._exit(0)
    os.setsid()
    with Server(Path(sys.argv[1])) as server:
        for name in MODULES:
            importlib.import_module(name)
        server.serve_forever()


if __name__ == "__main__":
    main()
