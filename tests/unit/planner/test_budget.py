"""What is left of an asking's budget."""

from dataclasses import replace
from math import inf

import pytest

from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import ProbeState, Study
from tuner.planner.spending import remaining_device_time_s, remaining_wall_s, spent


@pytest.fixture
def study(lab) -> Study:
    """Two probes of 2 s on two devices, before the first of which another asking had one."""
    settings = (Settings(micro_batch_size=n) for n in (1, 2, 4))
    found = Measurement(outcome=Outcome.OK, wall_s=2.0, device_s=4.0)
    probes = [lab.probe(number, one, found) for number, one in enumerate(settings, 1)]
    return replace(lab.study(probes=probes), probes_before=1)


def on(study: Study, **limits: object) -> Study:
    return replace(study, limits=replace(study.limits, **limits))


def test_without_a_budget_of_time_nothing_is_spent(study) -> None:
    assert spent(study) == ""
    assert remaining_wall_s(study) is None
    assert remaining_device_time_s(study) == inf


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"max_probes": 2}, "the budget of 2 probes is spent"),
        ({"wall_s": 4.0}, "the budget of 4 s is spent"),
        ({"device_s": 8.0}, "the budget of 8 device-seconds is spent"),
        ({"max_probes": 3, "wall_s": 4.5, "device_s": 8.5}, ""),
    ],
)
def test_what_is_spent(study, limits, why) -> None:
    assert spent(on(study, **limits)) == why


def test_the_tighter_budget_decides_how_long_there_is(study) -> None:
    assert remaining_wall_s(on(study, wall_s=10.0)) == 6
    assert remaining_wall_s(on(study, wall_s=10.0, device_s=12.0)) == 2  # on two devices
    assert remaining_device_time_s(on(study, wall_s=1.0, device_s=12.0)) == 2


def test_attempts_that_came_to_nothing_are_charged(study) -> None:
    tried = replace(on(study, wall_s=10.0, device_s=12.0), fruitless_s=2.0)
    assert remaining_wall_s(tried) == remaining_device_time_s(tried) == 0
    assert spent(tried) == "the budget of 12 device-seconds is spent"
    assert spent(on(tried, device_s=None, wall_s=6.0)) == "the budget of 6 s is spent"


def test_an_emulated_probe_holds_one_device_and_a_dry_run_none(study) -> None:
    tried = replace(study, fruitless_s=2.0)
    emulated = on(tried, fidelity=Fidelity.EMULATED, device_s=12.0)
    assert remaining_device_time_s(emulated) == 2
    predicted = on(tried, fidelity=Fidelity.PREDICTED, device_s=12.0)
    assert spent(predicted) == ""


def test_probes_at_once_take_their_time_once_and_all_of_their_devices(study) -> None:
    """They are done a second apart, and take two each."""
    probes = [
        replace(probe, finished_at=f"2026-01-01T00:00:0{5 + number}.500Z")
        for number, probe in enumerate(study.probes)
    ]
    tried = replace(on(study, wall_s=10.0, device_s=12.0), probes=tuple(probes))
    assert remaining_wall_s(on(tried, device_s=None)) == 7
    assert remaining_device_time_s(tried) == 2


def test_probes_on_their_way_are_spent_already(lab, study) -> None:
    one = lab.probe(4, Settings(micro_batch_size=8), None, state=ProbeState.RUNNING)
    tried = replace(study, probes=(*study.probes, one))
    assert spent(on(tried, max_probes=3)) == "the budget of 3 probes is spent"
    assert spent(on(tried, max_probes=4)) == ""
