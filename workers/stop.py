"""Requests to stop: signals, and the end of the command that started this process."""

import argparse
import os
import select
import signal
import threading
import time
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def open_fd(text: str) -> int:
    """The number of an open file, for an option of a command.

    Raises:
        argparse.ArgumentTypeError: it is not open.
    """
    fd = int(text)
    try:
        os.fstat(fd)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{fd} is not open") from error
    return fd


class StopRequest:
    """Becomes requested once and stays so; asked between other work, from any thread.

    Handlers only leave a note, so nothing is interrupted half-way.
    """

    def __init__(self, watch_fd: int | None = None) -> None:
        """Watch ``watch_fd``, the read end of a pipe that the starting command holds open."""
        self.signal: signal.Signals | None = None
        """The one that asked for it, if one did."""
        self.is_from_within = False
        """Whether this process asked for it itself."""
        self._why = ""
        self._watch_fd = watch_fd
        self._reading = threading.Lock()

    def install(self) -> None:
        """Take the signals that ask a process to end."""
        for number in SIGNALS:
            signal.signal(number, self._note)

    def request(self, why: str) -> None:
        """Ask for it from within this process."""
        self.is_from_within = self.is_from_within or not self._why
        self._why = self._why or why

    def wait(self, seconds: float) -> str:
        """Wait, but not on when a stop is requested; why it is, or an empty text."""
        until = time.monotonic() + seconds
        while not self._why:
            left = min(0.1, until - time.monotonic())
            if self._starter_gone(max(0.0, left)):
                self._why = "the command that started the worker is gone"
            if left <= 0:
                break
        return self._why

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = signal.Signals(number)
        self._why = f"the worker got {self.signal.name}"

    def _starter_gone(self, seconds: float) -> bool:
        """Sleep; whether the watched pipe was closed. Bytes in it mean nothing."""
        if self._watch_fd is None:
            time.sleep(seconds)
            return False
        if not self._has_news(seconds):
            return False
        with self._reading:  # another thread may have read what there was
            return self._has_news(0) and not os.read(self._watch_fd, 4096)

    def _has_news(self, seconds: float) -> bool:
        poll = select.poll()  # one cannot be used by two threads at once
        assert self._watch_fd is not None
        poll.register(self._watch_fd, select.POLLIN)
        return bool(poll.poll(seconds * 1000))
