"""A serving worker's entry in the database, which shows what it has and that it lives."""

import logging
import threading
from collections.abc import Callable
from typing import Self, TypeVar

from tuner.dryrun import dry_run_versions
from tuner.errors import TunerError
from tuner.framework import installed_versions
from tuner.machine import Machine
from tuner.store import Store, WorkerIdentity
from tuner.store.workers import Workers
from workers.lease import BEATS

T = TypeVar("T")

log = logging.getLogger(__name__)


class Registration:
    """Keeps the entry as a context, from a thread of its own; at its end it says ``stopped``.

    A store that does not answer is asked again at the next beat: work goes on without an entry.
    """

    def __init__(
        self,
        store: Store,
        identity: WorkerIdentity,
        pools: tuple[str, ...],
        machine: Machine,
    ) -> None:
        """An entry that is not made yet.

        Args:
            store: where it is kept.
            identity: of the worker.
            pools: labels of studies that it serves, beside those that name none.
            machine: where it runs.
        """
        self._workers = Workers(store.transactions)
        self._identity = identity
        self._pools = pools
        self._machine = machine
        self._beat_s = store.lease_s / BEATS
        self._id: int | None = None
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True, name="registration")

    def __enter__(self) -> Self:
        self._beat()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join(self._beat_s)  # a store that hangs must not hold the worker
        if self._id is not None:
            self._try(lambda: self._workers.stopped(self._id or 0))

    def _keep(self) -> None:
        while not self._done.wait(self._beat_s):
            self._beat()

    def _beat(self) -> None:
        if self._id is None or self._try(lambda: self._workers.seen(self._id or 0)) is False:
            self._id = self._try(self._register)

    def _register(self) -> int:
        versions = {**installed_versions(), **dry_run_versions()}
        machine = self._machine.as_dict()
        return self._workers.register(self._identity, self._pools, machine, versions)

    def _try(self, call: Callable[[], T]) -> T | None:
        try:
            return call()
        except TunerError as error:
            log.warning("cannot say that this worker lives: %s", error)
            return None
