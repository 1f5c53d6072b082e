"""What holds of every plan and answer, whatever the probes say."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.profiles import examples
from tests.unit.planner.conftest import done, play
from tests.unit.planner.machines import Rough, all_finite, needs_bytes, play_at_once, ruled_out
from tuner.core.measurement import PROBED, Fidelity, Measurement, Outcome
from tuner.core.quantity import Provenance
from tuner.core.study import Probe, ProbeRequest, ProbeState
from tuner.explain.known import answer
from tuner.planner import is_answered, next_probe
from tuner.planner.knowledge import learned
from tuner.planner.ranking import is_final
from tuner.planner.search import ExpectedMemory
from tuner.space import enumerate_space

GIB = 2**30
CLUSTERS = st.sampled_from([("cpu:1", 8), ("cpu:2", 12), ("cpu:2", 96), ("cpu:4", 96)])
LIMITS_MIB = st.sampled_from([1, 130, 200, 260, 400, 4000])


def rough_study(lab, where, limit_mib, **limits):
    return lab.study(
        lab.question(*where), memory_limit_bytes=limit_mib * lab.MIB, **{"max_probes": 14, **limits}
    )


@given(
    seed=st.integers(0, 2**31),
    where=CLUSTERS,
    limit_mib=LIMITS_MIB,
    most=st.integers(1, 14),
    trouble=st.sampled_from([0.0, 0.25, 0.9]),
    shrinks=st.booleans(),
)
@settings(max_examples=examples(5))
def test_whatever_a_machine_says(lab, seed, where, limit_mib, most, trouble, shrinks):
    """It ends within its budget, proposes nothing that is ruled out, and answers what fits."""
    study = rough_study(lab, where, limit_mib, max_probes=most, seed=seed)
    rough = Rough(study=study, seed=seed, trouble=trouble, shrinks=shrinks)
    study, stop = play(study, rough.run)
    assert stop.reason
    assert len(study.probes) <= most
    check_requests(study)
    check_answer(study)


@pytest.mark.parametrize("outcome", [o for o in Outcome if o is not Outcome.OK])
def test_it_ends_when_all_probes_end_alike(lab, outcome):
    study = rough_study(lab, ("cpu:2", 8), 4000, max_probes=400)
    legal = len(enumerate_space(study.question).legal)

    def run(request, limit):
        if outcome is Outcome.OOM:
            return lab.oom(2 * limit, limit)
        if outcome is Outcome.STOPPED_EARLY:
            return replace(lab.ok({1: (1.0, 1.0)}, lab.MIB), outcome=outcome)
        return Measurement(outcome=outcome)

    study, _ = play(study, run)
    again = 2 if outcome is Outcome.STOPPED_EARLY else 1
    assert len(study.probes) <= again * legal
    assert len({p.request.settings for p in study.probes}) * again >= len(study.probes)
    check_requests(study)
    assert answer(study).best is None


@given(
    seed=st.integers(0, 2**31),
    where=CLUSTERS,
    limit_mib=LIMITS_MIB,
    most=st.integers(1, 14),
    at_once=st.integers(2, 8),
    trouble=st.sampled_from([0.0, 0.25, 0.9]),
)
@settings(max_examples=examples(6))
def test_whatever_a_machine_says_of_several_at_once(
    lab, seed, where, limit_mib, most, at_once, trouble
):
    """The same holds while others are on their way, whichever of them ends first."""
    study = rough_study(lab, where, limit_mib, max_probes=most, seed=seed)
    rough = Rough(study=study, seed=seed, trouble=trouble)
    study, stop, asked = play_at_once(study, rough.run, at_once, random.Random(seed))
    assert stop.reason
    assert len(study.probes) <= most
    for one in asked:
        check_asked_beside(one)
    check_answer(study)


def test_an_honest_machine_is_kept_busy(lab):
    """Eight at once find in a few rounds what one after the other finds."""
    machine = lab.Machine(lab.question("cpu:4", 96), noise=0.01)
    study = lab.study(machine.question, max_probes=24)
    alone, _ = play(study, machine.run)
    study, _, asked = play_at_once(study, machine.run, 8, random.Random(5))
    assert max(len(one.pending) for one in asked) == 7
    for one in asked:
        check_asked_beside(one)
    found = [answer(one).best for one in (alone, study)]
    seconds = [
        machine.seconds(one.settings, one.settings.gradient_accumulation_steps) for one in found
    ]
    assert seconds[1] <= 1.1 * seconds[0]


def check_asked_beside(one):
    """It is legal, not ruled out by what is done, and none of those on their way."""
    study, asked, pending = one.before, one.request.settings, one.pending
    ended = [p for p in study.probes if p not in pending]
    assert asked in enumerate_space(study.question).legal
    assert asked not in {p.request.settings for p in pending}
    assert one.request.repetition == sum(p.request.settings == asked for p in study.probes)
    if one.is_repetition:  # of what it needed itself, not of what a lighter one is said to need
        ended = [p for p in ended if p.request.settings == asked]
    assert not ruled_out(ended, asked, study.limits.limit_bytes(study.question.cluster))
    assert not pending or not one.is_repetition
    repeated = [p.request for p in pending if is_final(study, p.request)]
    assert not repeated  # a finalist has no neighbours


def check_requests(study):
    """Every probe, given those before it, was one that may be asked for."""
    legal = set(enumerate_space(study.question).legal)
    limit = study.limits.limit_bytes(study.question.cluster)
    floors = ExpectedMemory(learned(replace(study, probes=())))
    for index, probe in enumerate(study.probes):
        asked, before = probe.request.settings, study.probes[:index]
        assert asked in legal
        assert probe.request.repetition == sum(p.request.settings == asked for p in before)
        own = [p for p in before if p.request.settings == asked]
        assert not ruled_out(own if probe.request.repetition else before, asked, limit)
        if probe.request.repetition:
            check_repetition(replace(study, probes=before), probe.request)
        elif any(fits(p, limit) for p in before):
            assert not floors.cannot_fit(asked)


def fits(probe, limit):
    found = probe.measurement
    return found is not None and found.outcome is Outcome.OK and needs_bytes(probe) <= limit


def check_repetition(before, request):
    """Only what ran well, once, and was the answer or what it could not be told apart from."""
    same = [p for p in before.probes if p.request.settings == request.settings]
    outcomes = [p.measurement.outcome for p in same if p.measurement]
    if outcomes[-1] is Outcome.STOPPED_EARLY:  # the faster ones turned out not to fit
        return
    assert outcomes[-1] is Outcome.OK
    assert outcomes.count(Outcome.OK) == 1
    assert request.accumulation_counts == ()
    known = learned(before)
    leaders = known.fitting[:2]
    best = answer(before).best
    assert request.settings in {best.settings, *(f.settings for f in leaders)}


@st.composite
def histories(draw):
    """Studies with probes that no planner asked for, of a few settings, at any fidelity."""
    seed, where = draw(st.integers(0, 2**31)), draw(CLUSTERS)
    limit_mib, count = draw(LIMITS_MIB), draw(st.integers(1, 24))
    fidelity, before = draw(st.sampled_from(PROBED)), draw(st.integers(0, 24))

    def made(lab):
        study = rough_study(lab, where, limit_mib, fidelity=fidelity, max_probes=40)
        random_ = random.Random(seed)
        legal = enumerate_space(study.question).legal
        few = random_.sample(legal, min(len(legal), 8))
        probes = []
        for number in range(1, count + 1):
            one = random_.choice(few)
            request = ProbeRequest(
                settings=one,
                fidelity=fidelity,
                repetition=sum(p.request.settings == one for p in probes),
                accumulation_counts=(2, 4) if one.gradient_accumulation_steps > 8 else (),
            )
            limit = random_.choice([limit_mib, 2 * limit_mib, 300]) * lab.MIB
            rough = Rough(study=study, seed=number, shrinks=random_.random() < 0.5)
            probes.append(done(number, request, rough.run(request, limit), limit))
        return replace(study, probes=tuple(probes), probes_before=min(before, count))

    return made


@given(history=histories(), order=st.randoms(use_true_random=False))
@settings(max_examples=examples(10))
def test_any_history_has_a_plan_and_an_answer_whatever_its_order(lab, history, order):
    study = history(lab)
    check_answer(study)
    step = next_probe(study)
    if isinstance(step, ProbeRequest):
        check_request(study, step)
    mixed = list(study.probes)
    order.shuffle(mixed)
    shuffled = replace(study, probes=tuple(mixed))
    assert next_probe(shuffled) == step
    assert answer(shuffled) == answer(study)
    beside = [next_probe(with_pending(one), beside=True) for one in (study, shuffled)]
    assert beside[0] == beside[1]


def with_pending(study):
    """What is planned, and what is planned beside that, on their way; in no order."""
    for number in (1001, 1002):
        step = next_probe(study, beside=True)
        if not isinstance(step, ProbeRequest):
            return study
        added = Probe(id=number, request=step, state=ProbeState.RUNNING)
        study = replace(study, probes=(added, *study.probes))
    return study


def figures(suggestion):
    best = suggestion.best
    every = [*([best] if best else []), *suggestion.alternatives, *suggestion.pareto]
    return [
        (one.settings, one.allocated_gib, one.device_gib, one.step_time_s, one.tokens_per_s_per_gpu)
        for one in every
    ]


@given(history=histories())
@settings(max_examples=examples(6))
def test_other_fidelities_change_the_order_of_a_plan_and_none_of_its_rules(lab, history):
    """Nothing is ruled out or known to fit by them, and what was found has the same figures."""
    study = replace(history(lab), probes_before=0)
    mine = study.limits.fidelity
    (other,) = (one for one in PROBED if one is not mine)
    more = tuple(
        replace(p, id=100 + p.id, request=replace(p.request, fidelity=fidelity))
        for p in study.probes
        for fidelity in (other, Fidelity.PREDICTED)
        if fidelity is other or p.measurement.outcome is not Outcome.OK
    )
    both = replace(study, probes=(*more, *study.probes))
    assert replace(learned(both), whole=study) == learned(study)
    steps = [next_probe(one) for one in (study, both)]
    for step in steps:
        if isinstance(step, ProbeRequest):
            check_request(study, step)
            assert step.fidelity is mine
    if not learned(study).candidates():
        assert steps[0] == steps[1]
    if learned(study).fitting:
        assert figures(answer(both)) == figures(answer(study))


def check_request(study, request):
    """A plan's request, after a history of which any probe may have had another limit."""
    limit = study.limits.limit_bytes(study.question.cluster)
    asked = request.settings
    assert asked in enumerate_space(study.question).legal
    assert (asked, request.repetition) not in {
        (p.request.settings, p.request.repetition) for p in study.probes
    }
    certain = [p for p in study.probes if not fits_now(p, limit)]
    assert not ruled_out(certain, asked, limit)


