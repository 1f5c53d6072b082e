"""Events of studies: one look at the database for all who wait for something to happen.

While anybody waits, one query every quarter of a second tells which of the studies that are waited
for have moved, and one more for each of these, in the same transaction, reads what happened.
Neither grows with the number of those who wait, and nobody who waits holds a thread. The events
from before a listener came are read for this one alone, page by page.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import anyio
from pydantic import BaseModel, ConfigDict
from sqlalchemy.exc import SQLAlchemyError

from api import EXAMPLES
from tuner.core.study import OPEN, StudyState
from tuner.errors import TunerError
from tuner.store import Event, EventKind, Store, StudyStatus

T = TypeVar("T")

# States in which nothing more happens to a study unless it is asked again.
ENDS = frozenset(StudyState) - OPEN
# Events of one study that are kept for those who listen; older ones are read again.
MOST_KEPT = 1000
# Events that are read at once.
PAGE = 500
# Seconds between two looks, at most, while the database cannot be used.
LONGEST_PAUSE_S = 5.0
# Threads for these queries, of their own: slow requests must not keep events waiting.
THREADS = 2

log = logging.getLogger("api.events")


class EventSent(BaseModel):
    """One thing that happened to a study: the data of one server-sent event."""

    model_config = ConfigDict(
        title="Event", from_attributes=True, json_schema_extra={"examples": [EXAMPLES["event"]]}
    )

    id: int
    study_id: str
    kind: EventKind
    at: str
    data: dict[str, Any]


class Feed:
    """The state and the newest events of a study that is listened to."""

    def __init__(self, status: StudyStatus) -> None:
        self.status = status
        self.listeners = 0
        # Id of the newest event that is not in ``events``, which has all later ones in order.
        self.floor = status.newest_event
        self.events: deque[Event] = deque()
        # Set, and another one put in its place, whenever something happened.
        self.changed = asyncio.Event()

    @property
    def newest(self) -> int:
        return self.events[-1].id if self.events else self.floor

    @property
    def is_over(self) -> bool:
        return self.status.state in ENDS

    def take(self, status: StudyStatus, events: Sequence[Event]) -> None:
        """Adds what happened, and wakes those who wait."""
        self.status = status
        self.events.extend(events)
        while len(self.events) > MOST_KEPT:
            self.floor = self.events.popleft().id
        self.wake()

    def wake(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()


class Poller:
    """Reads for all listeners of one process. To be used in one event loop."""

    def __init__(self, store: Store, poll_s: float) -> None:
        self._store = store
        self._poll_s = poll_s
        self._feeds: dict[str, Feed] = {}
        self._task: asyncio.Task[None] | None = None
        self._limiter = anyio.CapacityLimiter(THREADS)
        self.stopped = False

    def stop(self) -> None:
        """Ends all waiting, now and from now on: the process is about to end."""
        self.stopped = True
        for feed in self._feeds.values():
            feed.wake()

    @asynccontextmanager
    async def listen(self, study_id: str) -> AsyncIterator[Feed | None]:
        """The study's feed, which is kept up while entered; ``None`` for an unknown study."""
        feed = self._feeds.get(study_id)
        if feed is None:
            status = await self._in_thread(lambda: self._store.status(study_id))
            if status is None:
                yield None
                return
            feed = self._feeds.setdefault(study_id, Feed(status))  # another may have been quicker
        feed.listeners += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="poller")
        try:
            yield feed
        finally:
            feed.listeners -= 1
            if not feed.listeners:
                self._feeds.pop(study_id, None)

    async def wait(self, feed: Feed, ready: Callable[[], bool], wait_s: float | None) -> None:
        """Waits until something has made ``ready`` true, for ``wait_s`` seconds at most."""
        try:
            async with asyncio.timeout(wait_s):
                while not ready() and not self.stopped:
                    await feed.changed.wait()
        except TimeoutError:
            pass

    async def events(self, feed: Feed, after: int) -> AsyncIterator[Event]:
        """The events of a study since the event ``after``, and those that come, until its end."""
        if after > feed.newest:  # read from another process before this one read it, or never
            await self.wait(feed, lambda: after <= feed.newest, 3 * self._poll_s)
            after = min(after, feed.newest)
        while True:
            changed = feed.changed
            found = await self._after(feed, after)
            for event in found:
                yield event
                after = event.id
            if self.stopped:
                return
            if found or changed is not feed.changed:
                continue
            if feed.is_over and after >= feed.status.newest_event:
                return
            await changed.wait()

    async def _after(self, feed: Feed, after: int) -> Sequence[Event]:
        if after >= feed.floor:
            return [event for event in feed.events if event.id > after]
        study_id, newest = feed.status.id, feed.newest
        found = await self._in_thread(lambda: self._store.events(study_id, after, PAGE))
        return [event for event in found if event.id <= newest]  # later ones come to the feed

    async def _run(self) -> None:
        """Looks again and again, while anybody listens."""
        pause_s = self._poll_s
        while self._feeds and not self.stopped:
            await asyncio.sleep(pause_s)
            feeds = dict(self._feeds)  # of the same study another may have begun when it is read
            newest = {
                one: (feed.newest, feed.status.state, feed.status.reason)
                for one, feed in feeds.items()
            }
            try:
                read = partial(self._store.changes, newest, PAGE)
                found = await self._in_thread(read)
            except (TunerError, SQLAlchemyError) as error:
                log.warning("%s; listeners wait", error)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            pause_s = self._poll_s
            for study_id, (status, events) in found.items():
                feeds[study_id].take(status, events)

    async def _in_thread(self, read: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(read, limiter=self._limiter)
