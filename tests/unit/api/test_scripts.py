"""Studies of scripts in a database that a service shows: they are seen, and nothing of them is run
or predicted.
"""

from pathlib import Path

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from tests.unit.api.browsers import Browser
from tests.unit.api.studies import MEASURED, probe, question_of
from tuner.core.script import read_script
from tuner.core.study import Limits, Question
from tuner.core.workload import Workload
from tuner.model.shape import unnamed_model
from tuner.store import Store


@pytest.fixture
def script_study(store: Store, tmp_path: Path) -> str:
    """One whose model is not named."""
    (tmp_path / "train.py").write_text("")
    asked = question_of(MEASURED)
    question = Question(
        workload=Workload(model=unnamed_model(), sequence_length=32, global_batch_size=16),
        cluster=asked.cluster,
        framework=asked.framework,
        script=read_script("train.py", arguments=("{micro_batch_size}",), folder=tmp_path),
    )
    return store.ask(question, Limits()).id


def test_it_is_pending_until_something_is_measured(
    client: TestClient, store: Store, script_study: str
) -> None:
    body = client.get(f"/tune/{script_study}").json()
    assert body["question"]["workload"]["model"] is None, "what stands for it is nobody's model"
    assert body["question"]["script"]["path"].endswith("train.py")
    assert body["suggestion"] is None or body["suggestion"]["best"] is None
    probe(store, script_study)
    found = client.get(f"/tune/{script_study}").json()["suggestion"]
    assert found["best"]["provenance"] == "measured"
    assert found["workload"]["model"] is None
    assert found["launch"]["argv"][4].endswith("train.py")


def test_its_page_begins_with_its_own_command(
    app: FastAPI, store: Store, script_study: str
) -> None:
    browser = Browser(app, address="127.0.0.1")
    for _ in range(2):
        answer = browser.get(f"/studies/{script_study}")
        assert answer.status_code == 200, answer.text
        assert "train.py</bdi>" in answer.text
        assert "adamw" not in answer.text, "its optimizer is its own"
        probe(store, script_study)
    text = answer.text
    assert text.index('id="tab-launch"') < text.index('id="tab-torchrun"')
    assert "/settings" not in text, "nothing is predicted of it"
    assert "/new?like" not in text, "no form asks for it"
