"""Lessons of probes: what fits, what is closed, and what needs no less than what did not fit."""

from dataclasses import replace

import pytest

from tuner.core.configuration import Checkpointing, parse_settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.cost.memory.step import memory_bound
from tuner.cost.prediction import predict
from tuner.planner.knowledge import family, heavier, learned
from tuner.space import enumerate_space

SMALL = parse_settings("sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=4")
MIDDLE = parse_settings("sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2")
WHOLE = parse_settings("sharding=full_shard,micro_batch_size=4")
OTHER = parse_settings("sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2")
GIB = 2**30


def study_of(lab, *rows, limit=4 * GIB, today=0):
    """Probes under a limit, in their order; repetitions count up. Today's limit may be another."""
    probes = [
        lab.probe(n, one, found, repetition=[s for s, _ in rows[: n - 1]].count(one), limit=limit)
        for n, (one, found) in enumerate(rows, start=1)
    ]
    return lab.study(probes=probes, memory_limit_bytes=today or limit)


def known(lab, *rows, **limits):
    return learned(study_of(lab, *rows, **limits))


def test_out_of_memory_rules_out_larger_micro_batches_of_the_family(lab):
    found = known(lab, (SMALL, lab.oom(5 * GIB, 4 * GIB)))
    # without accumulation no gradients wait
    ruled_out = [found.is_infeasible(one) for one in (SMALL, MIDDLE, WHOLE, OTHER)]
    assert ruled_out == [True, True, False, False]


