"""What each knob does: of each value the best known, and from what that is known."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.planner.conftest import Machine, make_ok, make_question, make_study, play
from tests.unit.planner.machines import Rough
from tests.unit.results.studies import MIB, gpu_question, measured_study
from tuner.core.configuration import Settings, Sharding
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.explain.known import answer
from tuner.results import choices, knob_effects

FOUR = Settings(micro_batch_size=4)
SHARDED = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)


def effects(study, suggestion):
    found = knob_effects(study, suggestion)
    return {one.knob: {value.shown: value for value in one.values} for one in found}


@given(
    seed=st.integers(0, 2**31),
    where=st.sampled_from([("cpu:1", 8), ("cpu:2", 12), ("2xa100-80gb", 8)]),
    limit_mib=st.sampled_from([1, 200, 4000]),
    trouble=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=examples(5))
def test_whatever_a_machine_says(seed, where, limit_mib, trouble):
    question = make_question(*where)
    study = make_study(question, memory_limit_bytes=limit_mib * MIB, max_probes=8, seed=seed)
    study, _ = play(study, Rough(study=study, seed=seed, trouble=trouble).run)
    suggestion = answer(study)
    best = suggestion.best
    found = knob_effects(study, suggestion)
    live = [choice for choice in choices(study).knobs if choice.is_live]
    assert [one.knob for one in found] == [choice.knob for choice in live]
    for one, choice in zip(found, live, strict=True):
        assert tuple(value.value for value in one.values) == choice.values
        assert [v.is_best for v in one.values].count(True) == (best is not None)
        for value in one.values:
            known = value.fits and value.tokens_per_s_per_gpu.value
            assert bool(value.note) == (not known)
            if value.settings is not None:
                assert getattr(value.settings, one.knob) == value.value
                assert value.settings in choices(study).legal
            if value.is_best:
                assert value.settings == best.settings
                assert value.tokens_per_s_per_gpu == best.tokens_per_s_per_gpu
                assert value.relative in (1.0, None)
                assert value.differs == ()
            assert value.fits or value.tokens_per_s_per_gpu == UNKNOWN


def test_what_was_measured_goes_before_what_is_predicted():
    question = gpu_question()
    study = measured_study(
        [(FOUR, make_ok(0.5, 500 * MIB)), (SHARDED, make_ok(5, 500 * MIB))], question
    )
    found = effects(study, answer(study))["sharding"]
    assert found["ddp"].is_best
    assert found["full_shard"].settings == SHARDED
    assert found["full_shard"].provenance is Provenance.MEASURED
    assert found["full_shard"].relative == pytest.approx(0.1)
    assert found["full_shard"].probes == (2,)
    assert found["full_shard"].differs == ()
    assert found["shard_grad_op"].provenance is Provenance.PREDICTED
    assert found["shard_grad_op"].probes == ()
    assert found["shard_grad_op"].relative


def test_where_no_rate_is_known_probes_tell_of_what_was_not_probed():
    study, _ = Machine(make_question()).play(make_study(max_probes=6))
    found = effects(study, answer(study))
    values = [value for of_knob in found.values() for value in of_knob.values()]
    predicted = [value for value in values if value.provenance is Provenance.PREDICTED]
    assert predicted
    assert all(value.relative for value in predicted)
