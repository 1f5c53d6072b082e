from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.configuration import Settings, parse_settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.planner.knowledge import learn, learned

SMALL = parse_settings("sharding=full_shard,micro_batch_size=1,gradient_accumulation_steps=4")
MIDDLE = parse_settings("sharding=full_shard,micro_batch_size=2,gradient_accumulation_steps=2")
WHOLE = parse_settings("sharding=full_shard,micro_batch_size=4")
OTHER = parse_settings("sharding=ddp,micro_batch_size=2,gradient_accumulation_steps=2")
GIB = 2**30


def candidates(study: object) -> set[Settings]:
    return set(learn(study).candidates())


def test_at_first_everything_is_a_candidate(lab: SimpleNamespace) -> None:
    assert len(candidates(lab.study())) == 46


def test_out_of_memory_rules_out_larger_micro_batches_of_the_family(lab: SimpleNamespace) -> None:
    probe = lab.probe(1, SMALL, lab.oom(5 * GIB, 4 * GIB), limit=4 * GIB)
    known = learn(lab.study(probes=[probe]))
    assert known.is_infeasible(SMALL)
    assert known.is_infeasible(MIDDLE)
    assert not known.is_infeasible(WHOLE)  # without accumulation no gradients wait
    assert not known.is_infeasible(OTHER)


