"""``GET /healthz`` and ``GET /readyz``: for whoever starts, watches and routes to this process."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Literal

import anyio
from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict

from api.documented import answer, problems
from api.problems import RETRY_S, ProblemError
from tuner.errors import TunerError
from tuner.store import Store
from tuner.store.ready import why_not_ready

FRESH_S = 1.0
"""Readiness is looked up once in this time, however many ask."""

log = logging.getLogger(__name__)


class Up(BaseModel):
    """The process answers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """The database is reached, and at this version's schema."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ready"}]})

    status: Literal["ready"] = "ready"


class Readiness:
    """Whether the database can be worked with, looked up once a second at most.

    Anybody may ask, and a database that hangs is slow to say so: one thread looks, however many
    wait for it.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transactions = store.transactions
        self._clock = clock
        self._lock = asyncio.Lock()
        self._thread = anyio.CapacityLimiter(
            1
        )  # its own: slow requests must not take the service down
        self._looked_at = float("-inf")
        self._why = ""

    async def why_not(self) -> str:
        """Why it cannot be; empty when it can. Nothing of the machine is told."""
        async with self._lock:
            if self._clock() - self._looked_at >= FRESH_S:
                self._why = await anyio.to_thread.run_sync(self._look, limiter=self._thread)
                self._looked_at = self._clock()
            return self._why

    def _look(self) -> str:
        try:
            return why_not_ready(self._transactions)
        except TunerError as error:
            log.warning("%s", error)
            return "the database cannot be used now"


def health_router(store: Store) -> APIRouter:
    """The routes about this process; neither needs a key."""
    router = APIRouter(tags=["operations"])
    readiness = Readiness(store)

    @router.get(
        "/healthz",
        summary="Whether this process answers",
        responses={200: answer(Up, "It does.")},
    )
    async def healthz() -> Up:
        """It looks at nothing else: for whoever starts this process again when it hangs."""
        return Up()

    @router.get(
        "/readyz",
        summary="Whether the database is reached, and at this version's schema",
        responses={200: answer(Ready, "It is."), 503: problems()[503]},
    )
    async def readyz() -> Ready:
        """Otherwise a problem says why: for whoever sends requests here."""
        if why := await readiness.why_not():
            raise ProblemError(503, why, {"Retry-After": str(RETRY_S)})
        return Ready()

    return router
