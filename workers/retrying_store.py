"""What a worker and its slots ask of the store: again while it fails, and from any thread."""

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from tuner.errors import StoreError, TunerError, UnreadableStudyError, UsageError
from tuner.measurement import Fidelity, Measurement
from tuner.store import Claim, Store, WorkerIdentity
from workers.lease import Lease
from workers.measuring.files import write_result
from workers.measuring.folders import keep_folder, make_folder
from workers.stop import StopRequest

T = TypeVar("T")

STORE_PATIENCE_S = 60.0
"""For a store that does not answer: as long as a lease, after which probes are others'."""
RECORD_PATIENCE_S = 600.0
"""For recording what a probe has found, which cost minutes of devices."""
RETRY_S = 1.0
"""Between two tries of the store."""

log = logging.getLogger(__name__)


class RetryingStore:
    """A store as a worker uses it, and the reasons for which its probes must end."""

    def __init__(
        self, store: Store, stop: StopRequest, identity: WorkerIdentity, folder: Path
    ) -> None:
        """A retrying.

        Args:
            store: where studies are.
            stop: asked all the while.
            identity: of the worker.
            folder: for results that cannot be recorded.
        """
        self.store = store
        self.stop = stop
        self.identity = identity
        self.over = ""
        """Why all probes are to be given up, beside a request to stop; empty while not."""
        self._folder = folder

    def patiently(self, call: Callable[[], T], patience_s: float | None = None) -> T:
        """Call the store, again and again while it fails; not when a stop is requested."""
        until = time.monotonic() + (STORE_PATIENCE_S if patience_s is None else patience_s)
        while True:
            try:
                return call()
            except TunerError as error:
                if not may_pass(error) or time.monotonic() > until or self.stop.wait(0):
                    raise
                log.warning("%s; trying again", error)
                self.stop.wait(RETRY_S)

    def claim(
        self, study_id: str, fidelity: Fidelity, devices: tuple[str, ...] = ()
    ) -> "Held | None":
        """The study's oldest queued probe; ``None`` when others have it, or one of the devices."""
        claimed_at = time.monotonic()
        key = uuid4().hex  # one for all tries: the answer to the first may be all that is lost
        take = partial(self.store.claim, study_id, self.identity, fidelity, devices, key=key)
        claim = self.patiently(take)
        return None if claim is None else Held(self, claim, claimed_at)

    def give_back(self, claim: Claim, why: str) -> None:
        """Queue a probe again that was not run, or not to its end."""
        given = self.patiently(partial(self.store.give_back, claim, why))
        log.info("probe %d: %s%s", claim.probe.id, why, "" if given else " (the claim was lost)")

    def record(self, claim: Claim, measurement: Measurement) -> None:
        """Record what was found; it is kept in a folder if the store never answers.

        Raises:
            StoreError: so it was.
        """
        record = partial(self.store.record, claim, measurement)
        try:
            recorded = self.patiently(record, RECORD_PATIENCE_S)
        except TunerError as error:
            folder = make_folder(self._folder, str(claim.probe.id))
            write_result(folder, measurement)
            raise StoreError(f"{error}; a result is kept in {keep_folder(folder)}") from error
        _tell(claim, measurement, recorded=recorded)


class Held:
    """A claim whose lease is renewed while it is entered, and the reasons to give it up."""

    def __init__(self, retrying: RetryingStore, claim: Claim, claimed_at: float) -> None:
        self.claim = claim
        self.since = time.monotonic()
        """When it was had, by the monotonic clock."""
        self._retrying = retrying
        lease_s = retrying.store.lease_s
        self._lease = Lease(
            partial(retrying.store.beat, claim), claimed_at=claimed_at, lease_s=lease_s
        )

    def __enter__(self) -> "Held":
        self._lease.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._lease.__exit__(None, None, None)

    def pause(self, seconds: float) -> str:
        """Wait; why the probe must be given up, empty while it must not."""
        return self._retrying.stop.wait(seconds) or self._retrying.over or self._lease.over


def may_pass(error: TunerError) -> bool:
    """Whether it is the database's trouble, and no mistake of anybody's."""
    if isinstance(error, UnreadableStudyError):
        return False
    return isinstance(error, StoreError) or (isinstance(error, UsageError) and error.field == "db")


def _tell(claim: Claim, measurement: Measurement, *, recorded: bool) -> None:
    text = f"{measurement.outcome} after {measurement.wall_s:.1f} s"
    if measurement.detail:
        text += f": {measurement.detail}"
    if not recorded:
        text += " (not recorded: the claim was lost)"
    log.info("probe %d: %s [%s]", claim.probe.id, text, claim.probe.request.settings)
