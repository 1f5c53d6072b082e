"""The OpenAPI document: the one that is kept, and its examples.

    python -m tests.unit.api.test_openapi

writes it anew; look at what changed before it is kept.
"""

import json
import tempfile
from pathlib import Path

import pytest

from api import EXAMPLES, schemas
from api.app import create_app
from api.events import EventSent
from api.ops import AuditItem
from api.problems import Problem
from api.settings import Settings
from tests.unit.api.studies import question_of
from tuner.client.request import read_request
from tuner.store import open_store

KEPT = Path(__file__).with_name("openapi.json")


def made():
    with (
        tempfile.TemporaryDirectory() as folder,
        open_store(f"sqlite:///{folder}/studies.db") as store,
    ):
        return create_app(store, Settings(_env_file=None)).openapi()


def text_of(document):
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


@pytest.fixture(scope="module")
def document():
    return made()


def test_it_is_the_one_that_is_kept(document):
    assert text_of(document) == KEPT.read_text(), (
        "python -m tests.unit.api.test_openapi writes it anew"
    )


@pytest.mark.parametrize("body", EXAMPLES["requests"])
def test_examples_of_requests_are_accepted(body):
    read_request(body)
    assert question_of(body).workload.sequence_length == 4096


def test_examples_of_answers_are_of_their_form():
    schemas.Study.model_validate(EXAMPLES["study"])
    schemas.ProbeList.model_validate(EXAMPLES["probes"])
    EventSent.model_validate(EXAMPLES["event"])
    AuditItem.model_validate(EXAMPLES["audit"])
    Problem.model_validate(EXAMPLES["problem"])


if __name__ == "__main__":
    KEPT.write_text(text_of(made()))
