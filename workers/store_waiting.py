"""The database of a worker that serves: one that is away at the start is waited for."""

import logging

from tuner.errors import AwayError
from tuner.store import LEASE_S, Store, open_store
from workers.lane import LONGEST_PAUSE_S
from workers.stop import StopRequest

FIRST_PAUSE_S = 1.0
"""Between two tries; pauses grow from it."""

log = logging.getLogger(__name__)


def open_patiently(
    url: str | None, stop: StopRequest, *, create: bool = True, lease_s: float = LEASE_S
) -> Store | None:
    """The database, as soon as it can be reached; ``None`` when a stop is requested before.

    Args:
        url: as of :func:`tuner.store.open_store`.
        stop: asked all the while.
        create: likewise.
        lease_s: likewise.

    Raises:
        UsageError: the address is wrong, or it cannot be written, or is not ours.
        StoreError: it is of another version, or damaged: waiting mends neither.
    """
    pause_s = FIRST_PAUSE_S
    while not stop.wait(0):
        try:
            return open_store(url, create=create, lease_s=lease_s)
        except AwayError as error:
            log.warning("%s; trying again in %.0f s", error, pause_s)
        stop.wait(pause_s)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
    return None
