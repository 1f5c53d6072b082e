"""A study's answer as a launcher's file."""

from collections.abc import Callable
from typing import Any

import yaml
from starlette.testclient import TestClient

from tests.api.studies import MEASURED, PREDICTED, probe
from tuner.framework import installed_versions
from tuner.measurement import Measurement, Outcome
from tuner.planner import Stop, next_probe
from tuner.store import Store
from tuner.study import StudyState

FRAMEWORK = {**PREDICTED, "framework": "accelerate"}


def test_the_file_says_where_it_is_from(
    client: TestClient, keep_dry_runs: Callable[[Any], None]
) -> None:
    keep_dry_runs(FRAMEWORK)
    path = client.post("/tune", json=FRAMEWORK).headers["location"]
    response = client.get(f"{path}/export/accelerate")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/yaml"
    assert response.headers["content-disposition"] == 'attachment; filename="accelerate.yaml"'
    assert yaml.safe_load(response.text)["compute_environment"] == "LOCAL_MACHINE"
    assert path.removeprefix("/tune/") in response.text


def test_what_is_measured_is_exported(client: TestClient, store: Store) -> None:
    path = client.post("/tune", json=MEASURED).headers["location"]
    probe(store, path.removeprefix("/tune/"))
    text = client.get(f"{path}/export/accelerate").text
    assert yaml.safe_load(text)
    assert "measured" in text


def test_without_an_answer_there_is_no_file(client: TestClient, store: Store) -> None:
    path = client.post("/tune", json=MEASURED).headers["location"]
    early = client.get(f"{path}/export/accelerate")
    assert early.status_code == 409
    assert "no suggestion yet" in early.json()["detail"]
    store.move(path.removeprefix("/tune/"), StudyState.CANCELLED)
    late = client.get(f"{path}/export/accelerate")
    assert late.status_code == 409
    assert late.headers["content-type"] == "application/problem+json"


def test_unknown_formats_and_studies(client: TestClient) -> None:
    path = client.post("/tune", json=PREDICTED).headers["location"]
    unknown = client.get(f"{path}/export/acelerate")
    assert unknown.status_code == 404
    assert unknown.json()["nearest"][0] == "accelerate"
    assert client.get("/tune/st-000000000000/export/accelerate").status_code == 404
    assert client.get(f"{path}/export/..%2Fx").status_code in (404, 422)


def test_what_trains_something_else_is_not_exported(client: TestClient, store: Store) -> None:
    knobs = {"sync_each_batch": [True], "gradient_accumulation_steps": [2, 4]}
    path = client.post("/tune", json={**MEASURED, "knobs": knobs}).headers["location"]
    study_id = path.removeprefix("/tune/")
    found = Measurement(
        outcome=Outcome.WRONG_RESULT,
        detail="rank 0: the optimizer stepped 18 times instead of 6",
        optimizer_steps=18,
        expected_optimizer_steps=6,
        versions={"torch": f"{installed_versions()['torch']}+cpu"},
    )
    probe(store, study_id, found)
    study = probe(store, study_id, found)
    stop = next_probe(study)
    assert isinstance(stop, Stop)
    assert store.move(study_id, StudyState.FAILED, stop.failure)

    why = "sync_each_batch=true trains something else: rank 0: the optimizer stepped 18 times"
    refused = client.get(f"{path}/export/accelerate")
    assert refused.status_code == 409
    assert refused.json()["reason"] == "trains_wrongly"
    assert why in refused.json()["detail"]
    shown = client.get(path).json()
    assert (shown["state"], shown["no_answer"]["kind"]) == ("failed", "trains_wrongly")
    assert why in shown["no_answer"]["message"]
    page = client.get(f"/studies/{study_id}", headers={"accept": "text/html"})
    assert page.status_code == 200
    assert "trains something else" in page.text

    # another question about the same program and versions
    other = {**PREDICTED, "framework": "accelerate", "knobs": knobs}
    path = client.post("/tune", json=other).headers["location"]
    assert client.get(f"{path}/export/accelerate").json()["reason"] == "trains_wrongly"
    stated = {"name": "accelerate", "versions": {"accelerate": "1.14.0"}}
    path = client.post("/tune", json={**other, "framework": stated}).headers["location"]
    assert "reason" not in client.get(f"{path}/export/accelerate").json()
