"""A claim's lease, renewed while its probe runs, and the moment from which it is not ours."""

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from tuner.errors import TunerError

BEATS = 6
"""Renewals in the time of a lease: several may fail before it runs out."""
RETRY_S = 1.0
"""Seconds until a renewal that failed is tried again."""
MARGIN = 25 / 60
"""Part of a lease before its end at which it counts as over: the probe must be gone by its end, for
the fence that guards the rows of a lost claim does not guard devices. Ranks whose supervisor is
stopped at that moment end after ``SILENCE_S`` of :mod:`workers.launchers.supervised`; other ends
take less."""

log = logging.getLogger(__name__)


class Lease:
    """Renews a claim from a thread of its own, so that a slow store never delays supervision.

    Time is the monotonic clock's: a clock that is set does not make a lease longer.
    """

    def __init__(
        self,
        beat: Callable[[], bool],
        *,
        claimed_at: float,
        lease_s: float,
        beat_s: float | None = None,
        margin_s: float | None = None,
    ) -> None:
        """A lease that was given at ``claimed_at`` or later.

        Args:
            beat: renews it; ``False`` when it is lost. May raise TunerError.
            claimed_at: ``time.monotonic()`` from before the claim.
            lease_s: seconds from a renewal to the lease's end.
            beat_s: seconds between renewals; of a lease's usual ones unless given.
            margin_s: seconds before its end at which it is given up; likewise.
        """
        self._beat = beat
        self._beat_s = lease_s / BEATS if beat_s is None else beat_s
        self._kept_s = lease_s - (lease_s * MARGIN if margin_s is None else margin_s)
        self._renewed = claimed_at
        self._lost = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")

    def __enter__(self) -> "Lease":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._done.set()
        self._thread.join(RETRY_S)  # a store that hangs must not hold the worker

    @property
    def over(self) -> str:
        """Why the claim must be given up now; empty while it is ours."""
        if self._lost:
            return "the store gave the probe to another worker, or the study was cancelled"
        if time.monotonic() > self._renewed + self._kept_s:
            return "the lease could not be renewed in time"
        return ""

    def _keep(self) -> None:
        pause = self._beat_s
        while not self._done.wait(pause):
            asked = time.monotonic()
            try:
                held = self._beat()
            except TunerError as error:
                log.warning("cannot renew the lease: %s", error)
                pause = min(RETRY_S, self._beat_s)
                continue
            if not held:
                self._lost = True
                return
            self._renewed = asked
            pause = self._beat_s
