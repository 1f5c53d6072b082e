"""What any legal settings would need: the predicted answer's own figures, and never measured."""

from collections.abc import Collection
from dataclasses import replace
from math import fsum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.planner.conftest import Machine, make_ok, make_oom, make_question, make_study
from tests.unit.planner.machines import Rough, play
from tests.unit.results.studies import (
    GIB,
    MIB,
    gpu_question,
    measured_study,
    predicted_study,
    with_dry_run,
)
from tests.unit.results.test_choices import QUESTIONS, almost_legal
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Basis, Fidelity, Measurement, Outcome
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.core.study import Question, Study
from tuner.cost.prediction import predict
from tuner.errors import UsageError
from tuner.explain.known import answer, as_predicted
from tuner.results import Predictor, WhatIf, what_if
from tuner.space import check_settings, enumerate_space, settings_notes

NEVER = {Provenance.MEASURED, Provenance.EMULATED}
FAILURE = {"type": "NotImplementedError", "message": "no fake kernel", "operator": "aten::odd"}


def check(study: Study, found: WhatIf) -> None:
    """What holds of every what-if."""
    workload, cluster = study.question.workload, study.question.cluster
    chosen = found.settings
    sequences = chosen.micro_batch_size * chosen.gradient_accumulation_steps
    sequences *= chosen.data_parallel_size(cluster.world_size)
    assert sequences == workload.global_batch_size == found.global_batch_size
    figures = (found.memory_gib, found.allocated_gib, found.reserved_gib, found.device_gib,
               found.tokens_per_s_per_gpu, found.step_time_s)  # fmt: skip
    assert not NEVER & {figure.provenance for figure in figures}
    assert found.provenance not in NEVER
    if found.memory_gib.value is None:
        assert found.fits is None
        assert found.basis is None
        assert found.why
        assert not found.breakdown_gib
        assert found.tokens_per_s_per_gpu == found.step_time_s == UNKNOWN
        return
    assert found.basis is not None
    assert found.notes
    total = fsum(found.breakdown_gib.values())
    assert total == pytest.approx(found.allocated_gib.value, rel=1e-6)
    assert found.fits or found.why
    assert not found.fits or found.memory_gib.value <= found.limit_gib
    if found.step_time_s.value is None:
        assert found.why
    else:
        tokens = workload.tokens_per_step / cluster.world_size
        speed = found.tokens_per_s_per_gpu.value
        assert speed == pytest.approx(tokens / found.step_time_s.value)


def as_answered(study: Study, predictor: Predictor) -> None:
    """It tells the predicted answer's own figures."""
    said = answer(as_predicted(study))
    for one in filter(None, (said.best, *said.alternatives, *said.pareto)):
        found = predictor.what_if(one.settings)
        assert found.allocated_gib == one.allocated_gib
        assert found.reserved_gib == one.reserved_gib
        assert found.device_gib == one.device_gib
        assert found.breakdown_gib == one.breakdown_gib
        assert found.by_phase_gib == one.by_phase_gib
        assert found.basis == one.basis
        assert found.limit_gib == one.limit_gib
        assert found.fits
        if one.step_time_s.value is not None:
            assert found.step_time_s == one.step_time_s
            assert found.tokens_per_s_per_gpu == one.tokens_per_s_per_gpu


