"""Operation of the service: health, metrics for Prometheus, and the audit."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Annotated, Any, Literal

import anyio
from fastapi import APIRouter, Query, Response
from prometheus_client import CollectorRegistry, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, ConfigDict, Field

from api import EXAMPLES
from api.openapi import answer, problems, text_answer
from api.problems import RETRY_S, ProblemError
from api.security import Admin, Reader
from tuner.errors import TunerError
from tuner.store import Store
from tuner.store.access import Audit
from tuner.store.figures import Figures
from tuner.store.migrate import why_not_ready

log = logging.getLogger("api.ops")

# -- health -----------------------------------------------------------------------------------

# Seconds for which readiness is kept, however many ask.
READY_S = 1.0
# Seconds after a write that failed for which that is told.
DEGRADED_S = 30.0


class Up(BaseModel):
    """The process answers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ok"}]})

    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    """The database is reached, and at this version's schema."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "ready"}]})

    status: Literal["ready", "degraded"] = Field(
        description="`degraded` for half a minute after something could not be written: what is"
        " known is answered, and what is asked may not be taken."
    )


class Readiness:
    """Looks once a second, at most, whether the database can be worked with.

    Anybody may ask, and a database that hangs is slow to say so: one thread looks, however many
    wait for it.
    """

    def __init__(self, store: Store, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._transactions = store.transactions
        self._clock = clock
        self._lock = asyncio.Lock()
        self._thread = anyio.CapacityLimiter(1)  # its own: no slow request takes the service down
        self._looked_at = float("-inf")
        self._why = ""

    async def why_not(self) -> str:
        """The reason that it cannot be; empty when it can. Nothing of the machine is in it."""
        async with self._lock:
            if self._clock() - self._looked_at >= READY_S:
                self._why = await anyio.to_thread.run_sync(self._look, limiter=self._thread)
                self._looked_at = self._clock()
            return self._why

    @property
    def is_degraded(self) -> bool:
        """True where something could not be written lately: the disk may be full, or a lock be
        held by another process."""
        return self._clock() - self._transactions.write_failed_at < DEGRADED_S

    def _look(self) -> str:
        try:
            return why_not_ready(self._transactions)
        except TunerError as error:
            log.warning("%s", error)
            return "the database cannot be used now"


# -- metrics ----------------------------------------------------------------------------------

# Seconds for which figures of the database are kept, however many ask.
FIGURES_S = 5.0
# Methods with a series of their own; whatever else is sent counts as ``other``.
METHODS = frozenset({"GET", "HEAD", "POST", "DELETE"})
# Bounds of latencies: a long poll takes a minute at most.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.4, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)


class Metrics(Collector):
    """The metrics of one process of the service, in a registry of their own.

    ``read`` gets the database's figures; one that cannot be read is a figure, too.
    """

    def __init__(
        self,
        read: Callable[[], Figures],
        *,
        version: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._clock = read, clock
        self._lock = Lock()
        self._read_at = float("-inf")
        self._kept: Figures | None = None
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        Info("tuner", "This version.", registry=self._registry).info({"version": version})
        self._latencies = Histogram(
            "tuner_http_request_duration_seconds",
            "Time from a request to the end of its answer; streams and long polls wait on purpose.",
            labelnames=("route", "method", "status"),
            buckets=BUCKETS_S,
            registry=self._registry,
        )

    def observe(self, route: str, method: str, status: int, duration_s: float) -> None:
        """Notes one answered request by its route's template, of which there are few."""
        known = method if method in METHODS else "other"
        self._latencies.labels(route, known, str(status)).observe(duration_s)

    def text(self) -> tuple[bytes, str]:
        return generate_latest(self._registry), CONTENT_TYPE_LATEST

    def describe(self) -> Iterable[Metric]:
        """No metrics, so that registering reads no database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            if self._clock() - self._read_at >= FIGURES_S:
                try:
                    self._kept = self._read()
                except TunerError:
                    self._kept = None
                self._read_at = self._clock()
            figures = self._kept
        text = "1 when figures could be read, else 0."
        yield GaugeMetricFamily("tuner_database_up", text, value=float(figures is not None))
        if figures is None:
            return
        counted: tuple[tuple[str, str, str, Mapping[Any, float]], ...] = (
            ("tuner_studies", "Studies in each state.", "state", figures.studies),
            ("tuner_probes", "Probes in each state.", "state", figures.probes),
            ("tuner_attempts", "Attempts in each state; lost ones too.", "state", figures.attempts),
            ("tuner_probes_done", "Probes that are done, by outcome.", "outcome", figures.outcomes),
            ("tuner_probe_seconds", "Time that these took.", "outcome", figures.probe_s),
        )
        for name, text, label, counts in counted:
            # What has an outcome only grows.
            kind = GaugeMetricFamily if label == "state" else CounterMetricFamily
            family = kind(name, text, labels=[label])
            for key, count in counts.items():
                family.add_metric([str(key)], count)
            yield family
        for name, text, figure in (
            (
                "tuner_lease_age_seconds",
                "Since the last beat of the running attempt that was silent longest; 0 when none"
                " runs.",
                figures.oldest_beat_s,
            ),
            ("tuner_devices_held", "Devices that running attempts hold.", figures.devices_held),
            ("tuner_workers", "Workers that were seen within a lease.", figures.workers_living),
        ):
            yield GaugeMetricFamily(name, text, value=figure)


# -- audit ------------------------------------------------------------------------------------

# Entries of one answer.
MOST = 200


class AuditItem(BaseModel):
    """One thing that somebody did."""

    model_config = ConfigDict(
        from_attributes=True, json_schema_extra={"examples": [EXAMPLES["audit"]]}
    )

    id: int = Field(description="Grows with time.")
    at: str = Field(description="UTC in ISO 8601, by the database's clock.")
    actor: str = Field(
        description="A key's id; or `local`, with the user's name where a command did it."
    )
    action: str = Field(description="Such as `tune.submit` or `key.revoke`.")
    study_id: str = Field(description="The study that it was done to; empty for none.")
    data: dict[str, Any] = Field(description="More of it, such as the caller's address.")


class AuditPage(BaseModel):
    """Entries, the newest first."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"audit": [EXAMPLES["audit"]], "next": None}]}
    )

    audit: list[AuditItem]
    next: int | None = Field(
        description="Give it as `before` to read on; null after the oldest entry."
    )


