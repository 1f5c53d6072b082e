"""The next probe, when the search ends, and which probes may end early."""

from dataclasses import replace

import pytest

from tests.unit.planner.conftest import done, play
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState
from tuner.explain.known import answer
from tuner.planner import Stop, Wait, next_probe
from tuner.planner.knowledge import learned
from tuner.planner.next import ENOUGH, LOOK_AT, VARIATION, give_up_above_s, same_accident
from tuner.planner.ranking import choose, is_final
from tuner.planner.search import LAST_RESORTS, Search
from tuner.space import enumerate_space

GIB = 2**30
SPREAD = (0.8, 0.9, 0.9, 0.9, 1.0, 1.0, 1.1, 1.1, 1.1, 1.2)
FAST = Settings(micro_batch_size=4)
SLOW = Settings(micro_batch_size=2, gradient_accumulation_steps=2)
OTHER = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)


def on(study, **limits):
    return replace(study, limits=replace(study.limits, **limits))


@pytest.mark.parametrize("state", [ProbeState.QUEUED, ProbeState.RUNNING])
def test_it_waits_for_a_probe_on_its_way(lab, state):
    one = enumerate_space(lab.question()).legal[0]
    study = lab.study(probes=[lab.probe(1, one, None, state=state)])
    assert next_probe(study) == Wait()


@pytest.mark.parametrize("most", [1, 5, 6])
def test_a_small_budget_is_spent_to_the_last_probe(lab, most):
    machine = lab.Machine(lab.question(), noise=0.02)
    study, stop = machine.play(lab.study(max_probes=most, tolerance=0.0))
    assert len(study.probes) == most
    assert stop.reason == f"the budget of {most} probe{'' if most == 1 else 's'} is spent"
    assert stop.nothing_fits == ""


def test_earlier_requests_do_not_count(lab):
    machine = lab.Machine(lab.question())
    study, _ = machine.play(lab.study(max_probes=4, tolerance=0.0))
    more, _ = machine.play(replace(study, probes_before=4))
    assert len(more.probes) == 8
    searches = [p.request.settings for p in more.probes if p.request.repetition == 0]
    assert len(set(searches)) == len(searches)


def test_it_stops_when_nothing_is_expected_to_be_gained(lab):
    machine = lab.Machine(lab.question("cpu:8", 64), noise=0.01)
    study, stop = machine.play(lab.study(machine.question, max_probes=200))
    assert len(study.probes) < 20
    assert stop.reason == "no probe is expected to gain 1% or more"
    assert isinstance(next_probe(replace(study, probes_before=len(study.probes))), Stop)


def test_without_a_tolerance_a_small_space_is_exhausted(lab):
    question = lab.question(tp_size=(1,), sharding=("ddp",))
    study, stop = lab.Machine(question).play(lab.study(question, max_probes=50, tolerance=0.0))
    tried = {p.request.settings for p in study.probes}
    assert tried == set(enumerate_space(question).legal)
    assert stop.reason == "all settings that may fit were probed"


def test_the_answer_is_good(lab):
    """Within a tenth of the best of all after ten probes of 46, and the best after thirty."""
    machine = lab.Machine(lab.question(), noise=0.01)
    legal = enumerate_space(machine.question).legal
    for seed in range(4):
        for most, allowed in ((10, 0.1), (30, 0.02)):
            study, _ = machine.play(lab.study(max_probes=most, seed=seed))
            best = answer(study).best.settings
            seconds = machine.seconds(best, best.gradient_accumulation_steps)
            assert seconds <= (1 + allowed) * machine.best_seconds(legal, 4 * GIB)


def test_the_first_probe_is_what_arithmetic_thinks_fastest(lab):
    known = learned(lab.study())
    first = next_probe(lab.study()).settings
    prior = Search(known).prior
    assert first.tp_size == 1
    assert not first.cpu_offload
    fastest = prior.log_seconds.min()
    assert prior.log_seconds[prior.settings.index(first)] < fastest + 0.02


def test_long_accumulation_is_cut_short_and_the_leader_verified(lab):
    question = lab.question(batch=512, micro_batch_size=(4, 8), activation_checkpointing=("none",))
    study, _ = lab.Machine(question).play(lab.study(question, max_probes=4))
    first, *_, last = study.probes
    assert first.request.accumulation_counts == (2, 4)
    assert last.request.repetition == 1
    assert last.request.accumulation_counts == ()
    assert answer(study).best.settings == last.request.settings


def test_a_verification_that_takes_too_long_is_left_out(lab):
    question = lab.question(batch=512, micro_batch_size=(4,), activation_checkpointing=("none",))
    study, stop = lab.Machine(question).play(lab.study(question, max_probes=50, wall_s=500.0))
    assert stop.reason == "no probe is expected to gain 1% or more"
    assert answer(study).best is not None
    assert all(p.request.repetition == 0 for p in study.probes)


