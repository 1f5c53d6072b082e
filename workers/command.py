"""What every command of a worker does around its work: logs, requests to stop, errors."""

import logging
from collections.abc import Callable

from tuner.errors import TunerError, UsageError
from tuner.logs import set_up_logs
from workers.stop import StopRequest


def run_command(
    work: Callable[[StopRequest], int],
    log: logging.Logger,
    watch_fd: int | None,
    *,
    is_service: bool = False,
) -> int:
    """Do the work; the exit code, of the error where there is one.

    Args:
        work: given requests to stop; the exit code.
        log: of the command.
        watch_fd: as of :class:`workers.stop.StopRequest`.
        is_service: as of :func:`tuner.logs.set_up_logs`.
    """
    try:
        set_up_logs("worker", is_service=is_service)
    except UsageError as error:
        log.error("%s", error)
        return error.exit_code
    stop = StopRequest(watch_fd)
    stop.install()
    try:
        return work(stop)
    except TunerError as error:
        log.error("%s", error)
        return error.exit_code
