"""What counts of a script's steps say of its settings."""

from dataclasses import replace

from tests.unit.made import ok
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Study, StudyState
from workers.scripts.probe import check_script_probe

TWO = Settings(micro_batch_size=1, gradient_accumulation_steps=2)
ONE = Settings(micro_batch_size=2, gradient_accumulation_steps=1)


def counted(passes):
    return replace(ok(0.1, 1.0), tracked_accumulation=passes)


def study(question, *probes):
    made = (
        Probe(
            id=number,
            request=ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED),
            state=ProbeState.DONE,
            measurement=counted(passes),
        )
        for number, (settings, passes) in enumerate(probes, start=1)
    )
    return Study(
        id="st-1", question=question, limits=Limits(), state=StudyState.RUNNING, probes=tuple(made)
    )


def test_as_many_passes_as_micro_batches_are_well(question):
    for passes in (2, 4, 0):  # 4: a script with two passes for each; 0: they were not counted
        assert check_script_probe(study(question), TWO, counted(passes)) == counted(passes)


def test_too_few_passes(question):
    found = check_script_probe(study(question), TWO, counted(1))
    assert found.outcome is Outcome.KNOB_INACTIVE
    assert found.detail.startswith("gradient_accumulation_steps=2 did not act: 1 backward")


def test_other_passes_for_each_than_before(question):
    before = study(question, (TWO, 2))
    assert check_script_probe(before, ONE, counted(1)).outcome is Outcome.OK
    found = check_script_probe(before, ONE, counted(2))
    assert found.outcome is Outcome.KNOB_INACTIVE
    assert "2 for each micro-batch, and 1 for each in probe #1" in found.detail


def test_what_did_not_run_is_left_as_it_is(question):
    failed = Measurement(outcome=Outcome.OOM, tracked_accumulation=1)
    assert check_script_probe(study(question), TWO, failed) is failed
