"""What is made of studies, kept until something happens to them."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from tuner.store.standing import Standing

T = TypeVar("T")

FRESH_S = 10.0
"""Seconds after which something is made anew: calibrations, verdicts of the guard and what other
studies found change it too, and say nothing to the study."""
OLDEST_S = 60.0
"""Seconds for which it is still given while another thread computes: one caller waits for it then,
and not all."""


class Turn:
    """Lets one thread compute at a time: with one interpreter, two only slow each other."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    @contextmanager
    def taken(self, *, wait: bool = True) -> Iterator[bool]:
        """It gives whether this thread may; without ``wait``, not while another does."""
        mine = self._lock.acquire(blocking=wait)
        try:
            yield mine
        finally:
            if mine:
                self._lock.release()


class Kept(Generic[T]):
    """One kind of thing, of the studies that were asked for last. Safe to use from any thread."""

    def __init__(
        self,
        make: Callable[[Standing], T],
        turn: Turn,
        *,
        most: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            make: makes it of a study; called while no other thread computes.
            turn: to compute, shared with whatever else is computed.
            most: studies of which it is kept.
            clock: in seconds.
        """
        self._make = make
        self._turn = turn
        self._most = most
        self._clock = clock
        self._found: OrderedDict[str, tuple[float, Standing, T]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._found)

    def of(self, standing: Standing) -> T:
        """What is made of a study as it stands, or as it stood a moment later."""
        if (found := self.fresh(standing)) is not None:
            return found
        old = self._find(standing, OLDEST_S)
        with self._turn.taken(wait=old is None) as mine:
            if old is not None and not mine:
                return old
            if (found := self._find(standing, FRESH_S)) is not None:
                return found
            return self._keep(standing, self._make(standing))

    def fresh(self, standing: Standing) -> T | None:
        """It, if it is kept and need not be made anew: takes no time."""
        return self._find(standing, FRESH_S)

    def _find(self, standing: Standing, oldest_s: float) -> T | None:
        with self._lock:
            if (kept := self._found.get(standing.id)) is None:
                return None
            made_at, then, found = kept
            if then.newest_event < standing.newest_event or self._clock() - made_at > oldest_s:
                return None
            self._found.move_to_end(standing.id)
            return found

    def _keep(self, standing: Standing, made: T) -> T:
        # The standing is older than the study that was read, so nothing that happens is missed.
        with self._lock:
            self._found[standing.id] = self._clock(), standing, made
            self._found.move_to_end(standing.id)
            while len(self._found) > self._most:
                self._found.popitem(last=False)
        return made
