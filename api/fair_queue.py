"""Whose request is worked at next, of those that compute."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar, TypeVarTuple, Unpack

import anyio

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

SHARE = 4
"""One key's requests have one in so many of the threads."""


class FairQueue:
    """Works at some requests of each key at a time; its others wait, and hold no thread.

    Each may take seconds of computing. Who sends hundreds keeps only their own waiting.
    """

    def __init__(self, threads: int) -> None:
        """``threads`` are those that requests are worked at with."""
        self._each = max(1, threads // SHARE)
        self._limiters: dict[str, anyio.CapacityLimiter] = {}

    @asynccontextmanager
    async def taken(self, owner: str) -> AsyncIterator[None]:
        """Waits for a turn of a key, and holds it while entered; empty is for who needs no key."""
        if not owner:
            yield
            return
        limiter = self._limiters.setdefault(owner, anyio.CapacityLimiter(self._each))
        try:
            async with limiter:
                yield
        finally:
            if not limiter.borrowed_tokens and not limiter.statistics().tasks_waiting:
                self._limiters.pop(owner, None)

    async def run(self, owner: str, work: Callable[[Unpack[Ts]], T], *arguments: *Ts) -> T:
        """What ``work`` gives, done in a thread in a turn of a key."""
        async with self.taken(owner):
            return await anyio.to_thread.run_sync(work, *arguments)
