"""How an answer is launched: files and commands, for probes made by hand."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.models import TINY
from tests.unit.made import ok, oom, study_of
from tuner.client.launch import with_launch
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.study import Question, Study
from tuner.core.workload import Workload
from tuner.explain.known import answer
from tuner.model import read_model_config

FIRST = "sharding=full_shard,micro_batch_size=4"


@pytest.fixture
def question() -> Question:
    model = read_model_config(TINY, name="tiny")
    return Question(
        workload=Workload(model=model, sequence_length=32, global_batch_size=8),
        cluster=parse_cluster("cpu:2"),
        framework=framework("accelerate"),
    )


@pytest.fixture
def study(question: Question) -> Study:
    return study_of(question, (FIRST, ok(0.1, 20)))


def test_files_and_command_go_with_the_answer(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    launch = with_launch(answer(study), study.question, [("accelerate", str(path))]).launch
    assert launch["argv"] == ["accelerate", "launch", "--config_file", str(path), "SCRIPT.py"]
    text = launch["files"][str(path)]
    assert yaml.safe_load(text)["fsdp_config"]["fsdp_version"] == 2
    assert "study st-0123456789ab" in text
    assert "1,281 tokens/s per rank (1,242 to 1,321)" in text
    assert "20.0 MiB needed per rank, of " in text


def test_without_targets_the_file_is_the_framework_s(study: Study) -> None:
    launch = with_launch(answer(study), study.question).launch
    assert launch["argv"][:3] == ["accelerate", "launch", "--config_file"]
    assert list(launch["files"]) == ["accelerate.yaml"]


def test_torch_is_launched_by_torchrun(study: Study) -> None:
    torch = replace(study, question=replace(study.question, framework=framework("torch")))
    launch = with_launch(answer(torch), torch.question).launch
    argv = ["torchrun", "--standalone", "--nproc-per-node", "2", "SCRIPT.py"]
    assert launch == {"argv": argv, "files": {}}


@pytest.mark.parametrize("name", ["2x2xcpu", "2x2xh100-80gb"])
def test_several_nodes_meet_at_one_of_them(study: Study, name: str) -> None:
    question = replace(study.question, framework=framework("torch"), cluster=parse_cluster(name))
    launch = with_launch(answer(study), question).launch
    sizes = ["--nnodes", "2", "--nproc-per-node", "2"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    assert launch["argv"] == ["torchrun", *sizes, *meeting, "SCRIPT.py"]


def test_without_an_answer_there_is_nothing_to_launch(question: Question) -> None:
    study = study_of(question, (FIRST, oom(50)))
    assert with_launch(answer(study), study.question).launch == {"argv": [], "files": {}}
