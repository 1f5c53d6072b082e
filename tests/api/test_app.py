"""Studies over HTTP: what is there, what is not, and who may ask."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from tuner.cluster import parse_cluster
from tuner.framework import framework
from tuner.measurement import Measurement, Memory, Outcome
from tuner.model import load_model
from tuner.planner import Stop, Wait, next_probe, probe_as_dict
from tuner.store import Store, WorkerIdentity, open_store
from tuner.study import Question, Study, StudyState, Terms
from tuner.workload import Workload


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/studies.db") as opened:
        yield opened


@pytest.fixture
def study(store: Store) -> Study:
    """A study with one measured probe."""
    workload = Workload(model=load_model("stories15m"), sequence_length=128, global_batch_size=8)
    question = Question(
        workload=workload, cluster=parse_cluster("cpu:2"), framework=framework("torch", {})
    )
    asked = store.ask(question, Terms(max_probes=4))
    store.move(asked.id, StudyState.RUNNING)
    asked = store.study(asked.id)
    request = next_probe(asked)
    assert not isinstance(request, Stop | Wait)
    store.enter_probe(asked.id, asked.revision, request, 10**9)
    claim = store.claim(asked.id, WorkerIdentity.of_this_process())
    assert claim is not None
    memory = Memory(
        allocated_bytes=3 * 10**8, allocated_low_bytes=3 * 10**8, reserved_bytes=3 * 10**8,
        device_bytes=5 * 10**8, overhead_bytes=0, by_phase={"forward": 3 * 10**8},
        by_category={"parameters": 10**8}, per_rank_bytes=(3 * 10**8,) * 2,
    )  # fmt: skip
    count = request.settings.gradient_accumulation_steps
    store.record(
        claim,
        Measurement(outcome=Outcome.OK, memory=memory, step_times_s={count: (1.0,) * 10}),
    )
    return store.study(asked.id)


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    with TestClient(create_app(store), base_url="http://localhost") as opened:
        yield opened


def test_it_is_up(client: TestClient) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}


def test_lists_studies(client: TestClient, study: Study) -> None:
    (listed,) = client.get("/tune").json()["studies"]
    assert listed["study_id"] == study.id
    assert listed["model"] == "stories15m"
    assert listed["cluster"] == "cpu:2"
    assert listed["probes"] == {"ok": 1}


def test_shows_a_study_with_its_suggestion(client: TestClient, study: Study) -> None:
    body = client.get(f"/tune/{study.id}").json()
    assert body["state"] == "running"
    assert body["question"]["workload"]["global_batch_size"] == 8
    best = body["suggestion"]["best"]
    assert best["provenance"] == "measured"
    assert best["step_time_s"]["value"] == 1.0


def test_shows_probes(client: TestClient, study: Study) -> None:
    (probe,) = client.get(f"/tune/{study.id}/probes").json()["probes"]
    assert probe == json.loads(json.dumps(probe_as_dict(study, study.probes[0])))
    assert probe["state"] == "done"
    assert probe["measurement"]["outcome"] == "ok"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/tune/st-000000000000", 404),
        ("/nowhere", 404),
        ("/tune?limit=0", 422),
        ("/tune?limit=many", 422),
        (f"/tune/{'x' * 65}", 422),
    ],
)
def test_errors_are_problems(client: TestClient, path: str, status: int) -> None:
    response = client.get(path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == status
    assert body["detail"]
    assert "Traceback" not in response.text


def test_only_reading_is_allowed(client: TestClient, study: Study) -> None:
    assert client.post("/tune", json={}).status_code == 405
    assert client.delete(f"/tune/{study.id}").status_code == 405


def test_another_host_name_is_refused(client: TestClient) -> None:
    """A page of another name that resolves to this machine must not read studies."""
    assert client.get("/tune", headers={"host": "evil.example"}).status_code == 400
