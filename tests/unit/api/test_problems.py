"""Errors in the product's own words."""

import logging

import pytest
from sqlalchemy import update
from sqlalchemy.orm import Session

from tests.unit.api.studies import MEASURED, PREDICTED, WORKLOAD, question_of
from tuner.core.cluster import parse_cluster
from tuner.core.study import Limits
from tuner.errors import UnknownNameError
from tuner.store.tables import StudyRow

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/tune?limit=0", "limit: got '0'; must be at least 1"),
        ("/tune?limit=201", "limit: got '201'; must be at most 200"),
        ("/tune?limit=many", "limit: got 'many'; must be an integer"),
        (f"/tune?query={'x' * 101}", "must have 100 characters or fewer"),
        (f"/audit?before={2**63}", f"must be below {2**63}"),
        ("/tune?state=gone", "state: got 'gone'; must be one of queued, running,"),
    ],
)
def test_what_is_wrong_is_told_with_what_was_given(client, path, detail):
    body = client.get(path).json()
    assert body["status"] == 422
    assert detail in body["detail"]
    assert body["allowed"] in body["detail"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"[" * 50_000, "the body is JSON too deep to be read"),
        (b"9" * 5_000, f"the body cannot be read: {'9' * 40} is too large a number"),
        (b"1e999", "the body cannot be read: 1e999 is too large a number"),
        (b'{"headroom": NaN}', "the body cannot be read: NaN is not JSON"),
        (b'{"pool": "\xff"}', "the body is not UTF-8"),
    ],
)
def test_json_that_cannot_be_read_is_told_so(client, content, why):
    response = client.post("/tune", content=content, headers=JSON)
    assert (response.status_code, response.json()["detail"]) == (400, why)


def test_a_study_of_another_version_is_500_for_good_and_holds_up_no_other(client, store, caplog):
    bad, good = (store.ask(question_of(body), Limits()).id for body in (PREDICTED, MEASURED))
    question = store.study(bad).question.as_dict()
    question["workload"]["precision"] = "fp4"
    with Session(store.transactions.writer) as session, session.begin():
        session.execute(update(StudyRow).where(StudyRow.id == bad).values(question=question))
    with caplog.at_level(logging.ERROR, "api"):
        responses = [client.get(f"/tune/{bad}{more}") for more in ("", "/probes", "?wait=1")]
    for response in responses:
        assert response.status_code == 500
        assert "retry-after" not in response.headers
        assert "fp4" not in response.text
        detail = response.json()["detail"]
        assert detail == "this version cannot read the study, and its log says why"
    assert f"study {bad} cannot be read by this version" in caplog.text
    assert client.get(f"/tune/{good}").status_code == 200
    listed = client.get("/tune").json()["studies"]
    assert {one["study_id"] for one in listed} == {bad, good}
    client.delete(f"/tune/{bad}")  # it can be got rid of
    assert client.get("/tune?state=cancelled").json()["studies"][0]["study_id"] == bad


def test_an_unknown_gpu_is_refused_from_every_door_with_the_same_words(client):
    with pytest.raises(UnknownNameError) as refused:
        parse_cluster("8xh1000")
    assert refused.value.nearest == ["h100-80gb", "h200", "h100-nvl"]
    one = {"workload": WORKLOAD, "cluster": "8xh1000"}
    doors = [client.post(path, json=one).json() for path in ("/tune", "/size")]
    for body in doors:
        assert body["allowed"] == refused.value.allowed
        assert body["nearest"] == refused.value.nearest
    settings = {"micro_batch_size": 1, "gradient_accumulation_steps": 1}
    predicted = client.post("/predict", json={**one, "settings": settings}).json()
    assert predicted["reason"] == refused.value.allowed


def test_of_several_fields_the_first_is_told_and_how_many_more(client):
    wrong = {**PREDICTED, "cluster": "8xh100", "headroom": 2, "tolerance": -1}
    body = client.post("/tune", json=wrong).json()
    assert body["detail"].endswith("; and 2 more, see errors")
    assert len(body["errors"]) == 3
    by_field = {one["field"]: one for one in body["errors"]}
    assert by_field["cluster"]["value"] == "8xh100"
    alone = client.post("/tune", json={**PREDICTED, "cluster": "8xh100"}).json()
    assert alone["detail"].startswith("cluster: got '8xh100'; there are several")
