"""How an answer is launched: files and commands, for probes made by hand."""

import os
from dataclasses import replace

import pytest
import yaml

from tests.models import TINY
from tests.questions import question_about
from tests.unit.made import ok, study_of
from tuner.client.answered import Target, answered_of, read_path, read_targets, with_launch
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.script import Launch, read_script
from tuner.core.study import StudyState
from tuner.errors import UsageError
from tuner.explain.known import answer
from tuner.space import enumerate_space

FIRST = "sharding=full_shard,micro_batch_size=4"
# No field of accelerate's file holds them.
SCRIPT_SETS = ["micro_batch_size=4"]


@pytest.fixture
def question():
    return question_about(TINY, "cpu:2", "accelerate", tokens=32, batch=8)


@pytest.fixture
def study(question):
    return study_of(question, (FIRST, ok(0.1, 20)))


def test_files_and_command_go_with_the_answer(study, tmp_path):
    path = tmp_path / "a.yaml"
    launch = with_launch(answer(study), study.question, [("accelerate", str(path))]).launch
    assert launch["argv"] == ["accelerate", "launch", "--config_file", str(path), "SCRIPT.py"]
    assert launch["script_sets"] == SCRIPT_SETS
    text = launch["files"][str(path)]
    assert yaml.safe_load(text)["fsdp_config"]["fsdp_version"] == 2
    assert "study st-0123456789ab" in text
    for state in (StudyState.DONE, StudyState.RUNNING):
        found = answer(replace(study, state=state))
        launch = with_launch(found, study.question, [("accelerate", str(path))]).launch
        told = " ".join(launch["files"][str(path)].replace("\n#", "").split())
        assert ("study still runs" in told) is (state is StudyState.RUNNING)
    assert "1,281 tokens/s per rank (1,242 to 1,321)" in text
    assert "20.0 MiB needed per rank, of " in text


def test_torch_is_launched_by_torchrun(study):
    torch = replace(study, question=replace(study.question, framework=framework("torch")))
    launch = with_launch(answer(torch), torch.question).launch
    argv = ["torchrun", "--standalone", "--nproc-per-node", "2", "SCRIPT.py"]
    assert launch == {"argv": argv, "files": {}, "script_sets": [], "beside": {}}


def test_what_files_cannot_say_goes_with_them(study):
    files = [("accelerate", "a.yaml"), ("sbatch", "b.sh")]
    ((path, (said,)),) = with_launch(answer(study), study.question, files).launch["beside"].items()
    assert path == "a.yaml"
    assert said.startswith("NOT FOR A CPU: accelerate ignores FSDP on a CPU")


def test_what_a_script_must_set_is_that_of_all_files(study):
    for wanted in (["sbatch", "accelerate"], ["accelerate", "sbatch"]):
        files = [(name, f"{name}.file") for name in wanted]
        assert (
            with_launch(answer(study), study.question, files).launch["script_sets"] == SCRIPT_SETS
        )


@pytest.mark.parametrize("name", ["2x2xcpu", "2x2xh100-80gb"])
def test_several_nodes_meet_at_one_of_them(study, name):
    question = replace(study.question, framework=framework("torch"), cluster=parse_cluster(name))
    launch = with_launch(answer(study), question).launch
    sizes = ["--nnodes", "2", "--nproc-per-node", "2"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    assert launch["argv"] == ["torchrun", *sizes, *meeting, "SCRIPT.py"]


def test_all_that_a_script_is_launched_with_is_told_and_what_was_asked_for_written(
    question, tmp_path
):
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
    asked = replace(question, script=script)
    study = study_of(asked, ("sharding=ddp,micro_batch_size=4", ok(0.1, 20)))
    path = tmp_path / "tuned.env"
    found = answered_of(study, [Target(format_name="env", path=path)])
    launch = found.suggestion.launch
    assert set(launch["files"]) == {"accelerate.yaml", "config.tuned.yaml", str(path)}
    assert launch["files"]["config.tuned.yaml"] == "4 1 true"
    assert {"accelerate.yaml", "config.tuned.yaml"} < set(launch["argv"])
    assert list(found.files) == [str(path)]


def test_one_file_for_two_targets_is_refused(question, tmp_path):
    texts = [f"accelerate={tmp_path}/a.yaml", f"accelerate={tmp_path}/./a.yaml"]
    with pytest.raises(UsageError, match=r"names one file twice"):
        read_targets(texts, question, enumerate_space(question))


def test_a_path_that_may_not_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as root, everything may be
    with pytest.raises(UsageError, match=r"^write: .*; cannot be written: permission denied"):
        read_path("write", str(tmp_path / "a.yaml"))
