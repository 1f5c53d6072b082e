"""A study with its answer, and the files that are written of it."""

from pathlib import Path

from tests.models import TINY
from tests.unit.made import ok, study_of
from tuner.client.answered import Target, answered_of
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.script import Launch, read_script
from tuner.core.study import Question
from tuner.core.workload import Workload
from tuner.model import read_model_config


def test_all_that_a_script_is_launched_with_is_told_and_what_was_asked_for_written(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "config.yaml").write_text(
        "{micro_batch_size} {gradient_accumulation_steps} {sync_each_batch}"
    )
    script = read_script(
        "train.py",
        launch=Launch.ACCELERATE,
        arguments=("{template}",),
        template="config.yaml",
        folder=tmp_path,
    )
    model = read_model_config(TINY, name="tiny")
    question = Question(
        workload=Workload(model=model, sequence_length=32, global_batch_size=8),
        cluster=parse_cluster("cpu:2"),
        framework=framework("accelerate"),
        script=script,
    )
    study = study_of(question, ("sharding=ddp,micro_batch_size=4", ok(0.1, 20)))
    path = tmp_path / "tuned.env"
    found = answered_of(study, [Target(format_name="env", path=path)])
    launch = found.suggestion.launch
    assert set(launch["files"]) == {"accelerate.yaml", "config.tuned.yaml", str(path)}
    assert launch["files"]["config.tuned.yaml"] == "4 1 true"
    assert {"accelerate.yaml", "config.tuned.yaml"} < set(launch["argv"])
    assert list(found.files) == [str(path)]
