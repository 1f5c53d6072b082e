"""The command of a script with settings."""

import pytest

from tests.unit.script.conftest import BATCH
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.script import (
    MEETING_HOST,
    MEETING_PORT,
    NODE_RANK,
    Launch,
    command_of,
    script_launch,
)

SETTINGS = Settings(micro_batch_size=2, gradient_accumulation_steps=1)


def test_the_command_is_what_a_user_types(ask, tmp_path):
    question = ask((*BATCH, "--name", "a b"), environment=["SIZE={global_batch_size}"])
    command = command_of(question, SETTINGS)
    assert command.typed == (
        "env", "SIZE=16", "torchrun", "--standalone", "--nproc-per-node", "8",
        str(tmp_path / "train.py"), "--micro", "2", "--accumulation", "1", "--name", "a b",
    )  # fmt: skip
    launcher = ("-P", "-m", "torch.distributed.run", "--log-dir", str(tmp_path))
    assert command.as_run(tmp_path) == (*launcher, *command.launcher[1:])


def test_accelerate_is_given_its_file(ask, tmp_path):
    question = ask(name="accelerate", launch=Launch.ACCELERATE)
    command = command_of(question, SETTINGS, configuration="a.yaml")
    assert command.argv[:5] == (
        "accelerate", "launch", "--config_file", "a.yaml", str(tmp_path / "train.py"),
    )  # fmt: skip
    launcher = ("-P", "-m", "accelerate.commands.accelerate_cli", "launch", "--log_dir")
    assert command.as_run(tmp_path) == (*launcher, str(tmp_path), "--config_file", "a.yaml")


def test_nodes_meet_as_a_user_types_it_and_are_numbered_in_a_probe(ask, tmp_path):
    command = command_of(ask(cluster="2x4xa100-80gb"), SETTINGS)
    ranks = ("--nnodes", "2", "--nproc-per-node", "4")
    meeting = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "HOST:29500")
    assert command.launcher == ("torchrun", *ranks, *meeting)
    meeting = ("--node-rank", NODE_RANK, "--master-addr", MEETING_HOST)
    assert command.as_run(tmp_path)[5:] == (*ranks, *meeting, "--master-port", MEETING_PORT)
    asked = ask(cluster="2x4xa100-80gb", name="accelerate", launch=Launch.ACCELERATE)
    command = command_of(asked, SETTINGS)
    meeting = ("--machine_rank", "NUMBER", "--main_process_ip", "HOST", "--main_process_port")
    assert command.launcher[4:] == (*meeting, "29500")
    assert command.as_run(tmp_path)[-5::2] == (NODE_RANK, MEETING_HOST, MEETING_PORT)


@pytest.mark.parametrize(("value", "flags"), [("full", ("--recompute",)), ("none", ())])
def test_a_flag_stands_at_one_value_only(ask, value, flags):
    question = ask((*BATCH, "{activation_checkpointing=full?--recompute}"))
    settings = Settings(activation_checkpointing=Checkpointing(value))
    assert command_of(question, settings).argv[9:] == flags


def test_a_template_is_rendered_under_another_name(ask, tmp_path):
    text = "tokens: {{micro: {micro_batch_size}, data: {data_parallel_size}}}\n"
    (tmp_path / "config.yaml").write_text(text)
    question = ask(("{template}",), template="config.yaml")
    launch = script_launch(question, SETTINGS, "a.yaml", {})
    assert launch["argv"][-1] == "config.tuned.yaml"
    assert "config.tuned.yaml" in launch["files"]
    given = script_launch(question, SETTINGS, "a.yaml", {"a.yaml": "x"})
    assert given["files"] == {"a.yaml": "x", **launch["files"]}
