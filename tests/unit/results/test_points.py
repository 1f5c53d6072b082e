"""Points: one for each settings, with the answer's own figures."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.planner.conftest import make_ok, make_oom, make_question, make_study, play
from tests.unit.planner.machines import Rough
from tests.unit.results.studies import (
    MIB,
    gpu_question,
    measured_study,
    predicted_study,
    with_dry_run,
)
from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import PROBED, Fidelity, Outcome
from tuner.core.quantity import UNKNOWN, Provenance
from tuner.explain.known import answer
from tuner.planner.knowledge import learned
from tuner.results.points import FEWEST_WEIGHED, Evidence, importance, points, rows_of
from tuner.space import enumerate_space

FOUR = Settings(micro_batch_size=4)
TWO = Settings(micro_batch_size=2, gradient_accumulation_steps=2)
SHARDED = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
SPLIT = Settings(sharding=Sharding.SHARD_GRAD_OP, micro_batch_size=4)


def by_settings(found):
    assert len({point.settings for point in found}) == len(found)
    return {point.settings: point for point in found}


def check(study, suggestion, found):
    """What holds of all points of a measured study."""
    known = learned(study)
    mine = by_settings(found)
    probed = {p.request.settings for p in study.probes if p.measurement}
    named = [c for c in (suggestion.best, *suggestion.alternatives, *suggestion.pareto) if c]
    assert set(mine) == probed | {candidate.settings for candidate in named}
    for candidate in named:
        point = mine[candidate.settings]
        assert point.tokens_per_s_per_gpu == candidate.tokens_per_s_per_gpu
        assert point.step_time_s == candidate.step_time_s
        assert point.allocated_gib == candidate.allocated_gib
        if candidate.step_time_s.value is not None:
            assert point.known_from == candidate.provenance
        assert not point.too_large
    if suggestion.best:
        assert found[0].settings == suggestion.best.settings
    for point in found:
        if point.fits and point.probes and point.outcome is not None:
            assert point.most_bytes <= known.limit_bytes + 1
        if point.too_large:
            assert point.fits is not True
            assert point.over_bytes >= 0


@given(
    seed=st.integers(0, 2**31),
    where=st.sampled_from([("cpu:1", 8), ("cpu:2", 12), ("2xa100-80gb", 8)]),
    limit_mib=st.sampled_from([1, 130, 260, 4000]),
    trouble=st.sampled_from([0.0, 0.3, 0.9]),
)
@settings(max_examples=examples(6))
def test_whatever_a_machine_says(seed, where, limit_mib, trouble):
    question = make_question(*where)
    study = make_study(question, memory_limit_bytes=limit_mib * MIB, max_probes=8, seed=seed)
    study, _ = play(study, Rough(study=study, seed=seed, trouble=trouble).run)
    suggestion = answer(study)
    check(study, suggestion, points(study, suggestion))


def test_the_answer_goes_first_then_the_fastest():
    told = [(TWO, make_ok(2.0, 500 * MIB, count=2)), (SHARDED, make_ok(1.0, 600 * MIB)),
            (FOUR, make_oom(900 * MIB, 700 * MIB)), (SPLIT, make_ok(1.5, 650 * MIB))]  # fmt: skip
    study = measured_study(told, limit_mib=700)
    found = points(study, answer(study))
    assert [point.settings for point in found] == [SHARDED, SPLIT, TWO, FOUR]
    assert [point.probe_ids for point in found] == [(2,), (4,), (1,), (3,)]


def test_a_table_has_the_intervals_of_the_answer():
    """Which of several that tie is chosen, and how runs of others differ, widen them alike."""
    told = [(FOUR, make_ok(1.0, 500 * MIB)), (FOUR, make_ok(1.1, 500 * MIB))]
    study = measured_study([*told, (TWO, make_ok({2: (1.01, 1.03)}, 400 * MIB))])
    best = answer(study).best
    rows = {row.settings: row for row in rows_of(study, learned(study))}
    assert rows[best.settings].step_time_s == best.step_time_s
    assert rows[best.settings].tokens_per_s_per_gpu == best.tokens_per_s_per_gpu
    alone = {row.settings: row for row in rows_of(study)}
    assert alone[best.settings].step_time_s != best.step_time_s


def test_what_lies_outside_the_allocator_counts_against_the_limit():
    found = make_ok(1.0, 600 * MIB, overhead=200 * MIB)
    study = measured_study([(FOUR, found)], limit_mib=700)
    (point,) = [p for p in points(study, answer(study)) if p.settings == FOUR]
    assert point.fits is False
    assert point.needed_gib.value == pytest.approx(800 / 1024)
    assert point.allocated_gib.value == pytest.approx(600 / 1024)
    assert point.over_bytes == pytest.approx(100 * MIB)
    assert point.tokens_per_s_per_gpu.value is not None


def test_a_smaller_limit_of_before_says_nothing_of_today():
    """It may fit now: the next request tries it."""
    study = measured_study([(FOUR, make_oom(650 * MIB, 600 * MIB))], limit_mib=600)
    study = replace(study, limits=replace(study.limits, memory_limit_bytes=2000 * MIB))
    (point,) = points(study, None)
    assert point.fits is None
    assert point.outcome is Outcome.OOM
    assert not point.too_large


def test_what_was_stopped_early_has_its_memory_and_speed():
    slow = replace(make_ok({4: [9.0, 9.0]}, 400 * MIB), outcome=Outcome.STOPPED_EARLY)
    one = Settings(micro_batch_size=1, gradient_accumulation_steps=4)
    study = measured_study([(FOUR, make_ok(1.0, 500 * MIB)), (one, slow)])
    point = by_settings(points(study, answer(study)))[one]
    assert point.fits
    assert point.outcome is Outcome.STOPPED_EARLY
    assert point.tokens_per_s_per_gpu.value == pytest.approx(128 * 8 / 2 / 9)


def test_a_predicted_study_has_its_dry_runs_and_what_it_names():
    study = predicted_study()
    one = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=2, gradient_accumulation_steps=2)
    study = with_dry_run(study, one, 1.0)
    failed = Settings(micro_batch_size=4)
    error = {"type": "NotImplementedError", "message": "no kernel", "operator": "aten::odd"}
    study = with_dry_run(study, failed, error=error)
    suggestion = answer(study)
    mine = by_settings(points(study, suggestion))
    assert mine[one].probe_ids == (1,)
    assert mine[one].known_from is Provenance.PREDICTED
    assert mine[failed].fits is None
    assert mine[failed].needed_bytes == UNKNOWN
    assert "aten::odd" in mine[failed].why
    best = mine[suggestion.best.settings]
    assert best.allocated_gib == suggestion.best.allocated_gib


def test_of_two_fidelities_the_one_that_is_asked_for_is_shown():
    study = measured_study([(FOUR, make_ok(1.0, 500 * MIB)), (FOUR, make_ok(3.0, 500 * MIB))])
    first, second = study.probes
    emulated = replace(second, request=replace(second.request, fidelity=Fidelity.EMULATED))
    study = replace(study, probes=(first, emulated))
    for asked, seconds in ((Fidelity.MEASURED, 1.0), (Fidelity.EMULATED, 3.0)):
        whole = replace(study, limits=replace(study.limits, fidelity=asked))
        (point,) = points(whole, None)
        assert point.step_time_s.value == seconds
        seen = Evidence(whole).seen(FOUR)
        assert [one.fidelity for one in seen] == [asked, *{*PROBED} - {asked}]
        assert seen[0].step_time_s.value == seconds


def weighed(seconds_of, count=60, more=()):
    """The importance of knobs in a study of configurations that took so long."""
    question = gpu_question("8xa100-80gb", 256)
    legal = enumerate_space(question).legal
    told = [
        (one, make_ok(seconds_of(one), 100 * MIB, count=one.gradient_accumulation_steps))
        for one in Random(7).sample(legal, count)
    ]
    return importance(Evidence(measured_study([*told, *more], question)))


def test_a_knob_explains_what_follows_from_it():
    found = weighed(lambda one: 1.0 if one.sharding is Sharding.FULL_SHARD else 2.0)
    assert next(iter(found.shares)) == "sharding"
    assert found.shares["sharding"] == pytest.approx(1.0, abs=0.01)
    assert (found.configurations, found.fidelity) == (60, Fidelity.MEASURED)
    assert "activation_checkpointing" in found.others
    assert not {"gradient_accumulation_steps"} & {*found.shares, *found.others}, "it follows"


def test_of_two_knobs_the_one_that_does_more_is_first():
    noise = Random(3)

    def seconds(one):
        recomputed = 1.5 if one.activation_checkpointing != "none" else 1.0
        return recomputed * (1 + 0.4 / one.micro_batch_size) * noise.uniform(0.99, 1.01)

    shares = weighed(seconds).shares
    assert list(shares)[:2] == ["activation_checkpointing", "micro_batch_size"]
    assert 0.5 < shares["activation_checkpointing"] <= 1


@pytest.mark.parametrize("seed", range(4, 7))
@pytest.mark.parametrize("count", [FEWEST_WEIGHED, 24, 60])
def test_noise_is_no_more_than_chance(seed, count):
    noise = Random(seed)
    assert weighed(lambda one: noise.uniform(0.9, 1.1), count).shares == {}


def test_of_few_or_equal_step_times_nothing_is_said():
    noise = Random(1)
    assert weighed(lambda one: noise.uniform(1, 2), FEWEST_WEIGHED - 1) is None
    assert weighed(lambda one: 1.0) is None
    assert importance(Evidence(predicted_study())) is None


def test_only_what_ran_to_its_end_is_weighed():
    legal = enumerate_space(gpu_question("8xa100-80gb", 256)).legal
    rest = [one for one in legal if one not in Random(7).sample(legal, FEWEST_WEIGHED)]
    more = [(rest[0], make_oom(8192, 4096)), (rest[1], make_ok({}, 100 * MIB))]
    noise = Random(1)
    found = weighed(lambda one: noise.uniform(1, 2), FEWEST_WEIGHED, more)
    assert found.configurations == FEWEST_WEIGHED
