"""Requests to stop: signals, and the end of the command that started this process."""

import argparse
import logging
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

from tuner.errors import TunerError
from tuner.logs import set_up_logs

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Exit code after a request to stop, as shells have it for Ctrl-C.
INTERRUPTED = 130


class StopRequest:
    """Becomes requested once and stays so; asked between other work, from any thread.

    Handlers only leave a note, so nothing is interrupted half-way.
    """

    def __init__(self, watch_fd: int | None = None) -> None:
        """Watches ``watch_fd``, the read end of a pipe that the starting command holds open."""
        self.signal: signal.Signals | None = None  # the one that asked for it, if one did
        self.is_from_within = False  # sets when this process asked for it itself
        self._why = ""
        self._watch_fd = watch_fd
        self._reading = threading.Lock()

    def install(self) -> None:
        for number in SIGNALS:
            signal.signal(number, self._note)

    def request(self, why: str) -> None:
        self.is_from_within = self.is_from_within or not self._why
        self._why = self._why or why

    def wait(self, seconds: float) -> str:
        """Waits, but not on when a stop is requested; the reason for it, or an empty text."""
        until = time.monotonic() + seconds
        while not self._why:
            left = min(0.1, until - time.monotonic())
            if self._watch_fd is None:
                time.sleep(max(0.0, left))
            elif self._has_news(max(0.0, left)):
                with self._reading:  # another thread may have read what there was
                    if self._has_news(0) and not os.read(self._watch_fd, 4096):
                        self._why = "the command that started the worker is gone"
            if left <= 0:
                break
        return self._why

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._why = f"the worker got {self.signal.name}"

    def _has_news(self, seconds: float) -> bool:
        """Sleeps until the watched pipe is closed or has bytes, which mean nothing."""
        poll = select.poll()  # one cannot be used by two threads at once
        assert self._watch_fd is not None
        poll.register(self._watch_fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))


def open_fd(text: str) -> int:
    """The number of an open file, for an option of a command. Raises argparse.ArgumentTypeError: it
    is not open."""
    fd = int(text)
    try:
        os.fstat(fd)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{fd} is not open") from error
    return fd


def run_command(
    work: Callable[[StopRequest], int],
    log: logging.Logger,
    watch_fd: int | None,
    *,
    is_service: bool = False,
) -> int:
    """Does a command's work with logs and signals set up; the exit code, of the error if any."""
    try:
        set_up_logs("worker", is_service=is_service)
        stop = StopRequest(watch_fd)
        stop.install()
        return work(stop)
    except TunerError as error:
        log.error("%s", error)
        return error.exit_code
