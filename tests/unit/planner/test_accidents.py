from dataclasses import replace
from types import SimpleNamespace

import pytest

from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import ProbeRequest
from tuner.explain.known import answer
from tuner.planner import Stop, next_probe
from tuner.planner.knowledge import TEACHES_NOTHING
from tuner.planner.next import ENOUGH, LOOK_AT, same_accident
from tuner.space import enumerate_space


def broken(outcome: Outcome, detail: str = "") -> Measurement:
    return Measurement(outcome=outcome, detail=detail, wall_s=1.0, device_s=2.0)


def test_every_accident_says_what_to_look_at() -> None:
    assert LOOK_AT.keys() == TEACHES_NOTHING - {Outcome.CANCELLED}


@pytest.mark.parametrize("outcome", LOOK_AT)
def test_three_times_the_same_accident_ends_an_asking(
    lab: SimpleNamespace, outcome: Outcome
) -> None:
    class Machine(lab.Machine):
        def run(self, request: ProbeRequest, limit: int) -> Measurement:
            return broken(outcome, "rank 1: the connection was closed")

    study, stop = Machine(lab.question()).play(lab.study(max_probes=60))
    assert len(study.probes) == ENOUGH
    assert stop.nothing_fits == ""
    assert stop.reason == (
        f"3 settings ended as {outcome} (rank 1: the connection was closed), and none ran:"
        f" {LOOK_AT[outcome]}"
    )
    assert len({p.request.settings for p in study.probes}) == ENOUGH
    assert answer(study).explanation


def test_none_ends_it_after_a_success_or_of_another_kind(lab: SimpleNamespace) -> None:
    legal = enumerate_space(lab.question()).legal
    done = lab.ok(1.0, 100 * lab.MIB, count=legal[3].gradient_accumulation_steps)
    lost = [lab.probe(n, legal[n], broken(Outcome.COMMUNICATION_ERROR)) for n in range(3)]
    assert same_accident(lab.study(probes=lost))
    assert not same_accident(lab.study(probes=lost[:2]))
    assert not same_accident(lab.study(probes=[*lost, lab.probe(9, legal[3], done)]))
    mixed = [*lost[:2], lab.probe(9, legal[3], broken(Outcome.DEVICE_LOST))]
    assert not same_accident(lab.study(probes=mixed))
    same = [lab.probe(n, legal[0], lost[0].measurement, repetition=n) for n in range(3)]
    assert not same_accident(lab.study(probes=same))


def test_crashes_are_the_settings_own(lab: SimpleNamespace) -> None:
    legal = enumerate_space(lab.question()).legal
    crashed = [lab.probe(n, legal[n], broken(Outcome.CRASHED)) for n in range(5)]
    assert not same_accident(lab.study(probes=crashed))


def test_another_asking_tries_again(lab: SimpleNamespace) -> None:
    legal = enumerate_space(lab.question()).legal
    lost = [lab.probe(n, legal[n], broken(Outcome.DEVICE_LOST)) for n in range(3)]
    study = lab.study(probes=lost)
    assert isinstance(next_probe(study), Stop)
    assert isinstance(next_probe(replace(study, probes_before=3)), ProbeRequest)
