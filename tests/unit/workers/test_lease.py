"""Leases that are renewed, lost or not renewed in time; calls of the store that are tried again."""

import threading
import time
from contextlib import contextmanager

import pytest

from tuner.core import lease as times
from tuner.core.lease import LEASE_S
from tuner.errors import StoreError, UnreadableStudyError, UsageError
from workers.launchers.base import FEED_S, SILENCE_S
from workers.lease import BEATS, MARGIN, STORE_PATIENCE_S, Lease, may_pass, retried

QUICK_S = 0.06
"""Of a lease whose beats follow each other within a moment."""


def eventually(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.002)


class Beats:
    """Answers beats: with ``answer``, or the error that it is."""

    def __init__(self, answer=True):
        self.answer, self.count = answer, 0

    def __call__(self):
        self.count += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@contextmanager
def entered(beat, clock):
    """A lease of 60 s by the hand-driven clock, which beats quickly."""
    lease = Lease(beat, claimed_at=clock.now)
    lease._beat_s = QUICK_S / BEATS
    with lease:
        yield lease


def test_it_is_renewed_while_it_is_held(clock):
    beats = Beats()
    with entered(beats, clock) as lease:
        for _ in range(3):
            clock.move(30)
            tried = beats.count
            eventually(lambda: beats.count > tried + 1)  # noqa: B023
            assert lease.over == ""
    assert not lease._thread.is_alive()


def test_a_beat_that_is_refused_ends_it(clock):
    beats = Beats(answer=False)
    with entered(beats, clock) as lease:
        eventually(lambda: lease.over)
        assert "another worker" in lease.over
        lease._thread.join(60)
        assert beats.count == 1


def test_a_store_that_fails_ends_it_before_it_runs_out_unless_it_comes_back(clock):
    beats = Beats(StoreError("no answer"))
    with entered(beats, clock) as lease:
        clock.move(34.9)
        eventually(lambda: beats.count >= 2)
        assert lease.over == ""
        clock.move(0.2)
        assert "in time" in lease.over
        beats.answer = True
        eventually(lambda: not lease.over)
        clock.move(34.8)
        assert lease.over == ""


def test_a_store_that_hangs_ends_it_and_does_not_hold_the_worker(clock):
    answer, asked = threading.Event(), threading.Event()

    def hang():
        asked.set()
        return answer.wait(60)

    with entered(hang, clock) as lease:
        assert asked.wait(60)
        clock.move(36)
        assert lease.over
    answer.set()


@pytest.mark.parametrize("lease_s", [6.0, 60.0])
def test_its_time_runs_from_before_the_claim_and_ends_a_margin_before_it(
    clock, monkeypatch, lease_s
):
    monkeypatch.setattr(times, "LEASE_S", lease_s)
    lease = Lease(Beats(), claimed_at=clock.now)
    clock.move(lease_s * (1 - MARGIN) - 0.01)
    assert lease.over == ""
    clock.move(0.02)
    assert lease.over


def test_a_stopped_workers_ranks_end_within_the_margin():
    """Stopped at the last moment of a lease that could not be renewed, it can end nothing."""
    assert FEED_S + SILENCE_S < MARGIN * LEASE_S
    assert LEASE_S / BEATS < (1 - MARGIN) * LEASE_S / 2  # a beat may fail


def failing(*errors):
    left = list(errors)

    def call():
        if left:
            raise left.pop(0)
        return 7

    return call


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (StoreError("no answer"), True),
        (UsageError("db", "x", "it is read-only"), True),
        (UsageError("study", "st-1", "no such study"), False),
        (UnreadableStudyError("of another version"), False),
    ],
)
def test_troubles_of_the_database_may_pass_and_mistakes_do_not(stop, error, passes):
    assert may_pass(error) is passes
    if passes:
        assert retried(failing(error, error), stop) == 7
    else:
        with pytest.raises(type(error)):
            retried(failing(error), stop)


def test_patience_ends(stop, clock):
    began, calls = clock.now, [0]

    def never():
        calls[0] += 1
        raise StoreError("no answer")

    with pytest.raises(StoreError, match="no answer"):
        retried(never, stop)
    assert STORE_PATIENCE_S <= clock.now - began <= STORE_PATIENCE_S + 2
    assert calls[0] > 50


def test_nothing_is_tried_again_when_a_stop_is_requested(stop):
    stop.request("enough")
    with pytest.raises(StoreError):
        retried(failing(StoreError("no answer")), stop)
    assert retried(failing(), stop) == 7  # one try there is


def test_a_clock_that_is_set_is_named(caplog, monkeypatch):
    beats = []
    now = time.time
    monkeypatch.setattr("workers.lease.lease.LEASE_S", 0.06)
    with Lease(lambda: bool(beats.append(1) or True), claimed_at=time.monotonic()):
        eventually(lambda: beats)
        monkeypatch.setattr(time, "time", lambda: now() + 7200)
        eventually(lambda: caplog.records)
        before = len(beats)
        eventually(lambda: len(beats) > before + 2)
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "this machine's clock was set by +7200 s"
    ]
