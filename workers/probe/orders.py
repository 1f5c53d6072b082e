"""What passes between a supervisor and ranks that run one probe after another: files in a folder.

An order is ``DIR/NNNN/spec.json``, written at once or not at all: a probe's spec, or ``{"check":
"cuda"}`` for a look at the ranks' devices (``workers/probe/check.py``). Every rank runs the orders
by name and leaves its record beside each. The supervisor gives the next order when all records of
the last one are there and well, and no rank has said that it is spent.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path

SPEC = "spec.json"
END = "end"
"""The supervisor's file: no order follows those that are there."""
ADDRESS = "address"
"""Rank 0's file beside an order of several nodes: ``host port`` of where the ranks meet."""
SPENT = "spent"
"""A rank's file: what a probe took has not come back, so no rank waits for another order."""
RECORDED = 10
"""Exit code of a rank whose record says what went wrong."""
POLL_S = 0.02
"""Between two looks: little beside a probe's seconds, and no load."""


def orders(folder: Path) -> Iterator[Path]:
    """The folders of orders as they come, until the supervisor ends them or a rank is spent."""
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


def checked_device(spec: Path) -> str:
    """The kind of device that an order wants looked at, cpu or cuda; empty for a probe's order."""
    return str(json.loads(spec.read_text(encoding="utf-8")).get("check", ""))


def header(order: str) -> str:
    """The line in a rank's log before what it says in an order."""
    return f"--- order {order} ---\n"
