"""Errors in the product's own words."""

import pytest
from starlette.testclient import TestClient

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "detail"),
    [
        ("/tune?limit=0", "limit: got '0'; must be at least 1"),
        ("/tune?limit=201", "limit: got '201'; must be at most 200"),
        ("/tune?limit=many", "limit: got 'many'; must be an integer"),
        (f"/tune?query={'x' * 101}", "must have 100 characters or fewer"),
        (f"/audit?before={2**63}", f"must be below {2**63}"),
        ("/tune?state=gone", "state: got 'gone'; must be 'queued', 'running',"),
        ("/tune/st-0", "study_id: got 'st-0'; must match ^st-[0-9a-f]{12}$"),
    ],
)
def test_what_is_wrong_is_told_with_what_was_given(
    client: TestClient, path: str, detail: str
) -> None:
    body = client.get(path).json()
    assert body["status"] == 422
    assert detail in body["detail"]
    assert body["allowed"] in body["detail"]


def test_a_key_of_idempotency_may_not_be_empty(client: TestClient) -> None:
    body = client.post("/tune", json={}, headers={"Idempotency-Key": ""}).json()
    assert body["detail"] == "idempotency-key: got ''; must have 1 characters or more"


@pytest.mark.parametrize("text", ["[" * 50_000, "9" * 5_000])
def test_json_that_cannot_be_read_is_told_so(client: TestClient, text: str) -> None:
    response = client.post("/tune", content=text, headers=JSON)
    assert response.status_code == 400
    assert response.json()["detail"].startswith("the body is JSON too deep, or with a number")


def test_a_request_without_a_body_is_told_so(client: TestClient) -> None:
    body = client.post("/tune", headers=JSON).json()
    assert (body["status"], body["detail"]) == (422, "body: got nothing; is required")
