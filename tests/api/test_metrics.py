"""What Prometheus is told."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from api.metrics import FRESH_S, METHODS, Metrics
from tuner.errors import StoreError
from tuner.measurement import Outcome
from tuner.store import open_store
from tuner.store.figures import Figures, read_figures
from tuner.store.records import AttemptState
from tuner.study import ProbeState, StudyState

FIGURES = Figures(
    studies={StudyState.RUNNING: 2, StudyState.DONE: 5},
    probes={ProbeState.QUEUED: 7, ProbeState.DONE: 40},
    attempts={AttemptState.RUNNING: 3, AttemptState.LOST: 4},
    outcomes={Outcome.OK: 30, Outcome.OOM: 10},
    probe_s={Outcome.OK: 600.5, Outcome.OOM: 20.0},
    oldest_beat_s=9.5,
    devices_held=6,
    workers_living=2,
)
Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


class Clock:
    """A clock that stands still."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def samples(metrics: Metrics) -> Samples:
    """Every sample, by its name and labels, as Prometheus reads them."""
    body, media_type = metrics.text()
    assert media_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(found: Samples, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def make(read: Callable[[], Figures] = lambda: FIGURES, clock: Clock | None = None) -> Metrics:
    return Metrics(read, version="1.2.3", clock=clock or Clock())


def test_figures_of_the_queue() -> None:
    found = samples(make())
    assert value(found, "tuner_database_up") == 1
    assert value(found, "tuner_studies", state="running") == 2
    assert value(found, "tuner_probes", state="queued") == 7
    assert value(found, "tuner_attempts", state="lost") == 4
    assert value(found, "tuner_probes_done_total", outcome="oom") == 10
    assert value(found, "tuner_probe_seconds_total", outcome="ok") == 600.5
    assert value(found, "tuner_lease_age_seconds") == 9.5
    assert value(found, "tuner_devices_held") == 6
    assert value(found, "tuner_workers") == 2
    assert value(found, "tuner_info", version="1.2.3") == 1
    assert any(name == "process_cpu_seconds_total" for name, _ in found)


def test_figures_of_a_real_database(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:

        def read() -> Figures:
            with store.transactions.read() as session:
                return read_figures(session)

        found = samples(make(read))
    assert value(found, "tuner_database_up") == 1
    for state in StudyState:
        assert value(found, "tuner_studies", state=str(state)) == 0
    for outcome in Outcome:
        assert value(found, "tuner_probe_seconds_total", outcome=str(outcome)) == 0


def test_nothing_is_read_until_somebody_asks() -> None:
    def read() -> Figures:
        raise AssertionError

    make(read)


def test_figures_are_read_once_in_a_while_however_many_ask() -> None:
    reads = []
    clock = Clock()

    def read() -> Figures:
        reads.append(clock.now)
        return FIGURES

    metrics = make(read, clock)
    threads = [threading.Thread(target=metrics.text) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reads == [0.0]
    clock.now = FRESH_S
    metrics.text()
    assert reads == [0.0, FRESH_S]


def test_a_database_that_is_gone_is_told_and_comes_back() -> None:
    clock = Clock()
    fails = [True]

    def read() -> Figures:
        if fails[0]:
            raise StoreError("gone")
        return FIGURES

    metrics = make(read, clock)
    metrics.observe("/tune", "GET", 503, 0.1)
    found = samples(metrics)
    assert value(found, "tuner_database_up") == 0
    assert not any(name == "tuner_probes" for name, _ in found)
    labels = {"route": "/tune", "method": "GET", "status": "503"}
    assert value(found, "tuner_http_request_duration_seconds_count", **labels) == 1
    fails[0] = False
    clock.now = FRESH_S
    assert value(samples(metrics), "tuner_database_up") == 1


def test_latencies_by_route_method_and_status() -> None:
    metrics = make()
    for seconds in (0.002, 0.3, 20.0):
        metrics.observe("/tune/{study_id}", "GET", 200, seconds)
    found = samples(metrics)
    labels = {"route": "/tune/{study_id}", "method": "GET", "status": "200"}
    name = "tuner_http_request_duration_seconds"
    assert value(found, f"{name}_count", **labels) == 3
    assert value(found, f"{name}_sum", **labels) == pytest.approx(20.302)
    assert value(found, f"{name}_bucket", **labels, le="0.4") == 2


def test_nobody_makes_up_series() -> None:
    metrics = make()
    for number in range(50):
        metrics.observe("(none)", f"METHOD{number}", 405, 0.1)
    methods = {dict(labels).get("method") for _, labels in samples(metrics)} - {None}
    assert methods == {"other"}
    assert "other" not in METHODS


def test_two_processes_share_no_registry() -> None:
    first, second = make(), make()
    first.observe("/tune", "GET", 200, 0.1)
    assert not any("http" in name for name, _ in samples(second))