def leaders(lab, **limits):
    """Two that cannot be told apart, and four that are far behind."""
    legal = enumerate_space(lab.question()).legal
    close = [lab.ok({s.gradient_accumulation_steps: SPREAD}, GIB) for s in legal[:2]]
    far = [lab.ok(3.0, GIB, count=s.gradient_accumulation_steps) for s in legal[2:6]]
    rows = zip(legal[:6], close + far, strict=True)
    return lab.study(probes=[lab.probe(n, s, m) for n, (s, m) in enumerate(rows, 1)], **limits)


def test_finalists_that_cannot_be_told_apart_are_repeated(lab):
    study = leaders(lab, max_probes=8)
    first = next_probe(study)
    assert is_final(study, first)
    again = done(7, first, study.probes[0].measurement, GIB)
    second = next_probe(replace(study, probes=(*study.probes, again)))
    assert (first.repetition, second.repetition) == (1, 1)
    assert {first.settings, second.settings} == {p.request.settings for p in study.probes[:2]}
    assert next_probe(on(study, max_probes=9)).repetition == 0


def test_when_nothing_fits_it_says_what_would_be_needed(lab):
    study, stop = lab.Machine(lab.question()).play(lab.study(memory_limit_bytes=lab.MIB))
    assert len(study.probes) == LAST_RESORTS
    assert stop.reason == "no settings fit"
    assert "the smallest need known is at least" in stop.nothing_fits
    assert "MiB on one device" in stop.nothing_fits
    assert "(probe #" in stop.nothing_fits
    assert answer(study).best is None


def test_a_spent_budget_does_not_prove_that_nothing_fits(lab):
    machine = lab.Machine(lab.question(), memory_factor=20.0)
    _, stop = machine.play(lab.study(memory_limit_bytes=GIB, max_probes=2))
    assert stop.nothing_fits == ""
    assert "none of the settings probed gave a result that fits" in stop.reason


def test_that_nothing_fits_is_not_said_where_some_failed_otherwise(lab):
    """All that is not checkpointed is too large, and all that is crashes."""

    def fail(one):
        return Outcome.CRASHED if one.activation_checkpointing is Checkpointing.FULL else None

    question = lab.question(activation_checkpointing=(Checkpointing.NONE, Checkpointing.FULL))
    study = lab.study(question, memory_limit_bytes=130 * lab.MIB, max_probes=400)
    study, stop = lab.Machine(question, memory_factor=3.0, fail=fail).play(study)
    ended = {p.measurement.outcome for p in study.probes}
    assert ended == {Outcome.CRASHED, Outcome.OOM}
    assert stop.nothing_fits == ""
    said = "all settings that may fit were probed; none of the settings probed gave a result that"
    assert stop.reason.startswith(
        (f"{said} fits; the last: crashed", f"{said} fits; the last: out of memory")
    )


def test_nanotron_is_not_probed(lab):
    question = replace(lab.question(), framework=framework("nanotron", {"nanotron": "0.4"}, {}))
    assert "nanotron" in next_probe(lab.study(question)).reason


def test_a_tighter_limit_makes_the_same_study_go_on(lab):
    machine = lab.Machine(lab.question())
    study, _ = machine.play(lab.study(max_probes=3))
    needed = sorted(machine.memory(p.request.settings) for p in study.probes)
    limits = {"memory_limit_bytes": needed[0], "max_probes": 12}
    tight = replace(on(study, **limits), probes_before=len(study.probes))
    assert answer(tight).best.allocated_gib.value * GIB <= needed[0]
    more, _ = machine.play(tight)
    assert len(more.probes) > len(study.probes)
    assert answer(more).best.allocated_gib.value * GIB <= needed[0]


@pytest.mark.parametrize("outcome", LOOK_AT)
def test_three_times_the_same_accident_ends_a_request(lab, outcome):
    ended = Measurement(outcome=outcome, detail="the connection was closed", wall_s=1.0)
    study, stop = play(lab.study(max_probes=60), lambda *_: ended)
    assert len({p.request.settings for p in study.probes}) == len(study.probes) == ENOUGH
    assert stop.nothing_fits == ""
    assert stop.reason == (
        f"3 settings ended as {outcome.words} (the connection was closed), and none ran:"
        f" {LOOK_AT[outcome]}"
    )
    later = next_probe(replace(study, probes_before=ENOUGH))
    assert isinstance(later, ProbeRequest)