def test_a_larger_limit_opens_what_a_smaller_one_closed(lab: SimpleNamespace) -> None:
    probe = lab.probe(1, SMALL, lab.oom(2 * GIB, 1 * GIB), limit=1 * GIB)
    assert SMALL in candidates(lab.study(probes=[probe], memory_limit_bytes=4 * GIB))
    assert SMALL not in candidates(lab.study(probes=[probe], memory_limit_bytes=1 * GIB))
    assert SMALL not in candidates(lab.study(probes=[probe], memory_limit_bytes=GIB // 2))
    # it needs 2 GiB at least, which is more than today's limit
    assert SMALL not in candidates(lab.study(probes=[probe], memory_limit_bytes=3 * GIB // 2))


def test_the_devices_own_end_is_not_tried_again(lab: SimpleNamespace) -> None:
    """It ran out below the limit that it was given: the device had less than was thought."""
    probe = lab.probe(1, SMALL, lab.oom(3 * GIB, 3 * GIB), limit=4 * GIB)
    assert SMALL not in candidates(lab.study(probes=[probe], memory_limit_bytes=4 * GIB))


def test_what_was_measured_may_not_fit_today(lab: SimpleNamespace) -> None:
    probe = lab.probe(1, SMALL, lab.ok(1.0, 2 * GIB, count=4, overhead=GIB))
    assert learn(lab.study(probes=[probe], memory_limit_bytes=3 * GIB)).fitting
    known = learn(lab.study(probes=[probe], memory_limit_bytes=3 * GIB - 1))
    assert not known.fitting
    assert known.is_infeasible(MIDDLE)


@pytest.mark.parametrize("outcome", [Outcome.INVALID, Outcome.WRONG_RESULT])
def test_some_outcomes_close_the_class(lab: SimpleNamespace, outcome: Outcome) -> None:
    good = lab.probe(1, SMALL, lab.ok(1.0, GIB, count=4))
    bad = lab.probe(2, MIDDLE, Measurement(outcome=outcome))
    known = learn(lab.study(probes=[good, bad]))
    assert not known.fitting
    assert not {SMALL, MIDDLE, WHOLE} & set(known.candidates())
    assert OTHER in known.candidates()


@pytest.mark.parametrize(
    "outcome", [Outcome.NON_FINITE, Outcome.CRASHED, Outcome.HOST_OOM, Outcome.TIMEOUT]
)
def test_others_close_the_settings(lab: SimpleNamespace, outcome: Outcome) -> None:
    probe = lab.probe(1, MIDDLE, Measurement(outcome=outcome, wall_s=9.0))
    found = candidates(lab.study(probes=[probe]))
    assert MIDDLE not in found
    assert {SMALL, WHOLE} <= found


@pytest.mark.parametrize(
    "outcome", [Outcome.COMMUNICATION_ERROR, Outcome.WORKER_LOST, Outcome.CANCELLED]
)
def test_accidents_are_tried_again_when_asked_again(lab: SimpleNamespace, outcome: Outcome) -> None:
    from dataclasses import replace

    study = lab.study(probes=[lab.probe(1, MIDDLE, Measurement(outcome=outcome))])
    assert MIDDLE not in candidates(study)
    assert MIDDLE in candidates(replace(study, probes_before=1))


def test_an_accident_of_a_repetition_takes_nothing_back(lab: SimpleNamespace) -> None:
    good = lab.probe(1, SMALL, lab.ok(1.0, GIB, count=4))
    lost = lab.probe(2, SMALL, Measurement(outcome=Outcome.WORKER_LOST), repetition=1)
    late = lab.probe(3, SMALL, Measurement(outcome=Outcome.TIMEOUT), repetition=2)
    known = learn(lab.study(probes=[good, lost, late]))
    assert [f.settings for f in known.fitting] == [SMALL]
    assert known.repetitions[SMALL] == 3


def test_a_crash_of_a_repetition_does(lab: SimpleNamespace) -> None:
    good = lab.probe(1, SMALL, lab.ok(1.0, GIB, count=4))
    bad = lab.probe(2, SMALL, Measurement(outcome=Outcome.CRASHED), repetition=1)
    assert not learn(lab.study(probes=[good, bad])).fitting


def test_repetitions_are_pooled(lab: SimpleNamespace) -> None:
    first = lab.probe(1, SMALL, lab.ok(1.0, GIB, count=4))
    again = lab.probe(2, SMALL, lab.ok(1.2, 2 * GIB, count=4), repetition=1)
    (finding,) = learn(lab.study(probes=[again, first])).fitting
    assert finding.seconds == pytest.approx(1.1)
    assert finding.most_bytes == 2 * GIB
    assert [p.id for p in finding.probes] == [1, 2]


def test_settings_of_another_space_are_no_answer(lab: SimpleNamespace) -> None:
    odd = parse_settings("sharding=full_shard,micro_batch_size=4,cpu_offload=true")
    known = learn(lab.study(probes=[lab.probe(1, odd, lab.ok(0.1, GIB))]))
    assert not known.findings


def test_untimed_steps_are_no_answer(lab: SimpleNamespace) -> None:
    known = learn(lab.study(probes=[lab.probe(1, WHOLE, lab.ok({}, GIB))]))
    assert not known.fitting
    assert WHOLE not in known.candidates()


def variants(knob: str, *values: str) -> tuple[Settings, Settings]:
    """The same settings with two values of a knob."""
    base = "sharding=full_shard,tp_size=2,micro_batch_size=1,gradient_accumulation_steps=4"
    light, heavy = (parse_settings(f"{base},{knob}={value}") for value in values)
    return light, heavy


@pytest.mark.parametrize(
    "knob",
    [
        ("sync_each_batch", "true", "false"),
        ("tp_recompute_allgather", "true", "false"),
        ("activation_checkpointing", "full", "none"),
    ],
)
def test_out_of_memory_rules_out_what_needs_no_less(
    lab: SimpleNamespace, knob: tuple[str, str, str]
) -> None:
    light, heavy = variants(*knob)
    shortage = lab.oom(5 * GIB, 4 * GIB)
    known = learn(lab.study(probes=[lab.probe(1, light, shortage, limit=4 * GIB)]))
    assert known.is_infeasible(heavy)
    known = learn(lab.study(probes=[lab.probe(1, heavy, shortage, limit=4 * GIB)]))
    assert not known.is_infeasible(light)


def stopped(lab: SimpleNamespace, seconds: float, allocated: int) -> Measurement:
    """Ended after two steps."""
    found = lab.ok({4: (seconds, seconds)}, allocated)
    return replace(found, outcome=Outcome.STOPPED_EARLY)


def test_what_was_stopped_early_is_not_tried_again(lab: SimpleNamespace) -> None:
    fast = lab.probe(1, WHOLE, lab.ok(1.0, GIB))
    slow = lab.probe(2, SMALL, stopped(lab, 3.0, GIB))
    known = learn(lab.study(probes=[fast, slow]))
    assert SMALL not in known.candidates()
    assert SMALL not in known.findings
    assert known.slow[SMALL].step_time_s.value == 3.0


def test_it_is_once_what_it_was_compared_with_does_not_fit(lab: SimpleNamespace) -> None:
    """Half of the limit: the fast one is out, and the slow one was never measured to its end."""
    fast = lab.probe(1, WHOLE, lab.ok(1.0, 3 * GIB))
    slow = lab.probe(2, SMALL, stopped(lab, 3.0, GIB))
    assert SMALL in candidates(lab.study(probes=[fast, slow], memory_limit_bytes=2 * GIB))
    known = learn(lab.study(probes=[fast, slow], memory_limit_bytes=GIB // 2))
    assert known.is_infeasible(SMALL)


def test_a_timeout_is_closed_and_says_no_time(lab: SimpleNamespace) -> None:
    late = lab.probe(1, SMALL, Measurement(outcome=Outcome.TIMEOUT, wall_s=600.0))
    known = learn(lab.study(probes=[late]))
    assert SMALL not in known.candidates()
    assert known.slow[SMALL].step_time_s.value is None


def test_what_was_learned_of_a_study_is_kept_for_it_alone(lab: SimpleNamespace) -> None:
    """Another one may be equal, and hold a mapping that is not."""
    probe = lab.probe(1, WHOLE, lab.ok(1.0, GIB))
    study, none = lab.study(probes=[probe]), lab.study()
    known = learned(study, Fidelity.MEASURED)
    assert learned(study, Fidelity.MEASURED) is known
    assert known == learn(study)
    assert learned(replace(study), Fidelity.MEASURED) is not known
    assert learned(none, Fidelity.MEASURED).findings == {}
    assert learned(study, Fidelity.EMULATED).findings == {}