@given(question=QUESTIONS, limit_mib=st.sampled_from([100, 400, 80_000]), dry=st.booleans())
@settings(max_examples=examples(8))
def test_of_every_legal_settings(question: Question, limit_mib: int, dry: bool) -> None:
    study = predicted_study(question, memory_limit_bytes=limit_mib * MIB)
    legal = enumerate_space(question).legal
    if dry and question.framework.name != "nanotron":
        study = with_dry_run(study, legal[len(legal) // 2], 0.25)
    predictor = Predictor(study)
    for one in legal:
        found = predictor.what_if(one)
        assert found.settings == one
        assert found.collapsed == ()
        assert found.seen == ()
        check(study, found)
    as_answered(study, predictor)


@given(
    seed=st.integers(0, 2**31),
    where=st.sampled_from([("cpu:1", 8), ("cpu:2", 12), ("2xa100-80gb", 8)]),
    limit_mib=st.sampled_from([1, 200, 400, 4000]),
    trouble=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=examples(5))
def test_of_every_legal_settings_whatever_probes_found(
    seed: int, where: tuple[str, int], limit_mib: int, trouble: float
) -> None:
    question = make_question(*where)
    study = make_study(question, memory_limit_bytes=limit_mib * MIB, max_probes=6, seed=seed)
    study, _ = play(study, Rough(study=study, seed=seed, trouble=trouble).run)
    predictor = Predictor(study)
    probed = {probe.request.settings for probe in study.probes}
    for one in enumerate_space(question).legal:
        found = predictor.what_if(one)
        check(study, found)
        assert bool(found.seen) == (one in probed)
    as_answered(study, predictor)


def checked_or_refused(
    question: Question, raw: Settings, written: Collection[str]
) -> Settings | str:
    """The canonical form, or the words of the refusal."""
    try:
        return check_settings(question, raw, given=written)
    except UsageError as error:
        return str(error)


@given(asked=almost_legal(), given_all=st.booleans())
@settings(max_examples=examples(30))
def test_dead_knobs_collapse_as_the_space_says(
    asked: tuple[Question, Settings], given_all: bool
) -> None:
    question, raw = asked
    study = predicted_study(question)
    written = ("sharding", "tp_recompute_allgather", "sync_each_batch") if given_all else ()
    checked = checked_or_refused(question, raw, written)
    if isinstance(checked, str) or checked.cpu_offload:
        with pytest.raises(UsageError) as refused:
            what_if(study, raw, given=written)
        # Offloading is legal, and not looked at unless it is asked for.
        why = checked if isinstance(checked, str) else "is not in the space of this study"
        assert str(refused.value).endswith(why)
        return
    found = what_if(study, raw, given=written)
    assert found.settings == checked
    assert found.settings in enumerate_space(question).legal
    assert found.collapsed == settings_notes(question, raw, given=written)
    check(study, found)


def test_memory_is_of_the_dry_run_of_its_class() -> None:
    question = gpu_question()
    one = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=2)
    study = with_dry_run(predicted_study(question), one, 1.0)
    found, plain = what_if(study, one), what_if(predicted_study(question), one)
    assert (found.basis, plain.basis) == (Basis.DRY_RUN, Basis.ARITHMETIC)
    assert found.notes[0] == "The memory is from a dry run (probe #1)."
    assert plain.notes[0].startswith("The memory is by arithmetic")
    assert found.allocated_gib.value is not None
    assert found.allocated_gib.value > 1.0
    assert found.step_time_s == plain.step_time_s
    larger = replace(one, micro_batch_size=4, gradient_accumulation_steps=1)
    assert what_if(study, larger).basis is Basis.DRY_RUN
    assert what_if(study, replace(one, sync_each_batch=False)).basis is Basis.ARITHMETIC


def test_without_probes_it_is_the_cost_model_alone() -> None:
    question = gpu_question()
    study = predicted_study(question)
    one = Settings(micro_batch_size=4)
    found = what_if(study, one)
    direct = predict(
        question.workload,
        question.cluster,
        question.framework,
        one,
        limit_bytes=study.limits.limit_bytes(question.cluster),
    )
    assert found.memory_gib == direct.needed_bytes.scaled(1 / GIB)
    assert found.step_time_s == direct.step_time_s
    assert found.outside_gib == (direct.context_bytes + direct.communicator_bytes) / GIB
    assert found.words == "sharding=ddp,micro_batch_size=4,gradient_accumulation_steps=1"


def test_what_was_measured_stands_beside_and_corrects() -> None:
    question = gpu_question()
    one = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
    predicted_s = what_if(predicted_study(question), one).step_time_s.value
    assert predicted_s is not None
    study = measured_study([(one, make_ok(2 * predicted_s, 3 * GIB))], question)
    found = what_if(study, one)
    (seen,) = found.seen
    assert (seen.fidelity, seen.outcome, seen.fits) == (Fidelity.MEASURED, Outcome.OK, True)
    assert seen.needed_gib.value == seen.allocated_gib.value == 3.0
    assert seen.step_time_s.value == pytest.approx(2 * predicted_s)
    assert seen.provenance is Provenance.MEASURED
    assert seen.probe_ids == (1,)
    assert found.provenance is Provenance.PREDICTED
    assert found.memory_gib.value != 3.0
    assert found.step_time_s.value == pytest.approx(2 * predicted_s)
    assert "times 2.00: by so much the probes of this study found other steps" in found.notes[1]


def test_what_ran_out_of_memory_is_said_to() -> None:
    one = Settings(micro_batch_size=4)
    study = measured_study([(one, make_oom(900 * MIB, 800 * MIB))], limit_mib=800)
    found = what_if(study, one)
    (seen,) = found.seen
    assert (seen.outcome, seen.fits) == (Outcome.OOM, False)
    assert seen.overshoot_gib == pytest.approx(100 / 1024)
    assert seen.allocated_gib == UNKNOWN
    assert found.fits is False
    assert "did not fit when they, or smaller ones, were measured" in found.why


def test_a_failed_dry_run_leaves_nothing_predicted() -> None:
    one = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
    study = with_dry_run(predicted_study(), one, error=FAILURE)
    found = what_if(study, one)
    assert found.fits is None
    assert found.why.startswith("their dry run failed: sharding=full_shard ended as")
    assert Predictor(study).explain(one) == ()
    check(study, found)


def test_what_the_cost_model_does_not_cover_is_unknown() -> None:
    experts = {
        "model_type": "mixtral", "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4,
        "vocab_size": 256, "max_position_embeddings": 256, "num_local_experts": 3,
    }  # fmt: skip
    from tuner.core.framework import framework
    from tuner.model import read_model_config

    question = gpu_question()
    workload = replace(question.workload, model=read_model_config(experts, name="experts"))
    old = framework("accelerate", {"torch": "2.5.0", "accelerate": "1.0.0"}, {})
    study = predicted_study(replace(question, workload=workload, framework=old))
    found = what_if(study, Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4))
    assert found.fits is None
    assert "is not covered" in found.why
    check(study, found)