def test_other_endings_do_not(lab):
    one, two, three, four = enumerate_space(lab.question()).legal[:4]
    lost, gone, crashed = (
        Measurement(outcome=outcome)
        for outcome in (Outcome.COMMUNICATION_ERROR, Outcome.DEVICE_LOST, Outcome.CRASHED)
    )
    ran = lab.ok(1.0, 100 * lab.MIB, count=four.gradient_accumulation_steps)
    for rows, is_same in (
        ([(one, lost), (two, lost), (three, lost)], True),
        ([(one, lost), (two, lost)], False),
        ([(one, lost), (two, lost), (three, lost), (four, ran)], False),
        ([(one, lost), (two, lost), (three, gone)], False),
        ([(one, lost)] * 3, False),
        ([(one, crashed), (two, crashed), (three, crashed)], False),
    ):
        probes = [lab.probe(n, *row, repetition=n) for n, row in enumerate(rows)]
        assert bool(same_accident(lab.study(probes=probes))) is is_same


def above(lab, *rows, asked=OTHER, repetition=0, fidelity=Fidelity.MEASURED):
    """Seconds above which a probe ends, after these."""
    probes = [lab.probe(n, *row) for n, row in enumerate(rows, start=1)]
    request = ProbeRequest(settings=asked, fidelity=fidelity, repetition=repetition)
    return give_up_above_s(lab.study(probes=probes, tolerance=0.05), request)


def test_what_is_slower_than_the_fastest_by_more_than_run_to_run_variation(lab):
    ran = (FAST, lab.ok({1: (0.95, *(1.0,) * 8, 1.05)}, 100 * lab.MIB))
    fastest = lab.probe(1, *ran)
    high = learned(lab.study(probes=[fastest])).fitting[0].step_time_s.high
    limit = above(lab, ran, (SLOW, lab.ok(3.0, lab.MIB)))
    assert limit == pytest.approx(high * (1.05 + VARIATION))
    # what it ends could not have been the answer, not even as something lighter
    steps = (limit * 0.98, *(limit * 1.01,) * 8, limit * 1.5)
    other = lab.probe(2, OTHER, lab.ok({1: steps}, lab.MIB))
    both = learned(lab.study(probes=[fastest, other]))
    assert choose(both.study.question, both.fitting, 0.01).best.settings == FAST


def test_nothing_is_ended_while_nothing_is_known_to_fit(lab):
    assert above(lab) is None
    for found in (
        Measurement(outcome=Outcome.OOM),
        Measurement(outcome=Outcome.TIMEOUT, wall_s=600.0),
        lab.ok(1.0, 5 * GIB),
    ):
        assert above(lab, (FAST, found)) is None


def test_finalists_are_timed_to_the_end_and_what_failed_before_is_not(lab):
    rows = [(FAST, lab.ok(1.0, lab.MIB)), (SLOW, lab.ok(1.0, lab.MIB, count=2))]
    for one in (FAST, SLOW):
        assert above(lab, *rows, asked=one, repetition=1) is None
    lost = (OTHER, Measurement(outcome=Outcome.WORKER_LOST))
    assert above(lab, *rows, lost, repetition=1) is not None
    assert above(lab, *rows, fidelity=Fidelity.EMULATED) is None


def pending(study, *requests):
    """The study with probes on their way."""
    more = (
        Probe(id=len(study.probes) + n, request=request, state=ProbeState.RUNNING)
        for n, request in enumerate(requests, start=1)
    )
    return replace(study, probes=(*study.probes, *more))


def several(study, count):
    """The next probes, each planned while those before it run."""
    found = []
    for _ in range(count):
        step = next_probe(pending(study, *found), beside=True)
        assert isinstance(step, ProbeRequest)
        found.append(step)
    return found


def test_dry_runs_are_waited_for(lab):
    study = lab.study(fidelity=Fidelity.PREDICTED)
    one = enumerate_space(study.question).legal[0]
    request = ProbeRequest(settings=one, fidelity=Fidelity.PREDICTED)
    assert next_probe(pending(study, request), beside=True) == Wait()


def test_a_pending_probe_is_of_the_budget(lab):
    study = lab.study(max_probes=3)
    found = several(study, 3)
    assert next_probe(pending(study, *found), beside=True) == Wait()


def test_what_is_left_for_the_leaders_is_not_spent_beside(lab):
    study = leaders(lab, max_probes=9)
    first = next_probe(study)
    assert first.repetition == 0
    assert next_probe(pending(study, first), beside=True) == Wait()
    roomy = on(study, max_probes=20, tolerance=0.0)
    assert isinstance(next_probe(pending(roomy, first), beside=True), ProbeRequest)


def test_a_leaders_repetition_has_no_neighbours(lab):
    study = leaders(lab, max_probes=8, tolerance=0.0)
    final = next_probe(study)
    assert final.repetition == 1
    assert is_final(study, final)
    roomy = on(study, max_probes=50)
    assert next_probe(pending(roomy, final), beside=True) == Wait()


def test_last_resorts_are_tried_one_by_one(lab):
    study = lab.study(memory_limit_bytes=lab.MIB)
    first = next_probe(study)
    assert isinstance(first, ProbeRequest)
    assert next_probe(pending(study, first), beside=True) == Wait()