@pytest.mark.parametrize(
    ("needed", "limit", "today", "is_open"),
    [
        (2 * GIB, GIB, 4 * GIB, True),
        (2 * GIB, GIB, GIB, False),
        (2 * GIB, GIB, GIB // 2, False),
        (2 * GIB, GIB, 3 * GIB // 2, False),  # it needs more than today's limit at least
        (3 * GIB, 4 * GIB, 4 * GIB, False),  # the device had less than was thought
    ],
)
def test_a_larger_limit_opens_what_a_smaller_one_closed(lab, needed, limit, today, is_open):
    ran_out = lab.oom(needed, min(needed, limit))
    found = known(lab, (SMALL, ran_out), limit=limit, today=today)
    assert (SMALL in found.candidates()) is is_open


def test_what_was_measured_may_not_fit_today(lab):
    row = (SMALL, lab.ok(1.0, 2 * GIB, count=4, overhead=GIB))
    assert known(lab, row, limit=3 * GIB).fitting
    found = known(lab, row, limit=3 * GIB - 1)
    assert not found.fitting
    assert found.is_infeasible(MIDDLE)


CLASS, ALONE = {SMALL, MIDDLE, WHOLE}, {MIDDLE}


@pytest.mark.parametrize(
    ("outcome", "phase", "now", "later"),
    [
        (Outcome.INVALID, "build", CLASS, CLASS),
        (Outcome.WRONG_RESULT, "", CLASS, CLASS),
        (Outcome.NON_FINITE, "", ALONE, ALONE),
        (Outcome.HOST_OOM, "", ALONE, ALONE),
        (Outcome.TIMEOUT, "", ALONE, ALONE),
        (Outcome.CRASHED, "forward", ALONE, ALONE),
        (Outcome.CRASHED, "start", ALONE, set()),  # before the model was there
        (Outcome.CRASHED, "build", ALONE, set()),
        (Outcome.COMMUNICATION_ERROR, "", ALONE, set()),
        (Outcome.WORKER_LOST, "", ALONE, set()),
        (Outcome.CANCELLED, "", ALONE, set()),
    ],
)
def test_what_an_outcome_closes_in_its_study_and_for_later_requests(
    lab, outcome, phase, now, later
):
    study = study_of(lab, (MIDDLE, Measurement(outcome=outcome, phase=phase, wall_s=9.0)))
    for asked, closed in ((study, now), (replace(study, probes_before=1), later)):
        candidates = set(learned(asked).candidates())
        assert {SMALL, MIDDLE, WHOLE, OTHER} - candidates == closed


@pytest.mark.parametrize(
    ("outcome", "stays"),
    [
        (Outcome.WORKER_LOST, True),
        (Outcome.TIMEOUT, True),
        (Outcome.CRASHED, False),
        (Outcome.WRONG_RESULT, False),
    ],
)
def test_a_repetition_may_take_back_what_ran(lab, outcome, stays):
    ran = (SMALL, lab.ok(1.0, GIB, count=4))
    found = known(lab, ran, (SMALL, Measurement(outcome=outcome)))
    assert [f.settings for f in found.fitting] == [SMALL] * stays
    assert found.repetitions[SMALL] == 2


def test_repetitions_are_pooled(lab):
    rows = [(SMALL, lab.ok(1.0, GIB, count=4)), (SMALL, lab.ok(1.2, 2 * GIB, count=4))]
    (finding,) = known(lab, *rows).fitting
    assert finding.seconds == pytest.approx(1.1)
    assert finding.most_bytes == 2 * GIB
    assert finding.probe_ids == (1, 2)


def test_untimed_steps_and_settings_of_another_space_are_no_answer(lab):
    assert not known(lab, (replace(WHOLE, cpu_offload=True), lab.ok(0.1, GIB))).findings
    found = known(lab, (WHOLE, lab.ok({}, GIB)))
    assert not found.fitting
    assert WHOLE not in found.candidates()


def test_what_was_stopped_early_is_tried_again_only_where_the_faster_does_not_fit(lab):
    ended = replace(lab.ok({4: (3.0, 3.0)}, GIB), outcome=Outcome.STOPPED_EARLY)
    rows = [(WHOLE, lab.ok(1.0, 3 * GIB)), (SMALL, ended)]
    found = known(lab, *rows)
    assert SMALL not in {*found.candidates(), *found.findings}
    assert found.slow[SMALL].step_time_s.value == 3.0
    assert SMALL in known(lab, *rows, today=2 * GIB).candidates()
    assert known(lab, *rows, today=GIB // 2).is_infeasible(SMALL)
    late = known(lab, (SMALL, Measurement(outcome=Outcome.TIMEOUT, wall_s=600.0)))
    assert late.slow[SMALL].step_time_s.value is None


def test_what_was_learned_of_a_study_is_kept_for_it_alone(lab):
    """Another one may be equal, and hold a mapping that is not."""
    study = study_of(lab, (WHOLE, lab.ok(1.0, GIB)))
    found = learned(study, Fidelity.MEASURED)
    assert learned(study, Fidelity.MEASURED) is found == learned(study)
    assert learned(replace(study), Fidelity.MEASURED) is not found
    assert learned(study, Fidelity.EMULATED).findings == {}


@pytest.mark.parametrize(
    ("knob", "light", "heavy"),
    [
        ("sync_each_batch", "true", "false"),
        ("tp_recompute_allgather", "true", "false"),
        ("activation_checkpointing", "full", "none"),
        ("activation_checkpointing", "offload", "full"),
    ],
)
def test_out_of_memory_rules_out_what_needs_no_less(lab, knob, light, heavy):
    base = "sharding=full_shard,tp_size=2,micro_batch_size=1,gradient_accumulation_steps=4"
    less, more = (parse_settings(f"{base},{knob}={value}") for value in (light, heavy))
    ran_out = lab.oom(5 * GIB, 4 * GIB)
    assert known(lab, (less, ran_out)).is_infeasible(more)
    assert not known(lab, (more, ran_out)).is_infeasible(less)


@pytest.mark.parametrize(("cluster", "batch"), [("cpu:2", 8), ("8xh100-80gb", 64)])
def test_by_arithmetic_too_they_need_no_less(lab, cluster, batch):
    """Of all legal settings; what is dry-run or measured may differ by less than runs do."""
    rungs = [c for c in Checkpointing if cluster != "cpu:2" or c is not Checkpointing.OFFLOAD]
    question = lab.question(cluster, batch, heads=8, activation_checkpointing=tuple(rungs))
    legal = enumerate_space(question).legal
    by_family = {(family(one), one.micro_batch_size): one for one in legal}
    pairs = [
        (light, heavy)
        for light in legal
        for key in heavier(*family(light))
        if (heavy := by_family.get((key, light.micro_batch_size))) is not None
        and heavy.gradient_accumulation_steps == light.gradient_accumulation_steps
        and heavy != light
    ]
    assert {light.activation_checkpointing for light, _ in pairs} >= {rungs[-1], Checkpointing.FULL}
    for pair in pairs:
        less, more = (memory_bound(question.workload, s, question.cluster) for s in pair)
        assert less.total_bytes <= more.total_bytes
        less, more = (
            predict(question.workload, question.cluster, question.framework, s, limit_bytes=2**62)
            for s in pair
        )
        assert less.needed_bytes.value <= 1.0001 * more.needed_bytes.value
