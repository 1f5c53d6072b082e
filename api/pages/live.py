"""A page that moves: what changed of a study, to all who look at it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import anyio
from markupsafe import Markup

from api.pages.render import utc_now
from api.pages.study import Shown, StudyPages
from api.poller import Feed, Poller
from tuner.errors import TunerError
from tuner.store.standing import Standing

LEAST_S = 1.0
"""Between two changes that are sent to the same viewer."""
PAUSE_S = 5.0
"""Before it is tried again, when the database cannot be used."""

log = logging.getLogger("api.pages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is not as it was when a viewer was told last."""

    shown: Shown
    """The study as it is now."""
    parts: Mapping[str, Markup]
    """The parts that changed, by name."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "state": str(self.shown.state),
            "is_open": self.shown.is_open,
            "version": self.shown.version,
            "said": self.shown.said,
            "now": utc_now(),
            "parts": dict(self.parts),
        }


class Live:
    """Pages for those who watch. To be used in one event loop.

    However many watch a study, each of its events has it read, and its page made, once.
    """

    def __init__(self, pages: StudyPages, poller: Poller) -> None:
        self._pages = pages
        self._poller = poller
        self._making: dict[tuple[str, int], asyncio.Task[Shown]] = {}

    async def changes(self, feed: Feed, known: str) -> AsyncIterator[Change]:
        """What changes of a study's page, and at its end a last change, if an empty one.

        Args:
            feed: the study's, listened to.
            known: version of the page that the viewer has.
        """
        sent: Mapping[str, Markup] = {}
        while not self._poller.stopped:
            changed = feed.changed
            try:
                shown = await self._shown(feed.standing)
            except TunerError as error:
                log.warning("%s; viewers wait", error)
                await self._poller.wait(feed, lambda: False, PAUSE_S)
                continue
            parts = {} if known == shown.version else shown.beside(sent)
            sent, known = shown.parts, ""
            if parts or not shown.is_open:
                yield Change(shown=shown, parts=parts)
            if not shown.is_open:
                return
            await self._poller.wait(feed, lambda: False, LEAST_S)
            while changed is feed.changed and not self._poller.stopped:
                await changed.wait()

    async def _shown(self, standing: Standing) -> Shown:
        key = (standing.id, standing.newest_event)
        task = self._making.get(key)
        if task is None:
            task = asyncio.create_task(anyio.to_thread.run_sync(self._pages.of, standing))
            task.add_done_callback(lambda done: self._making.pop(key, None))
            self._making[key] = task
        return await asyncio.shield(task)
