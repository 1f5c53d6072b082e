import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tuner.cli.targets import Target, check_path, read_path, read_targets, with_launch, write_text
from tuner.cluster import parse_cluster
from tuner.errors import TunerError, UsageError
from tuner.framework import framework
from tuner.planner import answer
from tuner.space import enumerate_space
from tuner.study import Question, Study

FIRST = "sharding=full_shard,micro_batch_size=4"


@pytest.fixture
def study(lab: SimpleNamespace) -> Study:
    return lab.study((FIRST, lab.ok(0.1, 20)))


def test_targets_are_read(question: Question, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    targets = read_targets([f"accelerate={path}"], question, enumerate_space(question))
    assert targets == (Target(format_name="accelerate", path=path),)


def test_one_file_for_two_targets_is_refused(question: Question, tmp_path: Path) -> None:
    texts = [f"accelerate={tmp_path}/a.yaml", f"accelerate={tmp_path}/./a.yaml"]
    with pytest.raises(UsageError, match=r"names one file twice"):
        read_targets(texts, question, enumerate_space(question))


def test_a_path_that_may_not_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # as root, everything may be
    with pytest.raises(UsageError, match=r"^write: .*; cannot be written: permission denied"):
        check_path("write", tmp_path / "a.yaml")


@pytest.mark.parametrize("name", ["z" * 300, "~nobody-of-this-name/a.yaml", "."])
def test_what_is_no_path_of_a_file_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"^write: got "):
        read_path("write", name)


def test_a_write_that_fails_after_all_is_no_usage_error(tmp_path: Path) -> None:
    with pytest.raises(TunerError, match=r"cannot be written: No such file") as caught:
        write_text(tmp_path / "gone" / "a.yaml", "")
    assert caught.value.exit_code == 1


def test_files_and_command_go_with_the_answer(study: Study, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    target = Target(format_name="accelerate", path=path)
    launch = with_launch(answer(study), study.question, (target,)).launch
    assert launch["argv"] == ["accelerate", "launch", "--config_file", str(path), "SCRIPT.py"]
    text = launch["files"][str(path)]
    assert yaml.safe_load(text)["fsdp_config"]["fsdp_version"] == 2
    assert "study st-0123456789ab" in text
    assert "1,281 tokens/s per rank (1,242 to 1,321)" in text
    assert "20.0 MiB allocated per rank, of " in text


def test_without_targets_the_file_is_the_framework_s(study: Study) -> None:
    launch = with_launch(answer(study), study.question, ()).launch
    assert launch["argv"][:3] == ["accelerate", "launch", "--config_file"]
    assert list(launch["files"]) == ["accelerate.yaml"]


def test_torch_is_launched_by_torchrun(study: Study) -> None:
    torch = replace(study, question=replace(study.question, framework=framework("torch")))
    launch = with_launch(answer(torch), torch.question, ()).launch
    argv = ["torchrun", "--standalone", "--nproc-per-node", "2", "SCRIPT.py"]
    assert launch == {"argv": argv, "files": {}}


@pytest.mark.parametrize("name", ["2x2xcpu", "2x2xh100-80gb"])
def test_several_nodes_meet_at_one_of_them(study: Study, name: str) -> None:
    question = replace(study.question, framework=framework("torch"), cluster=parse_cluster(name))
    launch = with_launch(answer(study), question, ()).launch
    sizes = ["--nnodes", "2", "--nproc-per-node", "2"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500"]
    assert launch["argv"] == ["torchrun", *sizes, *meeting, "SCRIPT.py"]


def test_without_an_answer_there_is_nothing_to_launch(lab: SimpleNamespace) -> None:
    study = lab.study((FIRST, lab.oom(50)))
    assert with_launch(answer(study), study.question, ()).launch == {"argv": [], "files": {}}
