"""What any legal settings would need: the predicted answer's own figures, and never measured."""

from dataclasses import replace
from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.planner.conftest import Machine, make_ok, make_oom, make_question, make_study, play
from tests.unit.planner.machines import Rough
from tests.unit.results.studies import (
    GIB,
    MIB,
    gpu_question,
    measured_study,
    predicted_study,
    with_dry_run,
)
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Basis, Fidelity, Outcome
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.explain.known import answer, as_predicted
from tuner.results.what_if import Predictor
from tuner.space import enumerate_space

NEVER = {Provenance.MEASURED, Provenance.EMULATED}


def check(study, made):
    """What holds of every what-if."""
    found = made.predicted
    workload, cluster = study.question.workload, study.question.cluster
    chosen = found.settings
    sequences = chosen.micro_batch_size * chosen.gradient_accumulation_steps
    sequences *= chosen.data_parallel_size(cluster.world_size)
    assert sequences == workload.global_batch_size
    figures = (found.needed_gib, found.allocated_gib, found.reserved_gib, found.device_gib,
               found.tokens_per_s_per_gpu, found.step_time_s)  # fmt: skip
    assert not NEVER & {figure.provenance for figure in figures}
    assert made.provenance not in NEVER
    if found.needed_gib.value is None:
        assert found.fits is None
        assert found.basis is None
        assert found.why
        assert not found.breakdown_gib
        assert found.tokens_per_s_per_gpu == found.step_time_s == UNKNOWN
        return
    assert found.basis is not None
    assert made.notes
    total = fsum(found.breakdown_gib.values())
    assert total == pytest.approx(found.allocated_gib.value, rel=1e-6)
    assert found.fits or found.why
    assert not found.fits or found.needed_gib.value <= found.limit_gib
    if found.step_time_s.value is None:
        assert found.why
    else:
        tokens = workload.tokens_per_step / cluster.world_size
        speed = found.tokens_per_s_per_gpu.value
        assert speed == pytest.approx(tokens / found.step_time_s.value)


def as_answered(study, predictor):
    """It tells the predicted answer's own figures."""
    said = answer(as_predicted(study))
    for one in filter(None, (said.best, *said.alternatives, *said.pareto)):
        found = predictor.what_if(one.settings).predicted
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


@given(
    seed=st.integers(0, 2**31),
    where=st.sampled_from([("cpu:1", 8), ("cpu:2", 12), ("2xa100-80gb", 8)]),
    limit_mib=st.sampled_from([1, 200, 400, 4000]),
    trouble=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=examples(5))
def test_of_every_legal_settings_whatever_probes_found(seed, where, limit_mib, trouble):
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


def test_memory_is_of_the_dry_run_of_its_class():
    question = gpu_question()
    one = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=2)
    study = with_dry_run(predicted_study(question), one, 1.0)
    found, plain = Predictor(study).what_if(one), Predictor(predicted_study(question)).what_if(one)
    assert (found.predicted.basis, plain.predicted.basis) == (Basis.DRY_RUN, Basis.ARITHMETIC)
    assert found.notes[0] == "The memory is from dry run #1."
    assert plain.notes[0].startswith("The memory is by arithmetic")
    assert found.predicted.allocated_gib.value > 1.0
    assert found.predicted.step_time_s == plain.predicted.step_time_s
    larger = replace(one, micro_batch_size=4, gradient_accumulation_steps=1)
    assert Predictor(study).what_if(larger).predicted.basis is Basis.DRY_RUN
    assert (
        Predictor(study).what_if(replace(one, sync_each_batch=False)).predicted.basis
        is Basis.ARITHMETIC
    )


def test_what_was_measured_stands_beside_and_corrects():
    question = gpu_question()
    one = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
    predicted_s = Predictor(predicted_study(question)).what_if(one).predicted.step_time_s.value
    assert predicted_s is not None
    study = measured_study([(one, make_ok(2 * predicted_s, 3 * GIB))], question)
    found = Predictor(study).what_if(one)
    (seen,) = found.seen
    assert (seen.fidelity, seen.outcome, seen.fits) == (Fidelity.MEASURED, Outcome.OK, True)
    assert seen.needed_gib.value == seen.allocated_gib.value == 3.0
    assert seen.step_time_s.value == pytest.approx(2 * predicted_s)
    assert seen.provenance is Provenance.MEASURED
    assert seen.probe_ids == (1,)
    assert found.provenance is Provenance.PREDICTED
    assert found.predicted.needed_gib.value != 3.0
    assert found.predicted.step_time_s.value == pytest.approx(2 * predicted_s)
    assert "times 2.00: by so much the probes of this study found other steps" in found.notes[1]


def test_what_ran_out_of_memory_is_said_to():
    one = Settings(micro_batch_size=4)
    study = measured_study([(one, make_oom(900 * MIB, 800 * MIB))], limit_mib=800)
    found = Predictor(study).what_if(one)
    (seen,) = found.seen
    assert (seen.outcome, seen.fits) == (Outcome.OOM, False)
    assert seen.over_bytes == pytest.approx(100 * MIB)
    assert seen.allocated_gib == UNKNOWN
    assert found.predicted.fits is False
    assert "did not fit when they, or smaller ones, were measured" in found.predicted.why


def test_where_no_rate_is_known_probes_tell_the_speed():
    question = make_question()
    study = make_study(question, memory_limit_bytes=600 * MIB, max_probes=8)
    unprobed = Settings(micro_batch_size=1, gradient_accumulation_steps=4)
    before = Predictor(study).what_if(unprobed)
    assert before.predicted.step_time_s == UNKNOWN
    assert "before tuner calibrate" in before.predicted.why
    study, _ = Machine(question).play(study)
    assert unprobed not in {probe.request.settings for probe in study.probes}
    after = Predictor(study).what_if(unprobed)
    assert after.provenance is Provenance.PREDICTED
    assert after.predicted.why == ""
    truth = Machine(question).seconds(unprobed, 4)
    assert after.predicted.step_time_s.value == pytest.approx(truth, rel=0.3)
    assert "assumed rates and corrected by the probes" in " ".join(after.notes)
