"""What a study to be measured answers before any probe shows settings that fit."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.answer import Suggestion
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.measurement import Basis, Fidelity, Measurement, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import ProbeState, Question, Study, StudyState
from tuner.explain.english import say
from tuner.explain.known import answer
from tuner.explain.predicted import how_it_stands
from tuner.planner import Stop, is_answered
from tuner.planner.knowledge import learned

ENDED = "the budget of 11.2 s is spent"
NOT_FIT = "None of the settings probed was seen to fit"


@pytest.fixture
def question(lab: SimpleNamespace) -> Question:
    """On GPUs, whose rates the catalogue knows."""
    question: Question = lab.question("8xa100-80gb", 64)
    return question


def asked(lab: SimpleNamespace, question: Question, **limits: object) -> Study:
    study: Study = lab.study(question, **{"memory_limit_bytes": None, **limits})
    return replace(study, state=StudyState.QUEUED)


def as_predicted(study: Study) -> Suggestion:
    return answer(replace(study, limits=replace(study.limits, fidelity=Fidelity.PREDICTED)))


@pytest.mark.parametrize("fidelity", [Fidelity.MEASURED, Fidelity.EMULATED])
@pytest.mark.parametrize("state", list(StudyState))
def test_without_a_probe_it_is_what_is_predicted(
    lab: SimpleNamespace, question: Question, fidelity: Fidelity, state: StudyState
) -> None:
    study = replace(asked(lab, question, fidelity=fidelity), state=state)
    found, predicted = answer(study), as_predicted(study)
    assert found.best is not None
    assert found.best.as_dict() == predicted.best.as_dict()  # type: ignore[union-attr]
    assert [one.settings for one in found.alternatives] == [
        one.settings for one in predicted.alternatives
    ]
    assert found.best.provenance is Provenance.PREDICTED
    assert found.best.basis is Basis.ARITHMETIC
    assert found.probes == {}
    assert found.wall_s == found.device_s == 0
    assert found.state == state
    assert not is_answered(study)
    assert found.explanation[0] == f"Nothing was {fidelity} yet: no probe is done."
    assert f"What follows is predicted, until something is {fidelity} that fits." in (
        found.explanation
    )
    assert not any(NOT_FIT in line for line in found.explanation)


def test_the_spent_budget_is_named_and_how_to_go_on(
    lab: SimpleNamespace, question: Question
) -> None:
    study = asked(lab, question, wall_s=11.2)
    ended = replace(study, state=StudyState.DONE, reason=ENDED)
    assert answer(ended).explanation[:3] == (
        "Nothing was measured yet: no probe is done.",
        f"The study has ended: {ENDED}.",
        "Ask again with a larger budget (--max-probes, --budget): it goes on where it ended.",
    )
    known = learned(ended, ended.limits.fidelity)
    assert tuple(map(say, how_it_stands(ended, known))) == answer(ended).explanation[:3]
    assert not any("has ended" in say(fact) for fact in how_it_stands(study, known))
    cancelled = replace(study, state=StudyState.CANCELLED, reason="cancelled by somebody")
    assert answer(cancelled).explanation[1:3] == (
        "The study has ended: cancelled by somebody.",
        "Ask again, and it goes on where it ended.",
    )


def test_a_queued_probe_is_not_done(lab: SimpleNamespace, question: Question) -> None:
    study = asked(lab, question)
    best = answer(study).best
    assert best is not None
    probe = lab.probe(1, best.settings, None, state=ProbeState.QUEUED)
    assert answer(replace(study, probes=(probe,))).explanation[0] == (
        "Nothing was measured yet: no probe is done."
    )


def test_what_ran_out_of_memory_is_not_suggested(lab: SimpleNamespace, question: Question) -> None:
    """Nor what needs more; and what was seen is told first."""
    limit = 2 * 2**30
    study = asked(lab, question, memory_limit_bytes=limit)
    before = answer(study).best
    assert before is not None
    probe = lab.probe(1, before.settings, lab.oom(limit + 1, limit), limit=limit)
    after = answer(replace(study, probes=(probe,)))
    assert after.best is not None
    assert after.best.settings != before.settings
    assert after.best.basis is Basis.ARITHMETIC
    assert after.probes == {"oom": 1}
    assert after.wall_s == 1.0
    assert after.explanation[0].startswith(NOT_FIT)
    assert after.explanation[1].startswith("The smallest need known is at least 2.00 GiB")
    assert any(line.startswith("Out of memory: ") for line in after.explanation)
    for one in (after.best, *after.alternatives):
        same = replace(one.settings, micro_batch_size=before.settings.micro_batch_size)
        assert not (
            same.settings_class == before.settings.settings_class
            and one.settings.micro_batch_size >= before.settings.micro_batch_size
        )


def test_a_study_in_which_nothing_fits_has_no_answer(lab: SimpleNamespace) -> None:
    """Arithmetic expects these to fit; the probes, two thirds of them, say otherwise."""
    question = lab.question(sharding=(Sharding.DDP,), tp_size=(1,))
    machine = lab.Machine(question, memory_factor=1.5)
    study = replace(asked(lab, question), limits=replace(lab.study().limits, max_probes=40))
    smallest = min(map(machine.memory, (p.settings for p in answer(study).alternatives)))
    study = replace(study, limits=replace(study.limits, memory_limit_bytes=smallest * 3 // 5))
    played, stop = machine.play(study)
    assert isinstance(stop, Stop)
    assert stop.nothing_fits
    reason = f"{stop.reason}: {stop.nothing_fits}"
    found = answer(replace(played, state=StudyState.FAILED, reason=reason))
    assert found.best is None
    assert found.alternatives == ()
    assert found.predicted_to_fit == 0
    assert found.explanation[0].startswith(NOT_FIT)
    assert not any("has ended" in line or "predicted to fit" in line for line in found.explanation)


def test_what_hangs_or_breaks_is_not_suggested(lab: SimpleNamespace, question: Question) -> None:
    def broken(settings: Settings) -> Outcome | None:
        is_checkpointed = settings.activation_checkpointing is Checkpointing.FULL
        return None if is_checkpointed else Outcome.CRASHED

    study = asked(lab, question, max_probes=6)
    machine = lab.Machine(question, fail=broken)
    legal = [one.settings for one in (answer(study).best, *answer(study).alternatives) if one]
    crashing = [one for one in legal if broken(one)]
    assert crashing
    probes = [
        lab.probe(number, one, machine.run(SimpleNamespace(settings=one), 2**40))
        for number, one in enumerate(crashing, start=1)
    ]
    found = answer(replace(study, probes=tuple(probes)))
    assert found.explanation[0] == "No probe has given a result."
    assert found.best is not None
    assert found.best.settings not in crashing
    assert found.probes == {"crashed": len(crashing)}


def test_a_class_that_is_refused_is_not_suggested(lab: SimpleNamespace, question: Question) -> None:
    study = asked(lab, question)
    best = answer(study).best
    assert best is not None
    refused = Measurement(outcome=Outcome.INVALID, detail="not with this version")
    found = answer(replace(study, probes=(lab.probe(1, best.settings, refused),)))
    assert found.best is not None
    shown = (found.best, *found.alternatives)
    assert best.settings.settings_class not in {one.settings.settings_class for one in shown}


def test_a_probe_that_fits_takes_its_place(lab: SimpleNamespace, question: Question) -> None:
    study = asked(lab, question)
    best = answer(study).best
    assert best is not None
    slow = next(one.settings for one in reversed(answer(study).alternatives))
    study = replace(study, probes=(lab.probe(1, slow, lab.ok(50.0, 2**30)),))
    found = answer(study)
    assert found.best is not None
    assert found.best.settings == slow
    assert found.best.provenance is Provenance.MEASURED
    assert found.best.basis is None
    assert found.alternatives == ()
    assert is_answered(study)


def test_where_no_speed_is_known_it_lists_what_fits(lab: SimpleNamespace) -> None:
    """CPU ranks that were not calibrated."""
    found = answer(asked(lab, lab.question()))
    assert found.best is None
    assert found.alternatives
    assert found.predicted_to_fit > 0
    text = " ".join(found.explanation)
    assert "which of them is the fastest is not known" in text
    assert "--fidelity measured" not in text  # which is what was asked for


def test_dry_runs_and_other_fidelities_are_told(lab: SimpleNamespace, question: Question) -> None:
    study = asked(lab, question)
    best = answer(study).best
    assert best is not None
    probe = lab.probe(1, best.settings, lab.ok(0.5, 2**30))
    emulated = replace(probe, request=replace(probe.request, fidelity=Fidelity.EMULATED))
    found = answer(replace(study, probes=(emulated,)))
    assert found.best is not None
    assert found.best.basis is Basis.ARITHMETIC
    assert found.probes == {}
    step = found.best.step_time_s.value
    assert step is not None
    assert step > 0.1  # its class is corrected by what was emulated
    assert any(
        line == "1 probe of this question emulated too; --fidelity emulated answers from these."
        for line in found.explanation
    )
