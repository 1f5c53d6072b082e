"""Runs the launcher of a user's script, and ends with all that it has started.

    python -P -m workers.scripts.host --out DIR --watch-fd N --silence-s S

``DIR/host.json`` has the command, its environment and its folder. The exit code is the launcher's.
Whoever supervises this writes a byte every second: when the pipe is closed or silent, or SIGTERM
comes, the launcher is asked to end, and what is left of it and its ranks is killed. What they print
goes to this process's own output, a file, of which beginning and end are kept.
"""

import argparse
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from workers.measuring.files import write_json
from workers.probe.watch import SUPERVISOR_GONE
from workers.scripts.log import BoundedLog, Copier
from workers.scripts.processes import end_all

HOST = "host.json"
"""What is to be run."""
POLL_S = 0.05
"""Between two looks at the launcher."""
TERM_S = 1.0
"""Seconds that the launcher gets to end by itself, and to remove its files."""


def write_order(
    folder: Path, argv: tuple[str, ...], environment: dict[str, str], where: str
) -> None:
    """Say what the host of a probe runs.

    Args:
        folder: of the probe.
        argv: the launcher's command.
        environment: all of its environment.
        where: folder that it is run in.
    """
    order = {"argv": argv, "environment": environment, "folder": where}
    write_json(folder / HOST, order)


class _Watch:
    """Whether the supervisor is there, and wants the launcher to go on."""

    def __init__(self, fd: int, silence_s: float) -> None:
        self._fd, self._silence_s = fd, silence_s
        self._heard = time.monotonic()
        self._stopped = False
        self._news = select.poll()
        self._news.register(fd, select.POLLIN)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal has come."""
        return self._stopped

    def wait(self, seconds: float) -> bool:
        """Wait for so long; whether to go on."""
        if self._news.poll(seconds * 1000):
            self._heard = time.monotonic()
            if not os.read(self._fd, 4096):
                return False
        return not self._stopped and time.monotonic() - self._heard < self._silence_s

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopped = True


def main() -> int:
    """Run the launcher; its exit code."""
    options = _options()
    watch = _Watch(options.watch_fd, options.silence_s)
    path = options.out / HOST
    order = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()  # secrets of the user's may be in the environment
    copier = Copier(BoundedLog(sys.stdout.fileno()))
    try:
        launcher = subprocess.Popen(
            order["argv"],
            cwd=order["folder"],
            env=order["environment"],
            stdin=subprocess.DEVNULL,
            stdout=copier.pipe,
            stderr=copier.pipe,
        )
        code = _supervised(launcher, watch)
    finally:
        end_all(options.out)
        copier.close()
    return code


def _supervised(launcher: "subprocess.Popen[Any]", watch: _Watch) -> int:
    while (code := launcher.poll()) is None:
        if not watch.wait(POLL_S):
            launcher.terminate()
            try:
                launcher.wait(TERM_S)
            except subprocess.TimeoutExpired:
                launcher.kill()
                launcher.wait()
            return 128 + signal.SIGTERM if watch.is_stopped else SUPERVISOR_GONE
    return code if code >= 0 else 128 - code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.scripts.host", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the probe's folder")
    parser.add_argument("--watch-fd", type=int, required=True, help="pipe to the supervisor")
    parser.add_argument("--silence-s", type=float, required=True, help="until it counts as gone")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
