"""Rehearsed studies: memory as torch's allocator has counted it on no GPU, times predicted."""

from dataclasses import replace

import pytest

from tests.questions import question_about
from tests.unit.opened import opened_by_optuna
from tuner.core.configuration import Checkpointing
from tuner.core.framework import framework
from tuner.core.measurement import Basis, Fidelity, Measurement, Outcome
from tuner.core.quantity import Provenance
from tuner.core.script import read_script
from tuner.core.study import ProbeRequest, ProbeState, StudyState
from tuner.errors import NothingFitsError, ProbeError, SpeedUnknownError
from tuner.explain.brief import brief, is_forecast
from tuner.explain.known import answer, why_none
from tuner.model.shape import unnamed_model
from tuner.planner import Stop, Wait, is_answered, next_probe
from tuner.planner.dry_runs import FINALISTS
from tuner.planner.forecast import forecast
from tuner.planner.spending import cost
from tuner.results.optuna_storage import write_storage
from tuner.results.points import points

GIB = 2**30


@pytest.fixture(scope="module")
def asked(lab):
    knobs = {"tp_size": (1,), "micro_batch_size": (1, 2, 4), "fused_loss": (False,)}
    stack = framework("torch", {"torch": "2.13.0"})
    question = question_about(
        "llama-3.1-8b", "8xh100-80gb", stack, tokens=4096, batch=64, knobs=knobs
    )

    def make(**limits):
        known = {"fidelity": Fidelity.REHEARSED, "max_probes": 12, "memory_limit_bytes": None}
        return lab.study(question, **{**known, **limits})

    return make


@pytest.fixture(scope="module")
def play(lab):
    """Plays a study through: ``play(study, says)``, where ``says`` gives the bytes that a step of
    settings allocates, or how it ended."""

    def found(study, settings, said):
        if isinstance(said, Outcome):
            return Measurement(outcome=said, detail="no kernel", phase="forward", wall_s=1.0)
        limit = study.limits.limit_bytes(study.question.cluster)
        if said > limit:
            return replace(lab.oom(said, limit), device_s=0.0)
        memory = lab.memory(int(said), overhead=2 * GIB)
        return Measurement(outcome=Outcome.OK, memory=memory, wall_s=1.0)

    def run(study, says, most=40):
        for number in range(1, most + 1):
            plan = next_probe(study)
            if isinstance(plan, Stop):
                state = StudyState.FAILED if plan.failure else StudyState.DONE
                return replace(study, state=state, reason=plan.failure or plan.reason)
            assert not isinstance(plan, Wait)
            assert plan.fidelity is Fidelity.REHEARSED
            assert plan.settings not in {p.request.settings for p in study.probes}
            ended = lab.probe(
                number, plan.settings, found(study, plan.settings, says(plan.settings))
            )
            ended = replace(ended, request=plan)
            study = replace(study, probes=(*study.probes, ended))
        raise AssertionError("the planner does not stop")

    return run


def as_predicted(study):
    """Says of settings what is predicted that they allocate."""
    known = forecast(replace(study, probes=()))
    return lambda settings: known.estimates[settings].allocated_bytes.value


def test_memory_is_rehearsed_and_time_predicted(asked, play):
    study = play(asked(), as_predicted(asked()))
    found, plain = answer(study), answer(asked(fidelity=Fidelity.PREDICTED))
    best = found.best
    assert (best.settings, best.seconds) == (plain.best.settings, plain.best.seconds)
    memory = best.allocated_bytes, best.needed_bytes, best.reserved_bytes, best.device_bytes
    assert {one.provenance for one in memory} == {Provenance.REHEARSED}
    assert best.step_time_s.provenance is Provenance.PREDICTED
    assert (best.basis, found.provenance) == (Basis.REHEARSED, Provenance.PREDICTED)
    assert is_answered(study)
    assert not is_forecast(study, found)
    assert best.guard.verdict == "not_checked"
    said = brief(study, found)
    assert said.title == "Answer"
    assert "memory rehearsed, on no GPU; speed predicted by arithmetic" in said.answer
    told = " ".join(found.explanation)
    assert "All times are predicted" in told
    assert "which is arithmetic; rehearsed, it needed" in told
    assert "measured" not in told
    assert "No dry run" not in told


