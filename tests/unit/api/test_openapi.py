"""The OpenAPI document: the one that is kept, and its examples.

    python -m tests.unit.api.test_openapi

writes it anew; look at what changed before it is kept.
"""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from api import examples, schemas
from api.app import create_app
from api.events import EventSent
from api.problems import Problem
from api.settings import Settings
from tests.unit.api.studies import question_of
from tuner.client.request import read_request
from tuner.store import open_store

KEPT = Path(__file__).with_name("openapi.json")


def made() -> dict[str, Any]:
    """The document as the code has it."""
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(f"sqlite:///{folder}/studies.db") as store,
    ):
        document: dict[str, Any] = create_app(store, Settings(_env_file=None)).openapi()
        return document


def text_of(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return made()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, by_method in document["paths"].items():
        for method, operation in by_method.items():
            yield path, method, operation


def test_it_is_the_one_that_is_kept(document: dict[str, Any]) -> None:
    assert text_of(document) == KEPT.read_text(), (
        "python -m tests.unit.api.test_openapi writes it anew"
    )


def test_it_is_served(client: TestClient, document: dict[str, Any]) -> None:
    assert client.get("/openapi.json").json() == document


def test_every_operation_and_answer_is_described(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["description"], where
        for name, response in operation["responses"].items():
            assert response["description"], (where, name)
        for parameter in operation.get("parameters", ()):
            assert parameter["schema"].get("description") or parameter.get("description"), (
                where,
                parameter["name"],
            )


def test_every_answer_has_an_example(document: dict[str, Any]) -> None:
    kept = document["components"]["schemas"]

    def has_example(content: dict[str, Any]) -> bool:
        name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
        examples_of = kept.get(name, {}).get("examples")
        return "example" in content or "examples" in content or bool(examples_of)

    missing = [
        f"{method} {path} {status}"
        for path, method, operation in operations(document)
        for status, response in operation["responses"].items()
        for content in response.get("content", {}).values()
        if not has_example(content)
    ]
    assert missing == ["get /openapi.json 200"]


def test_every_error_is_a_problem(document: dict[str, Any]) -> None:
    for path, method, operation in operations(document):
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                assert list(response["content"]) == ["application/problem+json"], (path, method)


def test_no_reference_leads_nowhere(document: dict[str, Any]) -> None:
    def references(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
            value = list(value.values())
        if isinstance(value, list):
            for item in value:
                yield from references(item)

    names = {reference.rpartition("/")[2] for reference in references(document)}
    assert names <= document["components"]["schemas"].keys()


@pytest.mark.parametrize("body", examples.REQUESTS)
def test_examples_of_requests_are_accepted(body: Any) -> None:
    read_request(body)
    assert question_of(body).workload.sequence_length == 4096


def test_examples_of_answers_are_of_their_form() -> None:
    schemas.Study.model_validate(examples.STUDY)
    schemas.ProbeList.model_validate(examples.PROBES)
    EventSent.model_validate(examples.EVENT)
    Problem.model_validate(examples.PROBLEM)


if __name__ == "__main__":
    KEPT.write_text(text_of(made()))
