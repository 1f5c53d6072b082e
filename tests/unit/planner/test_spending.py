"""Probes' time, whatever the order in which they are told, and what is left of a budget."""

import random
from dataclasses import replace
from math import inf

import pytest

from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState
from tuner.explain.known import answer
from tuner.planner.spending import (
    Cost,
    cost,
    cost_of_request,
    probes_of_request,
    remaining_device_time_s,
    remaining_wall_s,
    spent,
    total_measured,
)


def probe(wall_s, end_s):
    return Probe(
        id=1,
        request=ProbeRequest(settings=Settings(), fidelity=Limits().fidelity),
        state=ProbeState.DONE,
        measurement=Measurement(outcome=Outcome.OK, wall_s=wall_s, device_s=2 * wall_s),
        finished_at=None if end_s is None else f"2026-01-01T00:00:{end_s:06.3f}Z",
    )


@pytest.mark.parametrize(
    ("rows", "expected_s"),
    [
        ([], 0),
        ([(2, 10), (3, 20)], 5),
        ([(2, 10), (3, 11)], 3),
        ([(9, 10), (2, 5), (3, 9)], 9),
        ([(2, 10), (2, 10)], 2),
        ([(2, 10), (2, 12)], 4),
        ([(2, 10), (2, None), (3, None)], 7),
        ([(0, 10)], 0),
    ],
)
def test_time_that_several_share_counts_once(rows, expected_s):
    probes = [probe(*row) for row in rows]
    for seed in range(3):
        random.Random(seed).shuffle(probes)
        assert total_measured(probes) == (pytest.approx(expected_s), 2 * sum(r[0] for r in rows))


@pytest.fixture
def study(lab):
    """Two requests of two probes each, on two devices."""
    probes = [
        lab.probe(n, Settings(micro_batch_size=n), lab.ok(1.0, 1, wall_s=10.0, device_s=20.0))
        for n in (1, 2, 3, 4)
    ]
    return replace(
        lab.study(probes=probes),
        probes_before=2,
        wasted_s=3.0,
        wasted_before_s=5.0,
        guard_s=0.5,
        guard_before_s=0.25,
    )


def test_all_that_was_spent_counts(study):
    assert cost(study) == Cost(wall_s=40 + 8 + 0.75, device_s=80 + 2 * 8)
    assert cost_of_request(study) == Cost(wall_s=20 + 3 + 0.5, device_s=40 + 2 * 3)


def test_budget_answer_and_break_even_say_the_same(study):
    found = answer(study)
    assert (found.wall_s, found.device_s) == (cost(study).wall_s, cost(study).device_s)
    assert any("Tuning took 49 s and 96 device-seconds" in line for line in found.explanation)
    for limits, why in (
        ({"wall_s": 23.6, "device_s": 46.1}, ""),
        ({"wall_s": 23.5}, "the budget of 23.5 s is spent"),
        ({"device_s": 46.0}, "the budget of 46 device-seconds is spent"),
    ):
        assert spent(on(study, **limits)) == why


def test_an_emulated_probe_holds_one_device_and_a_dry_run_none(study):
    def alone(fidelity):
        limits = replace(study.limits, fidelity=fidelity)
        return cost(replace(study, limits=limits, probes=(), probes_before=0))

    assert alone(Fidelity.EMULATED) == Cost(wall_s=8.75, device_s=8.0)
    assert alone(Fidelity.PREDICTED) == Cost(wall_s=8.0, device_s=0.0)


def test_what_another_worker_runs_meanwhile_is_the_new_requests(study):
    """It was asked for first, and is done last."""
    first, *others = study.probes
    late = replace(first, finished_at="2026-02-01T00:00:00.000Z")
    found = replace(study, probes=(late, *others), probes_before=3)
    assert [p.id for p in probes_of_request(found)] == [1]
    running = replace(first, state=ProbeState.RUNNING, measurement=None, finished_at=None)
    found = replace(study, probes=(running, *others), probes_before=3)
    assert [p.id for p in probes_of_request(found)] == [1]
    assert cost_of_request(found).wall_s == 3.5


def on(study, **limits):
    return replace(study, limits=replace(study.limits, **limits))


def test_the_tighter_budget_decides_how_long_there_is(study):
    assert (remaining_wall_s(study), remaining_device_time_s(study)) == (None, inf)
    assert remaining_wall_s(on(study, wall_s=30.0)) == 6.5
    assert remaining_wall_s(on(study, wall_s=30.0, device_s=50.0)) == 2  # on two devices
    assert remaining_device_time_s(on(study, wall_s=1.0, device_s=50.0)) == 2


def test_probes_on_their_way_are_spent_already(lab, study):
    one = lab.probe(5, Settings(micro_batch_size=8), None, state=ProbeState.RUNNING)
    tried = replace(study, probes=(*study.probes, one))
    assert spent(on(tried, max_probes=3)) == "the budget of 3 probes is spent"
    dry = on(tried, max_probes=3, fidelity=Fidelity.PREDICTED)
    assert spent(dry) == "the budget of 3 dry runs is spent"
    assert spent(on(tried, max_probes=4)) == ""
    assert spent(on(study, max_probes=3)) == ""
