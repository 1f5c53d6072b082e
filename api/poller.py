"""One look at the database for all who wait for something to happen.

While anybody waits, one query every quarter of a second tells which of the studies that are waited
for have moved, and one more for each of these, in the same transaction, reads what happened. What
happened before anybody waited is read once for all. None of this grows with the number of those
who wait, and nobody who waits holds a thread.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import anyio
from sqlalchemy.exc import SQLAlchemyError

from tuner.errors import TunerError
from tuner.store import Event, Store
from tuner.store.events import read_events
from tuner.store.standing import Standing, Standings, read_standings
from tuner.study import OPEN, StudyState

T = TypeVar("T")

ENDS = frozenset(StudyState) - OPEN
"""States at which a study's end is reached: nothing more happens unless it is asked again."""
MOST_KEPT = 1000
"""Events of one study that are kept for those who listen; older ones are read again."""
PAGE = 500
"""Events that are read at once."""
LONGEST_PAUSE_S = 5.0
"""Between two looks while the database cannot be used."""
THREADS = 2
"""Threads for these queries, of their own: slow requests must not keep events waiting."""

log = logging.getLogger("api.poller")


class Feed:
    """What is known of one study that is listened to."""

    def __init__(self, standing: Standing) -> None:
        self.standing = standing
        """Where the study stands."""
        self.listeners = 0
        """How many listen."""
        self.floor = standing.newest_event
        """All later events are in ``events``."""
        self.events: deque[Event] = deque()
        """The newest ones, oldest first."""
        self.changed = asyncio.Event()
        """Set, and another one put in its place, whenever something happened."""
        self.filling = asyncio.Lock()
        """Held while what happened before is read for all who listen."""
        self.is_long = False
        """Whether too much happened to be kept: who wants the past reads it page by page."""

    @property
    def newest(self) -> int:
        """Id of the newest event that was read."""
        return self.events[-1].id if self.events else self.floor

    @property
    def is_over(self) -> bool:
        """Whether the study is at its end."""
        return self.standing.state in ENDS

    def take(self, standing: Standing, events: Sequence[Event]) -> None:
        """Takes in what happened, and wakes those who wait."""
        self.standing = standing
        self.events.extend(events)
        while len(self.events) > MOST_KEPT:
            self.floor = self.events.popleft().id
        self.wake()

    def put_before(self, past: Sequence[Event]) -> None:
        """Takes in all that happened before."""
        self.events.extendleft(reversed(past))
        self.floor = 0

    def wake(self) -> None:
        """Has those who wait look again."""
        self.changed.set()
        self.changed = asyncio.Event()


class Poller:
    """Reads for all listeners of one process. To be used in one event loop."""

    def __init__(self, store: Store, poll_s: float) -> None:
        """``poll_s`` are the seconds between two looks."""
        self._store = store
        self._standings = Standings(store.transactions)
        self._poll_s = poll_s
        self._feeds: dict[str, Feed] = {}
        self._asking: dict[str, asyncio.Task[Standing | None]] = {}
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
        """The study's feed, which is kept up while entered; ``None`` for an unknown study.

        Raises:
            StoreError: the database fails.
        """
        feed = self._feeds.get(study_id) or await self._open(study_id)
        if feed is None:
            yield None
            return
        feed.listeners += 1
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="poller")
        try:
            yield feed
        finally:
            feed.listeners -= 1
            if not feed.listeners:
                self._feeds.pop(study_id, None)

    async def _open(self, study_id: str) -> Feed | None:
        """A feed of a study to which nobody listened; those who come at once ask once."""
        asking = self._asking.get(study_id)
        if asking is None:
            ask = self._in_thread(lambda: self._standings.one(study_id))
            asking = self._asking[study_id] = asyncio.create_task(ask, name="standing")
            asking.add_done_callback(partial(self._asked, study_id))
        standing = await asyncio.shield(asking)  # others may still wait when one does not
        return None if standing is None else self._feeds.setdefault(study_id, Feed(standing))

    def _asked(self, study_id: str, asking: asyncio.Task[Standing | None]) -> None:
        del self._asking[study_id]
        if not asking.cancelled():
            asking.exception()  # those who wait have it, if any still do

    async def wait(self, feed: Feed, ready: Callable[[], bool], wait_s: float) -> None:
        """Waits until something has made ``ready`` true, for ``wait_s`` seconds at most."""
        try:
            async with asyncio.timeout(wait_s):
                while not ready() and not self.stopped:
                    await feed.changed.wait()
        except TimeoutError:
            pass

    async def events(self, feed: Feed, after: int) -> AsyncIterator[Event]:
        """What happened to a study since the event ``after``, and what happens, until its end."""
        if after > feed.newest:  # seen elsewhere before it was seen here, or never
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
            if feed.is_over and after >= feed.standing.newest_event:
                return
            await changed.wait()

    async def _after(self, feed: Feed, after: int) -> Sequence[Event]:
        if after < feed.floor:
            await self._fill(feed)
        if after >= feed.floor:
            return [event for event in feed.events if event.id > after]
        study_id, newest = feed.standing.id, feed.newest
        found = await self._in_thread(lambda: self._store.events(study_id, after, PAGE))
        return [event for event in found if event.id <= newest]  # later ones come to the feed

    async def _fill(self, feed: Feed) -> None:
        """Reads what happened before into a feed, for all who listen, unless that is too much."""
        async with feed.filling:
            if feed.is_long or not feed.floor:
                return
            study_id, floor, room = feed.standing.id, feed.floor, MOST_KEPT - len(feed.events)
            found = await self._in_thread(lambda: self._store.events(study_id, 0, room + 1))
            past = [event for event in found if event.id <= floor]
            if len(found) > room or feed.floor != floor or len(past) + len(feed.events) > MOST_KEPT:
                feed.is_long = True
            else:
                feed.put_before(past)

    async def _run(self) -> None:
        """Looks again and again, while anybody listens."""
        pause_s = self._poll_s
        while self._feeds and not self.stopped:
            await asyncio.sleep(pause_s)
            feeds = dict(self._feeds)  # of the same study another may have begun when it is read
            known = {study_id: feed.newest for study_id, feed in feeds.items()}
            try:
                found = await self._in_thread(lambda known=known: self._read(known))  # type: ignore[misc]
            except (TunerError, SQLAlchemyError) as error:
                log.warning("%s; listeners wait", error)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                continue
            pause_s = self._poll_s
            for study_id, (standing, events) in found.items():
                feeds[study_id].take(standing, events)

    def _read(self, known: Mapping[str, int]) -> dict[str, tuple[Standing, list[Event]]]:
        """Where those studies stand to which anything happened, and what it was.

        What happens between the two queries is left for the next look, with where that leads.
        """
        found = {}
        with self._store.transactions.read() as session:
            for study_id, standing in read_standings(session, known).items():
                if standing.newest_event > known[study_id]:
                    events = read_events(session, study_id, known[study_id], PAGE)
                    until = [event for event in events if event.id <= standing.newest_event]
                    found[study_id] = standing, until
        return found

    async def _in_thread(self, read: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(read, limiter=self._limiter)
