"""Health, metrics and the audit."""

import asyncio
import threading

from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from starlette.testclient import TestClient

from api import ops
from api.app import create_app
from api.ops import FIGURES_S, Metrics, Readiness
from api.settings import Settings
from tests.unit.api.conftest import Clock
from tuner.core.measurement import Outcome
from tuner.core.study import ProbeState, StudyState
from tuner.errors import StoreError
from tuner.store.access import Action, Audit, Keys
from tuner.store.figures import Figures
from tuner.store.tables import VERSION_TABLE, AttemptState, Scope

# -- health


def test_up_but_not_ready_on_another_versions_database(client, store):
    with store.transactions.write() as session:
        session.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))
    answer = client.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "schema is at 0001" in answer.json()["detail"]
    assert client.get("/healthz").status_code == 200


def test_one_looks_for_all_that_ask(store, clock, monkeypatch):
    """A database that hangs holds one thread, not those that requests need."""
    looks, hangs, readiness = [], threading.Event(), Readiness(store, clock=clock)

    def look(_):
        looks.append(1)
        hangs.wait(30)
        return "it hung"

    async def ask():
        asking = [asyncio.create_task(readiness.why_not()) for _ in range(100)]
        await asyncio.sleep(0)
        hangs.set()
        return await asyncio.gather(*asking)

    monkeypatch.setattr(ops, "why_not_ready", look)
    assert asyncio.run(ask()) == ["it hung"] * 100
    assert len(looks) == 1


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
LATENCY = "tuner_http_request_duration_seconds"


def samples(metrics):
    """Every sample, by its name and labels, as Prometheus reads them."""
    body, media_type = metrics.text()
    assert media_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def value(found, name, **labels):
    return found[name, frozenset(labels.items())]


def make(read=lambda: FIGURES, clock=None):
    return Metrics(read, version="1.2.3", clock=clock or Clock())


def test_it_is_degraded_for_a_while_after_a_write_failed(store, clock):
    readiness = Readiness(store, clock=clock)
    assert not readiness.is_degraded
    store.transactions.write_failed_at = clock.now
    clock.now += ops.DEGRADED_S - 1
    assert readiness.is_degraded
    clock.now += 1
    assert not readiness.is_degraded


def test_figures_of_the_queue():
    found = samples(make())
    for name, labels, expected in (
        ("tuner_database_up", {}, 1),
        ("tuner_studies", {"state": "running"}, 2),
        ("tuner_probes", {"state": "queued"}, 7),
        ("tuner_attempts", {"state": "lost"}, 4),
        ("tuner_probes_done_total", {"outcome": "oom"}, 10),
        ("tuner_probe_seconds_total", {"outcome": "ok"}, 600.5),
        ("tuner_lease_age_seconds", {}, 9.5),
        ("tuner_devices_held", {}, 6),
        ("tuner_workers", {}, 2),
        ("tuner_info", {"version": "1.2.3"}, 1),
    ):
        assert value(found, name, **labels) == expected, name
    assert any(name == "process_cpu_seconds_total" for name, _ in found)


def test_a_database_that_is_gone_is_told_and_comes_back(clock):
    fails = [True]

    def read():
        if fails[0]:
            raise StoreError("gone")
        return FIGURES

    metrics = make(read, clock)
    metrics.observe("/tune", "GET", 503, 0.1)
    found = samples(metrics)
    assert value(found, "tuner_database_up") == 0
    assert not any(name == "tuner_probes" for name, _ in found)
    assert value(found, f"{LATENCY}_count", route="/tune", method="GET", status="503") == 1
    fails[0] = False
    clock.now += FIGURES_S
    assert value(samples(metrics), "tuner_database_up") == 1


def test_only_admins_see_the_audit_in_pages(store):
    client = TestClient(
        create_app(store, Settings(_env_file=None, require_keys=True)), base_url="http://localhost"
    )
    assert client.get("/audit").status_code == 401
    keys = {scope: Keys(store.transactions).create("a", scope)[1] for scope in Scope}
    bearer = {scope: {"Authorization": f"Bearer {key}"} for scope, key in keys.items()}
    assert client.get("/audit", headers=bearer[Scope.SUBMIT]).status_code == 403
    admin, audit = bearer[Scope.ADMIN], Audit(store.transactions)
    for number in range(4):
        audit.note("local", Action.SUBMIT, "st-0123456789ab", times=number)
    found = []
    cursor = {}
    while len(found) < 10:
        page = client.get("/audit", params={"limit": 2, **cursor}, headers=admin).json()
        found += [(item["action"], item["data"].get("times")) for item in page["audit"]]
        if page["next"] is None:
            break
        cursor = {"before": page["next"]}
    assert found[:4] == [("tune.submit", number) for number in (3, 2, 1, 0)]
    assert found[4:] == [("key.create", None)] * 3
    for query in ("limit=0", "limit=201", "before=0", f"before={2**63}"):
        assert client.get(f"/audit?{query}", headers=admin).status_code == 422
