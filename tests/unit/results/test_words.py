"""Questions in words."""

from dataclasses import replace

from tests.models import TINY
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.script import Script
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.model import read_model_config
from tuner.results.points import question_text


def test_of_a_script_only_what_is_known_is_said() -> None:
    model = read_model_config(TINY, name="tiny")
    question = Question(
        workload=Workload(model=model, sequence_length=32, global_batch_size=8),
        cluster=parse_cluster("cpu:2"),
        framework=framework("torch"),
    )
    said = "tiny on cpu:2 (torch), global batch 8, sequence 32"
    assert question_text(question) == f"{said}, adamw, bf16"
    script = Script(path="/train.py", sha256="0", folder="/", arguments=("{micro_batch_size}",))
    own = question_text(replace(question, script=script))
    assert own == f"train.py ({said.replace('tiny', 'tiny)', 1)}"