def fits_now(probe, limit):
    """Whether a probe ran out under a smaller limit than today's, and may fit today's."""
    found = probe.measurement
    if found is None or found.outcome is not Outcome.OOM:
        return False
    return probe.memory_limit_bytes < limit and found.oom.needed_bytes <= limit


def check_answer(study):
    """It keeps within the limit with all that was measured, and nothing beats it."""
    limit = study.limits.limit_bytes(study.question.cluster)
    suggestion = answer(study)
    values = suggestion.as_dict()
    json.dumps(values, allow_nan=False)
    assert all_finite(values)
    assert suggestion.explanation
    if not is_answered(study):
        check_forecast(study, suggestion, limit)
        return
    for one in (suggestion.best, *suggestion.alternatives, *suggestion.pareto):
        check_candidate(study, one, limit)
    for one in suggestion.alternatives:
        faster = one.step_time_s.value < suggestion.best.step_time_s.value
        assert not faster or need_of(study, one) >= need_of(study, suggestion.best)


def check_forecast(study, suggestion, limit):
    """Nothing is passed off as probed, and nothing is foreseen that the probes have ruled out."""
    known = learned(study)
    best = [suggestion.best] if suggestion.best else []
    for one in (*best, *suggestion.alternatives, *suggestion.pareto):
        assert one.basis is not None
        assert one.provenance not in (Provenance.MEASURED, Provenance.EMULATED)
        assert one.allocated_gib.value * GIB <= limit
        assert not known.is_infeasible(one.settings)
        assert one.settings not in known.findings
        assert one.settings not in known.closed
        assert one.settings.layout not in known.closed_layouts


def check_candidate(study, one, limit):
    same = [p for p in study.probes if p.request.settings == one.settings]
    certain = [p for p in same if not fits_now(p, limit)]
    assert max(needs_bytes(p) for p in certain) <= limit
    assert one.allocated_gib.high * GIB <= limit
    assert any(fits(p, limit) for p in same)
    ended = {p.measurement.outcome for p in same if p.measurement}
    assert not ended & {Outcome.WRONG_RESULT, Outcome.KNOB_INACTIVE, Outcome.INVALID}
    step = one.step_time_s
    assert 0 < step.low <= step.value <= step.high
    speed = one.tokens_per_s_per_gpu
    assert 0 < speed.low <= speed.value <= speed.high


def need_of(study, one):
    return learned(study).findings[one.settings].most_bytes
