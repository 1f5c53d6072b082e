import threading
import time

from tuner.errors import StoreError
from tuner.store import LEASE_S
from workers.launchers.supervised import FEED_S, SILENCE_S
from workers.lease import BEATS, MARGIN, Lease


def lease(beat, *, lease_s: float = 1000.0, beat_s: float = 0.02, margin_s: float = 0.0) -> Lease:
    return Lease(
        beat, claimed_at=time.monotonic(), lease_s=lease_s, beat_s=beat_s, margin_s=margin_s
    )


def test_it_is_renewed_while_it_is_held(eventually) -> None:
    beats = []
    with lease(lambda: not beats.append(1)) as held:
        eventually(lambda: len(beats) >= 3)
        assert held.over == ""
    count = len(beats)
    time.sleep(0.1)
    assert len(beats) == count


def test_a_beat_that_is_refused_ends_it(eventually) -> None:
    beats = []

    def refuse() -> bool:
        beats.append(1)
        return False

    with lease(refuse) as held:
        eventually(lambda: held.over)
        assert "another worker" in held.over
        time.sleep(0.1)
        assert len(beats) == 1


def test_a_store_that_fails_ends_it_before_it_runs_out(eventually) -> None:
    def fail() -> bool:
        raise StoreError("no answer")

    started = time.monotonic()
    with lease(fail, lease_s=20.0, margin_s=19.7) as held:
        assert held.over == ""
        eventually(lambda: held.over)
        assert "in time" in held.over
    assert 0.3 <= time.monotonic() - started < 10


def test_a_store_that_hangs_ends_it_and_does_not_hold_the_worker(eventually) -> None:
    answer = threading.Event()
    with lease(lambda: answer.wait(60), lease_s=0.3) as held:
        eventually(lambda: held.over)
    answer.set()


def test_a_store_that_comes_back_in_time_keeps_it() -> None:
    answers = iter([StoreError("no answer"), True])

    def beat() -> bool:
        answer = next(answers, True)
        if isinstance(answer, StoreError):
            raise answer
        return True

    with lease(beat, lease_s=0.5) as held:
        time.sleep(0.9)
        assert held.over == ""


def test_a_stopped_workers_ranks_end_within_the_margin() -> None:
    """Stopped at the last moment of a lease that could not be renewed, it can end nothing."""
    unfed_s = FEED_S + SILENCE_S
    assert unfed_s < MARGIN * LEASE_S
    assert LEASE_S / BEATS < (1 - MARGIN) * LEASE_S / 2  # a beat may fail


def test_beats_and_margin_are_parts_of_the_lease() -> None:
    held = Lease(lambda: True, claimed_at=time.monotonic() - 36, lease_s=60)
    assert held.over
    assert not Lease(lambda: True, claimed_at=time.monotonic() - 34, lease_s=60).over
    assert Lease(lambda: True, claimed_at=time.monotonic() - 3.6, lease_s=6).over


def test_its_time_runs_from_before_the_claim() -> None:
    long_ago = time.monotonic() - 55
    held = Lease(lambda: True, claimed_at=long_ago, lease_s=60, margin_s=10)
    assert held.over
