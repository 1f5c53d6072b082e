"""The lease of a claim, renewed while its probe runs, and patience with a store that fails."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Self, TypeVar

from tuner.core import lease
from tuner.errors import StoreError, TunerError, UnreadableStudyError, UsageError
from workers.stop import StopRequest

T = TypeVar("T")

# Renewals in the time of a lease: several may fail before it runs out.
BEATS = 6
# Seconds until a call of the store that failed is tried again.
RETRY_S = 1.0
# Seconds by which a clock that was set differs from one that only ran on; NTP slews by less.
STEP_S = 5.0
# Part of a lease before its end at which it counts as over: the probe must be gone by its end, for
# the fence that guards the rows of a lost claim does not guard devices. Ranks whose supervisor is
# stopped at that moment end after ``SILENCE_S`` of :mod:`workers.launchers.base`; other ends
# take less.
MARGIN = 25 / 60
# For a store that does not answer: as long as a lease, after which probes are others'.
STORE_PATIENCE_S = lease.LEASE_S
# For recording a measurement, which cost minutes of devices.
RECORD_PATIENCE_S = 600.0

log = logging.getLogger(__name__)


class Lease:
    """Renews a claim from a thread of its own, so that a slow store never delays supervision."""

    def __init__(self, beat: Callable[[], bool], *, claimed_at: float) -> None:
        """A lease that ``beat`` renews, whose answer is false when it is lost; ``claimed_at`` is of
        ``time.monotonic()`` from before the claim: a clock that is set makes it no longer."""
        self._beat = beat
        self._beat_s = lease.LEASE_S / BEATS
        self._kept_s = lease.LEASE_S * (1 - MARGIN)
        self._renewed = claimed_at
        self._lost = False
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="lease")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join(RETRY_S)  # a store that hangs must not hold the worker

    @property
    def over(self) -> str:
        """The reason to give the claim up now; empty while it is ours."""
        if self._lost:
            return "the store gave the probe to another worker, or the study was cancelled"
        if time.monotonic() > self._renewed + self._kept_s:
            return "the lease could not be renewed in time"
        return ""

    def _keep(self) -> None:
        pause = self._beat_s
        clock_ahead_s = time.time() - time.monotonic()
        while not self._done.wait(pause):
            step_s = time.time() - time.monotonic() - clock_ahead_s
            if abs(step_s) > STEP_S:
                clock_ahead_s += step_s
                text = "this machine's clock was set by %+.0f s: SQLite judges leases by it, and"
                log.warning(f"{text} may take probes for lost; PostgreSQL has its own", step_s)
            # the moment before the call: the store may have given the time to others by its answer
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


def retried(call: Callable[[], T], stop: StopRequest, patience_s: float = STORE_PATIENCE_S) -> T:
    """Calls the store, again and again while it fails; not once a stop is requested."""
    until = time.monotonic() + patience_s
    while True:
        try:
            return call()
        except TunerError as error:
            if not may_pass(error) or time.monotonic() > until or stop.wait(0):
                raise
            log.warning("%s; trying again", error)
            stop.wait(RETRY_S)


def may_pass(error: TunerError) -> bool:
    """True for the database's own trouble, which is no mistake of anybody's."""
    if isinstance(error, UnreadableStudyError):
        return False
    return isinstance(error, StoreError) or (isinstance(error, UsageError) and error.field == "db")
