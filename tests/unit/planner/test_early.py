"""When a probe may end before all its steps are timed."""

from dataclasses import replace

import pytest

from tuner.core.configuration import Settings, Sharding
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import ProbeRequest
from tuner.planner.knowledge import learn
from tuner.planner.next import VARIATION, give_up_above_s
from tuner.planner.ranking import choose

FAST = Settings(micro_batch_size=4)
SLOW = Settings(micro_batch_size=2, gradient_accumulation_steps=2)
OTHER = Settings(sharding=Sharding.FULL_SHARD, micro_batch_size=4)
MIB = 2**20
STEPS = (0.95, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.05)


def request(settings: Settings, fidelity: Fidelity = Fidelity.MEASURED) -> ProbeRequest:
    return ProbeRequest(settings=settings, fidelity=fidelity)


def test_what_is_slower_than_the_fastest_by_more_than_luck(lab) -> None:
    found = [
        lab.probe(1, FAST, lab.ok({1: STEPS}, 100 * MIB)),
        lab.probe(2, SLOW, lab.ok(3.0, MIB)),
    ]
    study = lab.study(probes=found, tolerance=0.05)
    high = learn(study).fitting[0].step_time_s.high
    assert give_up_above_s(study, request(OTHER)) == pytest.approx(high * (1.05 + VARIATION))


def test_what_it_ends_could_not_have_been_the_answer(lab) -> None:
    """Not even as something lighter that cannot be told apart."""
    study = lab.study(probes=[lab.probe(1, FAST, lab.ok({1: STEPS}, 100 * MIB))])
    limit = give_up_above_s(study, request(OTHER))
    assert limit is not None
    steps = (limit * 0.98, *(limit * 1.01,) * 8, limit * 1.5)  # its median is above
    measured = lab.probe(2, OTHER, lab.ok({1: steps}, MIB))
    choice = choose(learn(replace(study, probes=(*study.probes, measured))).fitting, 0.01)
    assert choice is not None
    assert choice.best.settings == FAST


@pytest.mark.parametrize(
    "found",
    [
        None,
        Measurement(outcome=Outcome.OOM),
        Measurement(outcome=Outcome.TIMEOUT, wall_s=600.0),
    ],
)
def test_nothing_is_ended_while_nothing_is_known_to_fit(lab, found: Measurement | None) -> None:
    probes = [] if found is None else [lab.probe(1, FAST, found)]
    assert give_up_above_s(lab.study(probes=probes), request(OTHER)) is None


def test_what_does_not_fit_ends_nothing(lab) -> None:
    study = lab.study(probes=[lab.probe(1, FAST, lab.ok(1.0, 5000 * MIB))])
    assert give_up_above_s(study, request(OTHER)) is None


def test_finalists_are_timed_to_the_end(lab) -> None:
    found = [lab.probe(1, FAST, lab.ok(1.0, MIB)), lab.probe(2, SLOW, lab.ok(1.0, MIB, count=2))]
    study = lab.study(probes=found)
    for settings in (FAST, SLOW):
        assert give_up_above_s(study, replace(request(settings), repetition=1)) is None


def test_what_failed_before_and_is_tried_again_may_end(lab) -> None:
    lost = lab.probe(2, OTHER, Measurement(outcome=Outcome.WORKER_LOST))
    study = lab.study(probes=[lab.probe(1, FAST, lab.ok(1.0, MIB)), lost])
    assert give_up_above_s(study, replace(request(OTHER), repetition=1)) is not None


def test_another_fidelity_says_nothing(lab) -> None:
    study = lab.study(probes=[lab.probe(1, FAST, lab.ok(1.0, MIB))])
    assert give_up_above_s(study, request(OTHER, Fidelity.EMULATED)) is None
