"""What is said of a script: what ran, and what was counted of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.models import TINY
from tests.unit.made import ok, study_of
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.measurement import Measurement
from tuner.core.script import read_script
from tuner.core.study import Question, Study
from tuner.core.workload import Workload
from tuner.explain.known import answer
from tuner.model import read_model_config

FIRST, SECOND = "micro_batch_size=4", "micro_batch_size=2"


@pytest.fixture
def question(tmp_path: Path) -> Question:
    (tmp_path / "train.py").write_text("")
    model = read_model_config(TINY, name="tiny")
    return Question(
        workload=Workload(model=model, sequence_length=32, global_batch_size=8),
        cluster=parse_cluster("cpu:2"),
        framework=framework("torch"),
        script=read_script("train.py", arguments=("{micro_batch_size}",), folder=tmp_path),
    )


def found(loss: float, passes: int, count: int) -> Measurement:
    return replace(
        ok(0.1 * count, 20, [count]),
        losses=(loss, loss / 2),
        tracked_accumulation=passes,
        optimizer_steps=12,
        expected_optimizer_steps=12,
        hardware={"memory": "peak resident set of the process"},
    )


def guard_of(study: Study) -> str:
    best = answer(study).best
    assert best is not None
    assert best.settings.micro_batch_size == 4
    assert best.guard.verdict == "not_checked"
    return best.guard.why


def test_what_was_counted_and_how_far_losses_are_apart(question: Question) -> None:
    why = guard_of(study_of(question, (FIRST, found(2.0, 1, 1)), (SECOND, found(2.1, 2, 2))))
    assert why == (
        "a replica shows nothing of a script of one's own; counted: 1 backward call in an optimizer"
        " step, with gradient_accumulation_steps=1; 12 optimizer steps in 12 reports; the first"
        " loss that was reported lies within 5% of that of another settings"
    )


def test_what_could_not_be_counted_or_compared(question: Question) -> None:
    why = guard_of(study_of(question, (FIRST, replace(found(2.0, 0, 1), losses=()))))
    assert "backward passes could not be counted" in why
    assert "losses could not be compared" in why


def test_the_answer_says_what_ran(question: Question) -> None:
    study = study_of(question, (FIRST, found(2.0, 1, 1)))
    (said,) = [one for one in answer(study).explanation if one.startswith("What ran is")]
    assert "train.py, through torchrun on 2 ranks; its memory is the peak resident set" in said
    plain = study_of(replace(question, script=None), (FIRST, ok(0.1, 20)))
    assert not [one for one in answer(plain).explanation if one.startswith("What ran is")]
