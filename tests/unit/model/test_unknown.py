"""A model that is not named: only a script's, and no number comes from it."""

from dataclasses import replace

import pytest

from tests.questions import question_about
from tests.records import VERSIONS
from tuner.core.framework import framework
from tuner.core.measurement import Measurement, Outcome
from tuner.core.script import read_script
from tuner.core.study import Limits, Probe, ProbeState, Study, StudyState
from tuner.errors import UsageError
from tuner.explain.known import answer
from tuner.model.shape import unnamed_model
from tuner.planner import next_probe
from tuner.planner.spending import Stop, Wait
from tuner.space import enumerate_space

BOTH = ("{micro_batch_size}", "{gradient_accumulation_steps}")


@pytest.fixture
def study(tmp_path):
    """Of a script whose model is not named, under a limit that its stand-in would never keep."""
    (tmp_path / "train.py").write_text("")
    script = read_script("train.py", arguments=(*BOTH, "{tp_size}", "{sharding}"), folder=tmp_path)
    stack = framework("torch", {}, VERSIONS)
    question = question_about(
        unnamed_model(), "8xa100-80gb", stack, tokens=32, batch=16, script=script
    )
    limits = Limits(memory_limit_bytes=2**28)
    return Study(id="st-1", question=question, limits=limits, state=StudyState.RUNNING)


def test_only_a_script_can_do_without(study):
    with pytest.raises(UsageError, match=r"model: got .*; must be named; only a --script"):
        replace(study.question, script=None)


def test_its_sizes_rule_nothing_out(study):
    legal = enumerate_space(study.question).legal
    assert {settings.tp_size for settings in legal} == {1, 2, 4, 8}
    assert {settings.micro_batch_size for settings in legal} == {1, 2, 4, 8, 16}


def test_nothing_is_predicted_of_it(study):
    for one in (study, failed(study)):
        found = answer(one)
        assert found.best is None
        assert found.alternatives == found.pareto == ()
        assert found.workload["model"] is None
        assert "nothing is predicted of a script of one's own" in " ".join(found.explanation)


def failed(study):
    plan = next_probe(study)
    assert not isinstance(plan, Stop | Wait)
    found = Measurement(outcome=Outcome.CRASHED, wall_s=1.0, device_s=8.0)
    probe = Probe(id=1, request=plan, state=ProbeState.DONE, measurement=found)
    return replace(study, probes=(probe,), state=StudyState.DONE, reason="nothing ran")
