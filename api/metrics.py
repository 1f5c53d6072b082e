"""What ``GET /metrics`` tells Prometheus: the queue's figures, and how long requests take."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from tuner.errors import TunerError
from tuner.measurement import Outcome
from tuner.store.figures import Figures

FRESH_S = 5.0
"""Figures are read from the database once in this time, however many ask."""
METHODS = frozenset({"GET", "HEAD", "POST", "DELETE"})
"""Methods with a series of their own; whatever else is sent counts as ``other``."""
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.4, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Bounds of latencies: a long poll takes a minute at most."""


class Metrics:
    """The metrics of one process of the service, in a registry of their own."""

    def __init__(
        self,
        read: Callable[[], Figures],
        *,
        version: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Metrics whose figures ``read`` gets from the database; it may raise TunerError."""
        self._registry = CollectorRegistry()
        self._registry.register(_Queue(read, clock))
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
        """Note one answered request.

        Args:
            route: its template, such as ``/tune/{study_id}``: few, whatever is asked.
            method: as it was sent.
            status: of the answer.
            duration_s: seconds from the request to the end of the answer.
        """
        known = method if method in METHODS else "other"
        self._latencies.labels(route, known, str(status)).observe(duration_s)

    def text(self) -> tuple[bytes, str]:
        """All metrics in Prometheus's text format, and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST


class _Queue(Collector):
    """Figures of the database; without them, that it cannot be read."""

    def __init__(self, read: Callable[[], Figures], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._lock = Lock()
        self._read_at = float("-inf")
        self._kept: Figures | None = None

    def describe(self) -> Iterable[Metric]:
        """Nothing, so that registering reads no database."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The metrics now."""
        figures = self._figures()
        reached = GaugeMetricFamily("tuner_database_up", "1 when figures could be read, else 0.")
        reached.add_metric([], float(figures is not None))
        yield reached
        if figures is not None:
            yield from _families(figures)

    def _figures(self) -> Figures | None:
        with self._lock:
            now = self._clock()
            if now - self._read_at >= FRESH_S:
                try:
                    self._kept = self._read()
                except TunerError:
                    self._kept = None
                self._read_at = self._clock()
            return self._kept


def _families(figures: Figures) -> Iterator[Metric]:
    yield _by_state("tuner_studies", "Studies in each state.", figures.studies)
    yield _by_state("tuner_probes", "Probes in each state.", figures.probes)
    yield _by_state("tuner_attempts", "Attempts in each state; lost ones too.", figures.attempts)
    yield GaugeMetricFamily(
        "tuner_lease_age_seconds",
        "Since the last beat of the running attempt that was silent longest; 0 when none runs.",
        value=figures.oldest_beat_s,
    )
    yield _by_outcome("tuner_probes_done", "Probes that are done, by outcome.", figures.outcomes)
    yield _by_outcome("tuner_probe_seconds", "Time that these took.", figures.probe_s)
    yield GaugeMetricFamily(
        "tuner_devices_held", "Devices that running attempts hold.", value=figures.devices_held
    )
    yield GaugeMetricFamily(
        "tuner_workers", "Workers that were seen within a lease.", value=figures.workers_living
    )


def _by_state(name: str, text: str, counts: Mapping[Any, int]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=["state"])
    for state, count in counts.items():
        family.add_metric([str(state)], count)
    return family


def _by_outcome(name: str, text: str, totals: Mapping[Outcome, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=["outcome"])
    for outcome, total in totals.items():
        family.add_metric([str(outcome)], total)
    return family
