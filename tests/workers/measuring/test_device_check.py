"""What fresh processes say of devices, played by stand-ins."""

import time

import pytest

from workers.launchers.local import LocalLauncher
from workers.measuring.device_check import why_unusable


def nap(seconds: float) -> str:
    time.sleep(seconds)
    return ""


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ({"*": ["ok"]}, ""),
        ({"0": ["ok"], "1": ["device_lost"]}, "rank 1's: Error: device_lost"),
        ({"0": ["ok"], "1": ["say:no such device", "exit:3"]}, "rank 1's: no such device"),
        ({"0": ["ok"], "1": ["signal:SIGKILL"]}, "rank 1's: exit code -9"),
    ],
)
def test_the_device_that_is_not_well_is_named(make_job, script, why) -> None:
    assert why_unusable(LocalLauncher(), make_job(script, peer_grace_s=60.0), nap) == why


def test_a_device_that_hangs_is_not_well(make_job) -> None:
    for deadline_s in (1.0, 10.0, 60.0):  # until it leaves the other one the time to answer
        job = make_job({"0": ["ok"], "1": ["hang"]}, deadline_s=deadline_s)
        why = why_unusable(LocalLauncher(), job, nap)
        if why != f"rank 0's does not answer within {deadline_s:.0f} s":
            break
    assert why == f"rank 1's does not answer within {deadline_s:.0f} s"


def test_a_check_that_is_given_up_says_nothing(make_job, alive, tmp_path) -> None:
    job = make_job({"*": ["hang"]})
    assert why_unusable(LocalLauncher(), job, lambda seconds: "stop") is None
    assert not alive(str(tmp_path))
