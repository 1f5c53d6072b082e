import threading
import time
from types import SimpleNamespace

import pytest

from tuner.errors import StoreError
from tuner.store import LEASE_S
from workers.launchers.supervised import FEED_S, SILENCE_S
from workers.lease import BEATS, MARGIN, Lease


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The leases' own, which stands at ``now``."""
    found = SimpleNamespace(now=0.0)
    monkeypatch.setattr("workers.lease.time", SimpleNamespace(monotonic=lambda: found.now))
    return found


def lease(beat, *, lease_s: float = 1000.0, beat_s: float = 0.02, margin_s: float = 0.0) -> Lease:
    return Lease(
        beat, claimed_at=time.monotonic(), lease_s=lease_s, beat_s=beat_s, margin_s=margin_s
    )


def test_it_is_renewed_while_it_is_held(eventually) -> None:
    beats = []
    with lease(lambda: not beats.append(1)) as held:
        eventually(lambda: len(beats) >= 3)
        assert held.over == ""
    held._thread.join(60)
    assert not held._thread.is_alive()


def test_a_beat_that_is_refused_ends_it(eventually) -> None:
    beats = []

    def refuse() -> bool:
        beats.append(1)
        return False

    with lease(refuse) as held:
        eventually(lambda: held.over)
        assert "another worker" in held.over
        held._thread.join(60)
        assert len(beats) == 1


def test_a_store_that_fails_ends_it_before_it_runs_out(clock, eventually) -> None:
    failures = []

    def fail() -> bool:
        failures.append(1)
        raise StoreError("no answer")

    with Lease(fail, claimed_at=0.0, lease_s=20.0, beat_s=0.02, margin_s=5.0) as held:
        clock.now = 14.9
        eventually(lambda: len(failures) >= 2)
        assert held.over == ""
        clock.now = 15.1
        assert "in time" in held.over


def test_a_store_that_hangs_ends_it_and_does_not_hold_the_worker(eventually) -> None:
    answer = threading.Event()
    with lease(lambda: answer.wait(60), lease_s=0.3) as held:
        eventually(lambda: held.over)
    answer.set()


def test_a_store_that_comes_back_in_time_keeps_it(clock, eventually) -> None:
    beats, is_away = [], True

    def beat() -> bool:
        beats.append(clock.now)
        if is_away:
            raise StoreError("no answer")
        return True

    with Lease(beat, claimed_at=0.0, lease_s=20.0, beat_s=0.02, margin_s=0.0) as held:
        clock.now = 19.0
        eventually(lambda: beats.count(19.0) >= 2)
        is_away = False
        tried = len(beats)
        eventually(lambda: len(beats) >= tried + 3)
        clock.now = 38.0
        assert held.over == ""


def test_a_stopped_workers_ranks_end_within_the_margin() -> None:
    """Stopped at the last moment of a lease that could not be renewed, it can end nothing."""
    unfed_s = FEED_S + SILENCE_S
    assert unfed_s < MARGIN * LEASE_S
    assert LEASE_S / BEATS < (1 - MARGIN) * LEASE_S / 2  # a beat may fail


def test_beats_and_margin_are_parts_of_the_lease(clock) -> None:
    long, short = (Lease(lambda: True, claimed_at=0.0, lease_s=s) for s in (60, 6))
    clock.now = 3.4
    assert not short.over
    clock.now = 3.6
    assert short.over
    clock.now = 34.9
    assert not long.over
    clock.now = 35.1
    assert long.over


def test_its_time_runs_from_before_the_claim(clock) -> None:
    clock.now = 55.0
    assert not Lease(lambda: True, claimed_at=6.0, lease_s=60, margin_s=10).over
    assert Lease(lambda: True, claimed_at=0.0, lease_s=60, margin_s=10).over
