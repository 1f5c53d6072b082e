"""What every command of a worker does around its work: logs, requests to stop, errors."""

import logging
from collections.abc import Callable

from tuner.errors import TunerError
from workers.stop import StopRequest


def run_command(
    work: Callable[[StopRequest], int], log: logging.Logger, watch_fd: int | None
) -> int:
    """Do the work; the exit code, of the error where there is one.

    Args:
        work: given requests to stop; the exit code.
        log: of the command.
        watch_fd: as of :class:`workers.stop.StopRequest`.
    """
    logging.basicConfig(format="%(asctime)s worker: %(message)s")
    log.setLevel(logging.INFO)
    stop = StopRequest(watch_fd)
    stop.install()
    try:
        return work(stop)
    except TunerError as error:
        log.error("%s", error)
        return error.exit_code
