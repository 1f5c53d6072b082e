"""One rank of a probe, or of a calibration.

    python -P -m workers.probe --spec DIR/spec.json --out DIR --init-method file:///DIR/rendezvous

Its place comes from RANK, LOCAL_RANK and WORLD_SIZE, as under torchrun. It writes
``rank-NNNNN.json`` and exits with 0 (all steps done), 10 (the record says what happened) or
111 (its supervisor is gone).
"""

import argparse
import faulthandler
import os
import signal
import sys
from pathlib import Path

from workers.probe.watch import watch_supervisor

RECORDED = 10


def main() -> int:
    """Run one rank; the exit code says whether its record is of success."""
    parser = argparse.ArgumentParser(prog="python -m workers.probe", description=__doc__)
    parser.add_argument("--spec", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--init-method", default="env://")
    parser.add_argument("--watch-fd", type=int)
    parser.add_argument("--silence-s", type=float, default=20.0)
    parser.add_argument("--calibrate", action="store_true", help="time the cases of the spec")
    options = parser.parse_args()
    # past the deadline the supervisor sends SIGTERM: leave in the log where this rank hangs
    faulthandler.register(signal.SIGTERM, chain=True)
    if options.watch_fd is not None:
        watch_supervisor(options.watch_fd, options.silence_s)
    if options.calibrate:  # torch takes seconds: watch the supervisor first
        from workers.probe.calibrate.rank import calibrate_rank as run
    else:
        from workers.probe.rank import run_rank as run

    outcome = run(options.spec, options.out, options.init_method)
    sys.stdout.flush()
    sys.stderr.flush()
    # Skip interpreter shutdown: a communicator whose peers are gone can hang in it.
    os._exit(0 if outcome == "ok" else RECORDED)


if __name__ == "__main__":
    main()
