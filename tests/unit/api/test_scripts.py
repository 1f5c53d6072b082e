"""Studies of scripts in a database that a service shows: they are seen, and nothing of them is run
or predicted.
"""

import pytest

from tests.questions import question_about
from tests.unit.api.studies import MEASURED, probe, question_of
from tuner.core.script import read_script
from tuner.core.study import Limits
from tuner.model.shape import unnamed_model


@pytest.fixture
def script_study(store, tmp_path):
    (tmp_path / "train.py").write_text("")
    asked = question_of(MEASURED)
    script = read_script("train.py", arguments=("{micro_batch_size}",), folder=tmp_path)
    question = question_about(
        unnamed_model(), asked.cluster, asked.framework, tokens=32, batch=16, script=script
    )
    return store.ask(question, Limits()).id


def test_it_is_pending_until_something_is_measured(client, store, script_study):
    body = client.get(f"/tune/{script_study}").json()
    assert body["question"]["workload"]["model"] is None, "what stands for it is nobody's model"
    assert body["question"]["script"]["path"].endswith("train.py")
    assert body["suggestion"] is None or body["suggestion"]["best"] is None
    probe(store, script_study)
    found = client.get(f"/tune/{script_study}").json()["suggestion"]
    assert found["best"]["provenance"] == "measured"
    assert found["workload"]["model"] is None
    assert found["launch"]["argv"][4].endswith("train.py")
