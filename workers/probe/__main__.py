"""One rank of a probe, of several, one after the other, or of a calibration.

    python -P -m workers.probe --spec DIR/spec.json --out DIR --init-method file:///DIR/rendezvous
    python -P -m workers.probe --series --rendezvous file --out DIR

The first with ``--calibrate`` times the cases of the spec, and trains nothing. The second runs
every ``DIR/NNNN/spec.json`` as it comes, and leaves a record beside each
(``workers/probe/orders.py``); its ranks find each other by a file, or by rank 0's address
where they are of several nodes (``workers/probe/group.py``).

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
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--spec", type=Path)
    what.add_argument("--series", action="store_true")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--init-method", default="env://")
    parser.add_argument(
        "--rendezvous", choices=("file", "address"), default="file", help="of the ranks of a series"
    )
    parser.add_argument("--watch-fd", type=int)
    parser.add_argument("--silence-s", type=float, default=20.0)
    parser.add_argument("--calibrate", action="store_true", help="time the cases of the spec")
    options = parser.parse_args()
    if options.calibrate and options.spec is None:
        parser.error("--calibrate is for --spec")
    # past the deadline the supervisor sends SIGTERM: leave in the log where this rank hangs
    faulthandler.register(signal.SIGTERM, chain=True)
    if options.watch_fd is not None:
        watch_supervisor(options.watch_fd, options.silence_s)
    # imports of torch take seconds: the supervisor is watched before
    if options.series:
        from workers.probe.series import run_series

        record = run_series(options.out, options.rendezvous)
    elif options.calibrate:
        from workers.probe.calibrate import calibrate_rank

        record = calibrate_rank(options.spec, options.out, options.init_method)
    else:
        from workers.probe.run import run_rank

        record = run_rank(options.spec, options.out, options.init_method)
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip interpreter shutdown: a communicator whose peers are gone can hang in it.
    os._exit(0 if record.is_well else RECORDED)


if __name__ == "__main__":
    main()
