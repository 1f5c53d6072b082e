"""What is planned beside probes that are on their way."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from tests.unit.planner.machines import done
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Probe, ProbeRequest, ProbeState, Study
from tuner.planner import Stop, Wait, next_probe
from tuner.planner.finalists import is_final
from tuner.planner.knowledge import learn
from tuner.planner.search import Search
from tuner.space import enumerate_space

GIB = 2**30


def pending(study: Study, *requests: ProbeRequest) -> Study:
    """The study with probes on their way."""
    more = (
        Probe(id=len(study.probes) + n, request=request, state=ProbeState.RUNNING)
        for n, request in enumerate(requests, start=1)
    )
    return replace(study, probes=(*study.probes, *more))


def several(study: Study, count: int) -> list[ProbeRequest]:
    """The next probes, each planned while those before it run."""
    found: list[ProbeRequest] = []
    for _ in range(count):
        step = next_probe(pending(study, *found), beside=True)
        assert isinstance(step, ProbeRequest)
        found.append(step)
    return found


def test_each_is_another_one(lab: SimpleNamespace) -> None:
    found = several(lab.study(), 8)
    assert found[0] == next_probe(lab.study())
    assert len({request.settings for request in found}) == 8
    assert {request.repetition for request in found} == {0}


def test_two_askings_of_one_study_plan_the_same(lab: SimpleNamespace) -> None:
    """Which is why the second of them is not entered, and then plans another one."""
    assert several(lab.study(seed=7), 3) == several(lab.study(seed=7), 3)


def test_it_is_not_the_neighbour_of_one_that_runs(lab: SimpleNamespace) -> None:
    """What is believed of those on their way is taken for seen: others are asked about then."""
    study = lab.study(lab.question("cpu:4", 96))
    first = next_probe(study)
    assert isinstance(first, ProbeRequest)
    known = learn(study)
    search = Search(known)
    second = Search(known, [first.settings]).propose()
    assert second is not None
    untold = search.allowed & [one != first.settings for one in search.prior.settings]
    ranked = sorted(
        (one for one, allowed in zip(search.prior.settings, untold, strict=True) if allowed),
        key=lambda one: search.belief.log_seconds[search.prior.settings.index(one)],
    )
    assert second.gain < float("inf")  # against what the first is believed to take
    assert second.settings in ranked[: len(ranked) // 2]


def test_without_leave_it_waits(lab: SimpleNamespace) -> None:
    study = lab.study()
    first = next_probe(study)
    assert isinstance(first, ProbeRequest)
    assert next_probe(pending(study, first)) == Wait()


def test_dry_runs_are_waited_for(lab: SimpleNamespace) -> None:
    study = lab.study(fidelity=Fidelity.PREDICTED)
    one = enumerate_space(study.question).legal[0]
    request = ProbeRequest(settings=one, fidelity=Fidelity.PREDICTED)
    assert next_probe(pending(study, request), beside=True) == Wait()


def test_a_pending_probe_is_of_the_budget(lab: SimpleNamespace) -> None:
    study = lab.study(max_probes=3)
    found = several(study, 3)
    assert next_probe(pending(study, *found), beside=True) == Wait()


def leaders(lab: SimpleNamespace, **limits: object) -> Study:
    """Two that cannot be told apart, and four that are far behind."""
    legal = enumerate_space(lab.question()).legal
    steps = [0.8, 0.9, 0.9, 0.9, 1.0, 1.0, 1.1, 1.1, 1.1, 1.2]
    close = [lab.ok({s.gradient_accumulation_steps: steps}, GIB) for s in legal[:2]]
    far = [lab.ok(3.0, GIB, count=s.gradient_accumulation_steps) for s in legal[2:6]]
    rows = zip(legal[:6], close + far, strict=True)
    return lab.study(probes=[lab.probe(n, s, m) for n, (s, m) in enumerate(rows, 1)], **limits)


def test_what_is_left_for_the_leaders_is_not_spent_beside(lab: SimpleNamespace) -> None:
    study = leaders(lab, max_probes=9)
    first = next_probe(study)
    assert isinstance(first, ProbeRequest)
    assert first.repetition == 0
    assert next_probe(pending(study, first), beside=True) == Wait()
    roomy = replace(study, limits=replace(study.limits, max_probes=20, tolerance=0.0))
    assert isinstance(next_probe(pending(roomy, first), beside=True), ProbeRequest)


def test_a_leaders_repetition_has_no_neighbours(lab: SimpleNamespace) -> None:
    study = leaders(lab, max_probes=8, tolerance=0.0)
    final = next_probe(study)
    assert isinstance(final, ProbeRequest)
    assert final.repetition == 1
    assert is_final(study, final)
    roomy = replace(study, limits=replace(study.limits, max_probes=50))
    assert next_probe(pending(roomy, final), beside=True) == Wait()


@pytest.mark.parametrize("outcome", [Outcome.OOM, Outcome.CRASHED, Outcome.STOPPED_EARLY])
def test_only_what_ended_well_makes_a_final(lab: SimpleNamespace, outcome: Outcome) -> None:
    study = lab.study()
    request = next_probe(study)
    assert isinstance(request, ProbeRequest)
    ended = done(1, request, Measurement(outcome=outcome), GIB)
    again = replace(request, repetition=1)
    assert not is_final(replace(study, probes=(ended,)), again)
    assert not is_final(replace(study, probes=(ended,)), replace(again, fidelity="emulated"))


def test_the_end_is_said_when_all_are_done(lab: SimpleNamespace) -> None:
    question = lab.question(
        tp_size=(1,), sharding=("ddp",), micro_batch_size=(4,), activation_checkpointing=("none",)
    )
    study = lab.study(question)
    first = next_probe(study, beside=True)
    assert isinstance(first, ProbeRequest)
    assert next_probe(pending(study, first), beside=True) == Wait()
    measured = lab.ok(1.0, GIB, count=first.settings.gradient_accumulation_steps)
    ended = replace(study, probes=(done(1, first, measured, GIB),))
    assert isinstance(next_probe(ended, beside=True), Stop)


def test_last_resorts_are_tried_one_by_one(lab: SimpleNamespace) -> None:
    study = lab.study(memory_limit_bytes=lab.MIB)
    first = next_probe(study)
    assert isinstance(first, ProbeRequest)
    assert next_probe(pending(study, first), beside=True) == Wait()
