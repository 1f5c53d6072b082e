"""Stands for a program that runs in a fork: ``client.py SOCKET ARGUMENTS OF PYTHON``."""

import json
import os
import signal
import socket
import struct
import sys

MOST_FDS = 64


def is_open(fd):
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def main():
    """The program's exit code; where a signal ended it, the same one ends this process.

    Signals to this process that ask for its end are handed on.
    """
    fds = [fd for fd in range(MOST_FDS) if is_open(fd)]
    asked = {"argv": sys.argv[2:], "environment": {**os.environ}, "directory": os.getcwd()}  # noqa: PTH109
    message = json.dumps({**asked, "fds": fds}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(sys.argv[1])
        socket.send_fds(server, [struct.pack("I", len(message))], fds)
        server.sendall(message)
        (program,) = struct.unpack("i", server.recv(4, socket.MSG_WAITALL))
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda number, _: os.kill(program, number))
        (code,) = struct.unpack("i", server.recv(4, socket.MSG_WAITALL))
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if code != -signal.SIGKILL else None
        os.kill(os.getpid(), -code)
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