def test_the_fastest_is_rehearsed_first_and_then_others_of_other_layouts(asked, play):
    study = play(asked(), as_predicted(asked()))
    tried = [probe.request.settings for probe in study.probes]
    assert tried[0] == answer(study).best.settings
    assert len(tried) == len({one.layout for one in tried}) == FINALISTS
    assert "nothing that may fit is predicted to be faster" in study.reason
    assert cost(study).device_s == 0
    shown = points(study, answer(study))
    assert {one.known_from for one in shown} == {Provenance.PREDICTED}
    assert shown[0].settings == answer(study).best.settings
    assert shown[0].needed_bytes.provenance is Provenance.REHEARSED


def test_what_runs_out_of_memory_is_no_answer_nor_is_anything_heavier(asked, play):
    first = next_probe(asked()).settings
    says = as_predicted(asked())

    def larger(settings):
        return 80 * GIB if settings == first else says(settings)

    study = play(asked(), larger)
    best = answer(study).best
    assert best.settings != first
    assert best.basis is Basis.REHEARSED
    of_first = forecast(study).estimates[first]
    assert (of_first.fits, of_first.over_bytes > 0) == (False, True)
    assert of_first.needed_bytes.provenance is Provenance.REHEARSED
    assert any("Out of memory" in text for text in answer(study).explanation)
    # what was predicted to need more than the limit alone may still be seen to fit
    plain = answer(replace(study, limits=asked(fidelity=Fidelity.PREDICTED).limits))
    assert plain.best.settings == best.settings


def test_nothing_fits_by_far_takes_one_rehearsal(asked, play):
    study = play(asked(memory_limit_bytes=8 * GIB), lambda _: 9 * GIB)
    assert study.state is StudyState.FAILED
    assert len(study.probes) == 1
    error = why_none(study, answer(study))
    assert isinstance(error, NothingFitsError)
    assert "The smallest need predicted is" in str(error)
    assert any("needing at least 9.00 GiB" in text for text in answer(study).explanation)


def test_what_does_not_run_leaves_a_prediction_that_is_no_answer(asked, play):
    study = play(asked(max_probes=3), lambda _: Outcome.INVALID)
    found = answer(study)
    assert is_forecast(study, found)
    assert brief(study, found).title == "Predicted, not rehearsed"
    assert not is_answered(study)
    error = why_none(study, found)
    assert isinstance(error, ProbeError)
    assert "has no rehearsed answer" in str(error)
    assert "the last: invalid: no kernel" in str(error)
    # elsewhere it may run
    plain = asked(fidelity=Fidelity.PREDICTED)
    assert answer(replace(study, limits=plain.limits)).best.settings == answer(plain).best.settings


def test_a_study_climbs_from_rehearsals_to_probes(asked, play):
    """What was rehearsed chooses what is measured first, and is measured all the same."""
    first = next_probe(asked()).settings
    says = as_predicted(asked())
    study = play(asked(), lambda one: 80 * GIB if one == first else says(one))
    limits = asked(fidelity=Fidelity.MEASURED).limits
    assert next_probe(asked(fidelity=Fidelity.MEASURED)).settings == first
    climbed = next_probe(replace(study, state=StudyState.RUNNING, limits=limits))
    assert isinstance(climbed, ProbeRequest)
    assert climbed.fidelity is Fidelity.MEASURED
    assert climbed.settings != first
    fits = {p.request.settings for p in study.probes if p.measurement.outcome is Outcome.OK}
    assert climbed.settings in fits
    # until then the answer is a forecast, of a measured question
    found = answer(replace(study, limits=limits))
    assert is_forecast(replace(study, limits=limits), found)
    assert found.provenance is not Provenance.MEASURED


