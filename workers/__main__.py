"""Work at a study until it is answered.

    python -P -m workers --db URL --study ID [--queued-only] [--fidelity F] [--watch-fd N]

Exit codes: 0 nothing more to do (the study's state says why), 1 it could not go on, 2 usage,
130 a stop was requested (Ctrl-C, SIGTERM, or the starting command is gone): the study is queued.
"""

import argparse
import logging
import os
import sys

from tuner.errors import TunerError
from tuner.measurement import Fidelity
from tuner.store import open_store
from workers.stop import StopRequest
from workers.worker import Options, Worker

log = logging.getLogger("workers")


def main() -> int:
    """Run a worker; the exit code."""
    options = _options()
    logging.basicConfig(format="%(asctime)s worker: %(message)s")
    log.setLevel(logging.INFO)
    stop = StopRequest(options.watch_fd)
    stop.install()
    try:
        with open_store(options.db, create=False) as store:
            fidelity = Fidelity(options.fidelity) if options.fidelity else None
            plan = Options(queued_only=options.queued_only, fidelity=fidelity)
            return Worker(store, options.study, stop=stop, options=plan).run()
    except TunerError as error:
        log.error("%s", error)
        return error.exit_code


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers", description=__doc__)
    parser.add_argument("--db", help="address of the database; the user's own by default")
    parser.add_argument("--study", required=True, help="the study's id")
    parser.add_argument(
        "--queued-only", action="store_true", help="run the probes that are queued; plan none"
    )
    parser.add_argument(
        "--fidelity",
        choices=list(map(str, Fidelity)),
        help="run probes of this one; by default of the study's",
    )
    parser.add_argument(
        "--watch-fd", type=open_fd, help="stop when this pipe's other end is closed"
    )
    return parser.parse_args()


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


if __name__ == "__main__":
    sys.exit(main())
