"""A rank's watch over its supervisor: when that is gone or stopped, the rank ends."""

import os
import select
import threading

SUPERVISOR_GONE = 111
"""Exit code of a rank that lost its supervisor."""


def watch_supervisor(fd: int, silence_s: float) -> threading.Thread:
    """Watch a pipe from a daemon thread; end this process when its other end is gone.

    The supervisor writes a byte every second. A closed pipe means that it died, a silent one
    that it is stopped or its machine slept: its devices may be another worker's by now.

    Args:
        fd: read end of the pipe; the supervisor alone holds the write end.
        silence_s: seconds without a byte after which the supervisor counts as gone.

    Returns:
        The thread, already started.
    """
    thread = threading.Thread(target=_watch, args=(fd, silence_s), daemon=True, name="watch")
    thread.start()
    return thread


def _watch(fd: int, silence_s: float) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    # The second look is for a rank that was itself stopped: bytes came, and time ran out too.
    while (poll.poll(silence_s * 1000) or poll.poll(0)) and _read(fd):
        pass
    os._exit(SUPERVISOR_GONE)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 4096)
    except OSError:
        return b""
