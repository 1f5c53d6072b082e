"""One rank of several probes, one after the other.

    python -P -m workers.probe --rendezvous file --out DIR

It runs every ``DIR/NNNN/spec.json`` as it comes, and leaves a record beside each
(``workers/probe/orders.py``); ranks find each other by a file, or by rank 0's address where they
are of several nodes (``workers/probe/group.py``).

Its place comes from RANK, LOCAL_RANK and WORLD_SIZE, as under torchrun. It writes
``rank-NNNNN.json`` and exits with 0 (its steps are done), 10 (the record says what happened) or
111 (its supervisor is gone).
"""

import argparse
import faulthandler
import os
import signal
import sys
from pathlib import Path

from workers.probe.orders import RECORDED, watch_supervisor


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m workers.probe", description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rendezvous", choices=("file", "address"), default="file")
    parser.add_argument("--watch-fd", type=int)
    parser.add_argument("--silence-s", type=float, default=20.0)
    options = parser.parse_args()
    # past the deadline the supervisor sends SIGTERM: leave in the log where this rank hangs
    faulthandler.register(signal.SIGTERM, chain=True)
    if options.watch_fd is not None:
        watch_supervisor(options.watch_fd, options.silence_s)
    # imports of torch take seconds: the supervisor is watched before
    from workers.probe.series import run_series

    record = run_series(options.out, options.rendezvous)
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip interpreter shutdown: a communicator whose peers are gone can hang in it.
    os._exit(0 if record.is_well else RECORDED)


if __name__ == "__main__":
    main()