# -- routes -----------------------------------------------------------------------------------


def operations_router(store: Store, metrics: Metrics) -> APIRouter:
    """The routes about this process and its database."""
    router = APIRouter(tags=["operations"])
    readiness = Readiness(store)
    audit = Audit(store.transactions)

    @router.get("/audit", summary="Who did what, the newest first", responses={**problems(422)})
    def show_audit(
        caller: Admin,
        limit: Annotated[int, Query(ge=1, le=MOST, description="Entries at most")] = 50,
        before: Annotated[
            int | None, Query(ge=1, lt=2**63, description="Only entries older than this id")
        ] = None,
    ) -> AuditPage:
        """Keys made and revoked, sessions, questions asked, and studies cancelled."""
        items = [AuditItem.model_validate(entry) for entry in audit.newest(limit, before)]
        return AuditPage(audit=items, next=items[-1].id if len(items) == limit else None)

    @router.get(
        "/healthz", summary="Whether this process answers", responses={200: answer(Up, "It does.")}
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
        return Ready(status="degraded" if readiness.is_degraded else "ready")

    @router.get(
        "/metrics",
        summary="Figures of the queue and latencies of requests, for Prometheus",
        response_class=Response,
        responses={
            200: text_answer({"text/plain": EXAMPLES["metrics"]}, "The figures."),
            **problems(),
        },
    )
    def read_metrics(caller: Reader) -> Response:
        """In Prometheus's text format. A database that cannot be read is a figure, too."""
        body, media_type = metrics.text()
        return Response(body, media_type=media_type)

    return router
