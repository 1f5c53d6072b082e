"""Ends what is open of a key that was revoked, or a session that is over: streams, long polls.

Both are checked at the beginning of each request. A stream may be open for days after that.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from api.problems import problem
from tuner.errors import TunerError
from tuner.store.keys import Keys
from tuner.store.sessions import Sessions

LOOK_S = 2.0
"""Seconds between two looks at them, while requests are open that are older than that."""

log = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class _Open:
    """A request that is being answered."""

    proof: str
    """Id of the key, or of the session, that it was let in by."""
    since: float
    """When it began."""
    scope: anyio.CancelScope
    """Ends it."""


class Revocation:
    """Serves requests, and ends those whose proof no longer holds. To be used in one event loop.

    Two queries every two seconds, however many are open. Only what changes nothing is ended: a
    question or a cancelling that has begun gets its answer.
    """

    def __init__(
        self,
        keys: Keys,
        sessions: Sessions,
        *,
        look_s: float = LOOK_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = keys
        self._sessions = sessions
        self._look_s = look_s
        self._clock = clock
        self._open: set[_Open] = set()
        self._task: asyncio.Task[None] | None = None
        self._thread = anyio.CapacityLimiter(1)  # its own, so that slow requests hold nothing up

    async def serve(
        self, proof: str, app: ASGIApp, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Has ``app`` answer a request while its proof holds; empty where none is needed."""
        if not proof or scope["method"] not in ("GET", "HEAD"):
            await app(scope, receive, send)
            return
        has_begun = is_over = False

        async def noting(message: Message) -> None:
            nonlocal has_begun, is_over
            has_begun = True
            is_over = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        with anyio.CancelScope() as until:
            request = _Open(proof, self._clock(), until)
            self._watch(request)
            try:
                await app(scope, receive, noting)
            finally:
                self._open.discard(request)
        if not until.cancelled_caught or is_over:
            return
        if has_begun:  # a client that comes again is told why
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        else:
            headers = {"WWW-Authenticate": 'Bearer realm="tuner", error="invalid_token"'}
            await problem(401, "this key was revoked, or the session is over", headers)(
                scope, receive, send
            )

    def _watch(self, request: _Open) -> None:
        self._open.add(request)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="revocation")

    async def _run(self) -> None:
        """Looks again and again, while anything is open."""
        while self._open:
            await asyncio.sleep(self._look_s)
            before = self._clock() - self._look_s
            old = [request for request in self._open if request.since <= before]
            if not old:
                continue
            try:
                good = await self.good()
            except TunerError as error:
                log.warning("%s; which keys and sessions still hold is not known", error)
                continue
            for request in old:
                if request.proof not in good:
                    request.scope.cancel()

    async def good(self) -> set[str]:
        """Ids of the keys that are not revoked, and of the sessions that are not over."""

        def read() -> set[str]:
            keys = {key.id for key in self._keys.list() if key.revoked_at is None}
            return keys | self._sessions.open_ids()

        return await anyio.to_thread.run_sync(read, limiter=self._thread)
