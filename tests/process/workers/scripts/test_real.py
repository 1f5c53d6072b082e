"""Scripts as users have them, launched by torchrun and accelerate on two CPU ranks over gloo."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import framework
from tuner.core.measurement import Outcome
from tuner.core.script import Launch, read_script
from tuner.core.study import Limits, Study, StudyState
from workers.launchers.local import LocalLauncher
from workers.scripts.probe import ScriptRun, check_script_probe

SCRIPTS = Path(__file__).parent
SETTINGS = Settings(micro_batch_size=1, gradient_accumulation_steps=2)

pytestmark = pytest.mark.usefixtures("preloading")


@pytest.fixture
def probe(question, tmp_path):
    """``probe(script, arguments, name=..., template=...)``: what two ranks of it find."""

    def run(script, *arguments, name="torch", template="", nodes=1):
        asked = replace(
            question,
            cluster=parse_cluster(f"{nodes}x{2 // nodes}xcpu"),
            framework=framework(name),
            script=read_script(
                script,
                arguments=arguments,
                launch=Launch.ACCELERATE if name == "accelerate" else Launch.TORCHRUN,
                template=template or None,
                folder=SCRIPTS,
            ),
        )
        probing = ScriptRun(launcher=LocalLauncher(), folder=tmp_path, visible=(), deadline_s=600.0)
        return probing.measure(asked, SETTINGS, waiting)

    return run


def waiting(seconds):
    time.sleep(seconds)
    return ""


BATCH = ("--micro", "{micro_batch_size}", "--accumulation", "{gradient_accumulation_steps}")


@pytest.mark.slow
def test_torch(probe):
    found = probe("plain.py", *BATCH)
    assert found.outcome is Outcome.OK, found
    assert found.tracked_accumulation == 2
    assert (found.optimizer_steps, found.expected_optimizer_steps) == (12, 12)
    assert len(found.losses) == 13
    assert found.memory.allocated_bytes > 2**26
    assert found.hardware["memory"] == "peak resident set of the process"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["accelerate", pytest.param("torch", marks=pytest.mark.long)])
def test_two_nodes_meet(probe, name):
    found = probe("plain.py", *BATCH, name=name, nodes=2)
    assert found.outcome is Outcome.OK, found
    assert len(found.memory.per_rank_bytes) == 2
    assert found.tracked_accumulation == 2


@pytest.mark.long
def test_the_trainer(probe, tmp_path):
    found = probe(
        "with_trainer.py",
        "--per_device_train_batch_size={micro_batch_size}",
        "--gradient_accumulation_steps={gradient_accumulation_steps}",
        "{activation_checkpointing=full?--gradient_checkpointing}",
        f"--output_dir={tmp_path / 'trained'}",
        "--max_steps=50",
        "--use_cpu",
        "--report_to=none",
        "--logging_steps=1",
    )
    assert found.outcome is Outcome.OK, found
    assert found.tracked_accumulation == 2
    assert found.losses
    assert not list(tmp_path.glob("trained/checkpoint*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "outcome", "detail"),
    [
        ("--no-accumulation", "knob_inactive", "gradient_accumulation_steps=2 did not act: 1 back"),
        ("--step-always", "wrong_result", "the optimizer stepped 24 times instead of 12"),
        pytest.param(
            "--fail-on=1", "host_oom", "rank 1 in step: MemoryError", marks=pytest.mark.long
        ),
        pytest.param(
            "--run-out-on=0", "oom", "rank 0 ran out of memory in step", marks=pytest.mark.long
        ),
    ],
)
def test_what_a_script_may_do_wrong(probe, question, flag, outcome, detail):
    found = probe("plain.py", *BATCH, flag)
    judged = check_script_probe(_nothing_yet(question), SETTINGS, found)
    assert judged.outcome == outcome, judged
    assert detail in judged.detail


def _nothing_yet(question):
    return Study(id="st-1", question=question, limits=Limits(), state=StudyState.RUNNING)
