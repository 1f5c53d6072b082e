"""A place for one probe at a time, and what is done there with a probe that was claimed."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from tuner.answering.advance import kept_dry_run, measurement_of, plan_here
from tuner.dryrun import NotDryRunError, StoppedError
from tuner.errors import ProbeError
from tuner.logs import bound
from tuner.measurement import Measurement, Outcome
from tuner.study import Study
from workers.device_locks import DeviceLocks
from workers.dry_runs import DryRuns
from workers.measuring.measure import measure
from workers.measuring.warm import Kind, WarmRanks
from workers.retrying_store import Held, RetryingStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A claimed probe, and how it is to be run."""

    study: Study
    """Whose, as it was when the probe was claimed."""
    held: Held
    """The claim."""
    give_up_above_s: float | None = None
    """As of :func:`workers.measuring.measure.measure`."""

    @property
    def bound(self) -> AbstractContextManager[None]:
        """Has this thread's log lines say what they are about."""
        claim = self.held.claim
        return bound(study=claim.study_id, probe=claim.probe.id, attempt=claim.attempt_id)


class Slot(Protocol):
    """A place for one probe at a time."""

    @property
    def devices(self) -> tuple[str, ...]:
        """Names of those that its next probe holds."""

    @property
    def alive(self) -> bool:
        """Whether there are ranks that wait for the next probe."""

    @property
    def wanted(self) -> bool:
        """Whether another waits for its devices."""

    def take(self, *, alone: bool, wait: bool) -> bool:
        """Take its turn.

        Args:
            alone: whether to have all of the machine.
            wait: whether to be told to others, and to keep what is had, where not all is free.

        Returns:
            Whether its turn has come.
        """

    def rest(self) -> None:
        """Give the turn, unless there are ranks, which hold memory."""

    def end(self) -> None:
        """End the ranks, and give the turn."""

    def run(self, order: Order) -> None:
        """Run a probe, and record what was found, or give it back.

        Raises:
            ProbeError: no probe can be run here.
            StoreError: the store did not answer for longer than a while.
        """


@dataclass(slots=True, kw_only=True, eq=False)
class DeviceSlot:
    """Devices of this machine, with the ranks that run one probe after another on them."""

    retrying: RetryingStore
    """For what is asked of the store."""
    ranks: WarmRanks
    """To run probes on."""
    kind: Kind
    """Of the ranks."""
    own: DeviceLocks
    """On what every probe here holds."""
    others: DeviceLocks
    """On the rest of the machine, for a probe that must have no neighbours."""
    deadline_s: float
    """Seconds for one probe."""
    stands_in: bool = False
    """As of :func:`workers.measuring.measure.measure`."""
    find: Callable[[], DeviceLocks] | None = None
    """What its probes hold once a device was lost, where others may take its place."""
    _alone: bool = False
    _lost_a_device: bool = False

    @property
    def devices(self) -> tuple[str, ...]:
        """As of :class:`Slot`."""
        return (*self.own.devices, *self.others.devices) if self._alone else self.own.devices

    @property
    def alive(self) -> bool:
        """As of :class:`Slot`."""
        return self.ranks.alive

    @property
    def wanted(self) -> bool:
        """As of :class:`Slot`."""
        return self.own.wanted

    def take(self, *, alone: bool, wait: bool) -> bool:
        """As of :class:`Slot`."""
        self._alone = alone
        if self._lost_a_device and self.find is not None:
            self.own, self._lost_a_device = self.find(), False
        if not alone:
            self.others.give()
        turns = (self.own, self.others) if alone else (self.own,)
        return all(turn.take() if wait else turn.take_free() for turn in turns)

    def rest(self) -> None:
        """As of :class:`Slot`."""
        self.others.give()
        if not self.ranks.alive:
            self.own.give()

    def end(self) -> None:
        """As of :class:`Slot`."""
        self.ranks.end()
        self.rest()

    def run(self, order: Order) -> None:
        """As of :class:`Slot`."""
        try:
            with order.held, order.bound:
                self._measure(order)
        except ProbeError as error:
            self.retrying.give_back(order.held.claim, str(error))
            raise
        finally:
            self.rest()

    def measured(self, order: Order) -> Measurement:
        """What a probe finds.

        Raises:
            ProbeError: no probe can be run here.
        """
        return measure(
            order.study,
            order.held.claim.probe,
            self.ranks,
            kind=self.kind,
            stands_in=self.stands_in,
            deadline_s=self.deadline_s,
            give_up_above_s=order.give_up_above_s,
            pause=order.held.pause,
        )

    def _measure(self, order: Order) -> None:
        claim, measurement = order.held.claim, self.measured(order)
        self._lost_a_device |= measurement.outcome is Outcome.DEVICE_LOST
        if measurement.outcome is Outcome.CANCELLED:
            self.retrying.give_back(claim, order.held.pause(0) or "it was given up")
        else:
            self.retrying.record(claim, measurement)


class DrySlot:
    """The process that dry-runs. It waits for no turn: nothing of it is timed."""

    devices: tuple[str, ...] = ()
    alive = wanted = False

    def __init__(self, retrying: RetryingStore, dry_runs: DryRuns) -> None:
        self._retrying = retrying
        self._dry_runs = dry_runs

    def take(self, *, alone: bool, wait: bool) -> bool:
        """At once."""
        return True

    def rest(self) -> None:
        """Nothing is held."""

    def end(self) -> None:
        """The process stays, for the next study."""

    def run(self, order: Order) -> None:
        """Dry-run the class of a claim's settings, or take the dry run that is kept."""
        claim, began = order.held.claim, time.monotonic()
        question, request = order.study.question, claim.probe.request
        find = partial(kept_dry_run, self._retrying.store, question, request)
        try:
            with order.held as held, order.bound:
                found = self._retrying.patiently(find)
                if found is None:
                    plan = plan_here(question, request.settings)
                    found = self._dry_runs.make(plan, lambda: held.pause(0))
                    if found.is_kept:
                        self._retrying.patiently(partial(self._retrying.store.keep_dry_run, found))
                wall_s = time.monotonic() - began
                measurement = measurement_of(question, request.settings, found, wall_s=wall_s)
                self._retrying.record(claim, measurement)
        except (StoppedError, NotDryRunError) as error:
            self._retrying.give_back(claim, str(error))
            if isinstance(error, NotDryRunError):
                raise ProbeError(str(error)) from error