@pytest.fixture
def scripted(asked, tmp_path):
    """A study of a script, whose model is named or not."""
    (tmp_path / "train.py").write_text("steps")
    arguments = ("{micro_batch_size}", "{activation_checkpointing}")
    script = read_script("train.py", arguments=arguments, folder=tmp_path)

    def make(*, named, **limits):
        plain = asked(**limits)
        workload = plain.question.workload
        if not named:
            workload = replace(workload, model=unnamed_model())
        knobs = {
            "sharding": ("full_shard",), "tp_size": (1,), "sync_each_batch": (True,),
            "fused_loss": (False,), "micro_batch_size": (1, 2, 4, 8),
            "activation_checkpointing": ("none", "full"),
        }  # fmt: skip
        question = replace(plain.question, workload=workload, script=script, knobs=knobs)
        return replace(plain, question=question)

    return make


def of_script(settings):
    size = 8 if settings.activation_checkpointing is Checkpointing.FULL else 30
    return (10 + size * settings.micro_batch_size) * GIB


def test_a_script_of_a_named_model_has_times_of_the_built_in_step(scripted, play):
    study = play(scripted(named=True), of_script)
    found = answer(study)
    best = found.best
    assert (best.basis, best.fits) == (Basis.REHEARSED, True)
    assert best.step_time_s.provenance is Provenance.PREDICTED
    tried = {p.request.settings: p.measurement.outcome for p in study.probes}
    fits = [one for one, outcome in tried.items() if outcome is Outcome.OK]
    assert best.settings in fits
    assert "the built-in step of llama-3.1-8b" in " ".join(found.explanation)
    assert "speed predicted of the built-in step" in " ".join(brief(study, found).answer)
    assert "nothing that may fit is predicted to be faster" in study.reason


def test_a_script_of_no_named_model_is_ranked_by_rules_and_has_no_best(scripted, play):
    study = play(scripted(named=False), of_script)
    found = answer(study)
    assert found.best is None
    assert found.alternatives
    assert all(one.is_rehearsed and one.fits for one in found.alternatives)
    assert {one.step_time_s.value for one in found.alternatives} == {None}
    error = why_none(study, found)
    assert isinstance(error, SpeedUnknownError)
    assert "whose model is not named" in str(error)
    assert "rehearsed, to fit" in " ".join(found.explanation)
    assert is_answered(study)
    # on GPUs it goes on with what was seen to fit
    limits = replace(study.limits, fidelity=Fidelity.MEASURED)
    climbed = next_probe(replace(study, state=StudyState.RUNNING, limits=limits))
    oom = {p.request.settings for p in study.probes if p.measurement.outcome is Outcome.OOM}
    assert climbed.fidelity is Fidelity.MEASURED
    assert climbed.settings not in oom


@pytest.mark.parametrize("named", [True, False])
def test_no_rule_of_thumb_is_exported_as_seconds(scripted, play, named, tmp_path):
    study = play(scripted(named=named), of_script)
    path = tmp_path / "optuna.db"
    write_storage(study, path)
    with opened_by_optuna(study.id, path) as found:
        trials = found.trials
    ran = [one for one in trials if one.user_attrs["outcome"] == "ok"]
    assert len(ran) > 1
    assert all((one.value is not None) is named for one in ran)
    assert all((one.user_attrs.get("seconds_are") == "predicted") is named for one in ran)


def test_one_at_a_time(asked, lab):
    request = next_probe(asked())
    probe = replace(lab.probe(1, request.settings, None), request=request, state=ProbeState.QUEUED)
    assert isinstance(next_probe(replace(asked(), probes=(probe,)), beside=True), Wait)


def test_the_budget_ends_it(asked, play):
    study = play(asked(max_probes=1), as_predicted(asked()))
    assert study.reason == "the budget of 1 probe is spent"
    assert is_answered(study)
