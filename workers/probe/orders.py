"""Messages between a supervisor and ranks that run one probe after another: files, and a pipe.

An order is ``DIR/NNNN/spec.json``, written at once or not at all: a probe's spec, ``{"check":
"cuda"}`` for a look at the ranks' devices (``workers/probe/check.py``), or ``cases`` to be timed
for a calibration (``workers/probe/calibrate.py``). Every rank runs the orders
by name and leaves its record beside each. The supervisor gives the next order when all records of
the last one are there and well, and no rank has said that it is spent. It imports no torch.
"""

import os
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SPEC = "spec.json"
# The supervisor's file: no order follows those that are there.
END = "end"
# Rank 0's file beside an order of several nodes: ``host port`` of where the ranks meet.
ADDRESS = "address"
# A rank's file: what a probe took has not come back, so no rank waits for another order.
SPENT = "spent"
# Exit code of a rank whose record says what went wrong.
RECORDED = 10
# Exit code of a rank that lost its supervisor.
SUPERVISOR_GONE = 111
# Seconds between two looks at files: little beside a probe's seconds, and no load.
POLL_S = 0.02


def orders(folder: Path) -> Iterator[Path]:
    """Yields the folders of orders as they come, until the supervisor ends or a rank is spent."""
    last = ""
    while True:
        # before the look at orders, so that every rank runs all of them
        ended = (folder / END).exists() or (folder / SPENT).exists()
        rest = [spec.parent for spec in folder.glob(f"*/{SPEC}") if spec.parent.name > last]
        if rest:
            order = min(rest)
            last = order.name
            yield order
        elif ended:
            return
        else:
            time.sleep(POLL_S)


def header(order: str) -> str:
    """The line in a rank's log before what it says in an order."""
    return f"--- order {order} ---\n"


def watch_supervisor(fd: int, silence_s: float) -> threading.Thread:
    """Watches a pipe from a daemon thread; ends this process when its other end is gone.

    The supervisor writes a byte every second. A closed pipe means that it died, a silent one
    that it is stopped or its machine slept: its devices may be another worker's by now.
    """

    def read() -> bytes:
        try:
            return os.read(fd, 4096)
        except OSError:
            return b""

    def watch() -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        # the second poll is for a rank that was itself stopped: bytes came, and time ran out too
        while (poll.poll(silence_s * 1000) or poll.poll(0)) and read():
            pass
        os._exit(SUPERVISOR_GONE)

    thread = threading.Thread(target=watch, daemon=True, name="watch")
    thread.start()
    return thread
