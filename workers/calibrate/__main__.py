"""Measure a cluster's rates on its own devices, and keep them in the database.

    python -P -m workers.calibrate --db URL --cluster JSON [--quick] [--watch-fd N]

Exit codes: 0 measured and kept, 1 it could not be, 2 usage, 130 a stop was requested.
"""

import argparse
import json
import logging
import sys

from tuner.core.cluster import Cluster
from workers.calibrate.run import Options, StoppedError, calibrate
from workers.stop import INTERRUPTED, StopRequest, open_fd, run_command

log = logging.getLogger("workers.calibrate")


def main() -> int:
    """Calibrates; the exit code."""
    from tuner.store import open_store  # calibrating needs no database

    options = _options()

    def work(stop: StopRequest) -> int:
        cluster = Cluster.from_dict(json.loads(options.cluster))
        try:
            with open_store(options.db, create=False) as store:
                found = calibrate(cluster, stop, options=Options(quick=options.quick))
                store.keep_calibration(found)
        except StoppedError as why:
            log.info("%s", why)
            return INTERRUPTED
        log.info("%s is calibrated", cluster.name)
        return 0

    return run_command(work, log, options.watch_fd)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.calibrate", description=__doc__)
    parser.add_argument("--db", help="address of the database; the user's own by default")
    parser.add_argument("--cluster", required=True, help="the cluster, as JSON")
    parser.add_argument(
        "--quick", action="store_true", help="small cases only, to see that it runs"
    )
    parser.add_argument(
        "--watch-fd", type=open_fd, help="stop when this pipe's other end is closed"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
