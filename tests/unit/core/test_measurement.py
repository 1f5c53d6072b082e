from math import inf, nan

import pytest

from tuner.core.measurement import Emulation, Measurement, Outcome, believable


def measured(**more):
    return Measurement(
        **{
            "outcome": Outcome.OK,
            "step_times_s": {1: (0.5, 0.25), 4: (1.0,)},
            "wall_s": 3.0,
            "device_s": 6.0,
            **more,
        }
    )


def test_what_can_be_stays_as_it_is():
    for found in (measured(), measured(wall_s=0.0), Measurement(outcome=Outcome.TIMEOUT)):
        assert believable(found) is found


@pytest.mark.parametrize("seconds", [nan, inf, -inf, 0.0, -1.0])
def test_a_step_that_cannot_be_is_a_crash(seconds):
    found = believable(measured(step_times_s={2: (0.5, seconds)}))
    assert found.outcome is Outcome.CRASHED
    assert found.detail == f"a time that cannot be: step of 2 micro-batches in {seconds:g} s"
    assert not found.step_times_s
    assert (found.wall_s, found.device_s) == (3.0, 6.0)


@pytest.mark.parametrize("seconds", [nan, inf, -1.0])
@pytest.mark.parametrize("name", ["wall_s", "device_s"])
def test_so_is_a_whole_that_cannot_be(name, seconds):
    found = believable(measured(**{name: seconds}))
    assert found.outcome is Outcome.CRASHED
    assert getattr(found, name) == 0.0


def test_so_is_computing_that_cannot_be():
    emulation = Emulation(compute_s={2: (nan,)}, exposed_s={}, collectives={})
    found = believable(measured(emulation=emulation))
    assert found.outcome is Outcome.CRASHED
    assert "computing of 2 micro-batches in nan s" in found.detail