def test_where_no_rate_is_known_probes_tell_the_speed() -> None:
    question = make_question()
    study = make_study(question, memory_limit_bytes=600 * MIB, max_probes=8)
    unprobed = Settings(micro_batch_size=1, gradient_accumulation_steps=4)
    before = what_if(study, unprobed)
    assert before.step_time_s == UNKNOWN
    assert "before tuner calibrate" in before.why
    study, _ = Machine(question).play(study)
    assert unprobed not in {probe.request.settings for probe in study.probes}
    after = what_if(study, unprobed)
    assert after.provenance is Provenance.PREDICTED
    assert after.why == ""
    truth = Machine(question).seconds(unprobed, 4)
    assert after.step_time_s.value == pytest.approx(truth, rel=0.3)
    assert "assumed rates and corrected by the probes" in " ".join(after.notes)


def test_what_no_step_was_timed_of_is_not_told_at_assumed_rates() -> None:
    one = Settings(micro_batch_size=4)
    crashed = Measurement(outcome=Outcome.CRASHED, detail="signal 9")
    found = what_if(measured_study([(one, crashed)]), one)
    assert found.step_time_s == UNKNOWN
    assert found.seen[0].why == "signal 9"


def test_it_explains_where_memory_goes() -> None:
    (first, *others) = Predictor(predicted_study()).explain(Settings(micro_batch_size=4))
    assert first.startswith("By arithmetic the peak of")
    assert any(line.startswith("`sharding=") for line in others)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (dict(micro_batch_size=3), "micro_batch_size"),
        (dict(gradient_accumulation_steps=5), "gradient_accumulation_steps"),
        (dict(tp_size=3), "tp_size"),
    ],
)
def test_what_is_not_legal_is_refused_with_its_field(raw: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as refused:
        what_if(predicted_study(), Settings(**raw))
    assert refused.value.field == field
