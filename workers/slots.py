"""The slots of a worker, each with a thread while it runs a probe."""

import logging
import time
from collections.abc import Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from typing import Self

from tuner.errors import TunerError
from workers.retrying_store import RetryingStore
from workers.slot import Order, Slot

TURN_S = 2.0
"""Of waiting for another study's probe on this machine, between two looks at one's own study."""
ROOM_S = 0.2
"""For another study to take the turn that it waits for: it looks more often than this."""
LOOK_S = 0.1
"""Between two looks for a request to stop."""
TAKE_S = 0.05
"""Between two tries to take a turn."""

log = logging.getLogger(__name__)


class Slots:
    """Slots that run probes at the same time, as a context; at its end none runs any more."""

    def __init__(self, retrying: RetryingStore) -> None:
        self._retrying = retrying
        self._slots: list[Slot] = []
        self._running: dict[Future[None], tuple[Slot, Order]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._stack = ExitStack()
        self._waiting = False
        self._last: Slot | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # An error that ended the slots is the one to be told.
        with suppress(*([TunerError] if error else [])):
            self.dismiss()

    def hire(self, slots: Collection[Slot], stack: ExitStack) -> None:
        """Have these slots instead of those that are there.

        Args:
            slots: the first one is for probes that must have no neighbours.
            stack: closed with them.
        """
        self.dismiss()
        self._slots, self._stack = list(slots), stack
        self._threads = ThreadPoolExecutor(len(self._slots), thread_name_prefix="slot")

    def dismiss(self) -> None:
        """Give up what runs, end all ranks, and have no slots."""
        try:
            self.give_up("the worker ends")
        finally:
            with self._stack:
                if self._threads is not None:
                    self._threads.shutdown()
            for slot in self._slots:
                slot.rest()
            self._slots, self._threads, self._stack = [], None, ExitStack()

    # What runs

    @property
    def is_busy(self) -> bool:
        """Whether a probe runs."""
        return bool(self._running)

    @property
    def is_full(self) -> bool:
        """Whether no slot is free for another probe."""
        return bool(self._slots) and len(self._running) == len(self._slots)

    @property
    def running_s(self) -> list[float]:
        """For how long each probe runs, in seconds."""
        now = time.monotonic()
        return [now - order.held.since for _, order in self._running.values()]

    def start(self, slot: Slot, order: Order) -> None:
        """Run a probe in a slot whose turn was taken."""
        assert self._threads is not None
        self._running[self._threads.submit(slot.run, order)] = slot, order

    def wait(self, seconds: float) -> None:
        """Wait until a probe ends, but no longer, and not on when a stop is requested.

        Raises:
            TunerError: as a slot that ended.
        """
        until = time.monotonic() + seconds
        while not self._collect() and not self._retrying.stop.wait(0):
            left = min(LOOK_S, until - time.monotonic())
            if left <= 0:
                return
            if self._running:
                wait(self._running, left, FIRST_COMPLETED)
            else:
                self._retrying.stop.wait(left)

    def give_up(self, why: str) -> None:
        """Have what runs given back; returns when nothing runs any more.

        Raises:
            TunerError: as a slot that ended.
        """
        self._retrying.over = why
        wait(self._running)
        self._retrying.over = ""
        self._collect()

    def _collect(self) -> bool:
        """Whether a probe has ended since the last look; raises what a slot has raised."""
        ended = [future for future in self._running if future.done()]
        errors = [error for future in ended if (error := future.exception())]
        for future in ended:
            del self._running[future]
        for error in errors[1:]:
            log.warning("%s", error)
        if errors:
            raise errors[0]
        return bool(ended)

    # Turns

    def take(self, *, alone: bool) -> Slot | None:
        """A free slot whose turn has come, or comes soon; the study may change meanwhile.

        Args:
            alone: whether it must have the machine for itself, also before others of these slots.
        """
        if alone and self.is_busy:
            self.wait(TURN_S)
            return None
        until = time.monotonic() + TURN_S
        while (slot := self._first(alone=alone)) is None:
            if not self._waiting:
                log.info("waiting for another study's probe on this machine")
            self._waiting = True
            if self._retrying.stop.wait(TAKE_S) or time.monotonic() > until:
                return None
        self._waiting = False
        for other in self._free():
            if other is not slot:
                other.rest()
        return slot

    def take_free(self) -> Slot | None:
        """A free slot whose turn is to be had at once, if there is one."""
        return next((s for s in self._free() if s.take(alone=False, wait=False)), None)

    def put_last(self, slot: Slot) -> None:
        """Take another one before this, if one is free: nothing was there for its devices."""
        self._last = slot
        slot.rest()

    def make_room(self) -> None:
        """Give turns where there are no ranks, which hold memory; end them if another waits."""
        for slot in self._free():
            if slot.alive and slot.wanted:
                slot.end()
                self._retrying.stop.wait(ROOM_S)
            elif not slot.alive and not self._waiting:
                slot.rest()

    def rest(self) -> None:
        """Wait for no turn any more, since there is nothing to run."""
        self._waiting = False
        for slot in self._free():
            slot.rest()

    def end_ranks(self) -> None:
        """End the ranks of all free slots, and give their turns."""
        for slot in self._free():
            slot.end()

    def _first(self, *, alone: bool) -> Slot | None:
        if alone:
            first, *others = self._slots
            for other in others:
                other.end()
            return first if first.take(alone=True, wait=True) else None
        return next((s for s in self._free() if s.take(alone=False, wait=True)), None)

    def _free(self) -> list[Slot]:
        busy = [slot for slot, _ in self._running.values()]
        free = [slot for slot in self._slots if slot not in busy]
        return sorted(free, key=lambda slot: slot is self._last)
