"""What a script prints, kept within bounds: its beginning and its end."""

import os
import threading

KEPT_BYTES = 1 << 20
"""Of the beginning, and at least of the end. A script may print as long as its probe takes, and
the disk is everybody's."""
LOOK_BYTES = 1 << 16
"""Of one look at the pipe: what a pipe holds."""
LAST_WORDS_S = 2.0
"""Seconds for the rest, once all processes of the script that are known have ended."""


class BoundedLog:
    """A file of the beginning, a line that says how much is left out, and the end.

    The end is in the file at any moment, also when its writer is killed; at most it is twice as
    long as it must be, so that not every line moves it.
    """

    def __init__(self, fd: int, kept_bytes: int = KEPT_BYTES) -> None:
        """A log.

        Args:
            fd: of a file that nobody else writes, at its beginning.
            kept_bytes: of the beginning, and at least of the end.
        """
        self._fd, self._kept = fd, kept_bytes
        self._begun = self._left_out = 0
        self._end = bytearray()

    def write(self, text: bytes) -> None:
        """Append bytes.

        Raises:
            OSError: the file cannot be written.
        """
        first = text[: self._kept - self._begun]
        more = text[len(first) :]
        self._begun += len(first)
        self._end += more
        _write(self._fd, first)
        if len(self._end) > 2 * self._kept:
            self._shorten()
        else:
            _write(self._fd, more)

    def _shorten(self) -> None:
        """Leave out what lies between the beginning and the end."""
        more = len(self._end) - self._kept
        self._left_out += more
        del self._end[:more]
        os.lseek(self._fd, self._kept, os.SEEK_SET)
        os.ftruncate(self._fd, self._kept)
        _write(self._fd, f"\n[{self._left_out:,} bytes are left out]\n".encode() + self._end)


class Copier:
    """Copies what is written to a pipe into a :class:`BoundedLog`, in a thread of its own."""

    def __init__(self, log: BoundedLog) -> None:
        self._log = log
        self._read, self.pipe = os.pipe()
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Wait for the rest, though not for a process that has kept the pipe and goes on."""
        os.close(self.pipe)
        self._thread.join(LAST_WORDS_S)

    def _copy(self) -> None:
        writes = True
        while text := os.read(self._read, LOOK_BYTES):
            try:
                if writes:
                    self._log.write(text)
            except OSError:  # a full disk: the script is read on, lest it wait for ever
                writes = False


def _write(fd: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(fd, left) :]
