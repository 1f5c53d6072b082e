"""Leases among real processes: stopped ones, killed ones, and clocks that differ.

Leases are shortened, and nothing is said of how long anything took.
"""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import pytest
from sqlalchemy import select

from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import ProbeRequest, ProbeState, Study
from tuner.store import Store, WorkerIdentity
from tuner.store.tables import AttemptRow, AttemptState, DeviceRow, clock

Requests = Callable[[int], list[ProbeRequest]]
Start = Callable[..., "Process"]

LEASE_S = 1.0
SKEW_S = 300

WORKER = """
import json, sys, time
url, study_id, lease_s, skew_s, host = sys.argv[1:]
skew_s = float(skew_s)
if skew_s:
    import datetime
    really, moments = time.time, datetime.datetime
    time.time = lambda: really() + skew_s

    class Shifted(moments):
        @classmethod
        def now(cls, tz=None):
            return moments.now(tz) + datetime.timedelta(seconds=skew_s)

        @classmethod
        def utcnow(cls):
            return moments.utcnow() + datetime.timedelta(seconds=skew_s)

    datetime.datetime = Shifted

from dataclasses import replace
from tuner.core.measurement import Measurement, Outcome
from tuner.core import lease
from tuner.store import WorkerIdentity, open_store

lease.LEASE_S = float(lease_s)
# Of another machine, so that nobody can see whether its process lives: its lease alone tells.
worker = replace(WorkerIdentity.of_this_process(), host=host)
say = lambda **what: print(json.dumps(what), flush=True)
with open_store(url) as store:
    claim = store.claim(study_id, worker, devices=["GPU-0"])
    say(probe=claim and claim.probe.id, attempt=claim and claim.attempt_id, clock=time.time())
    for line in sys.stdin:
        match line.strip():
            case "beat":
                say(beat=store.beat(claim))
            case "record":
                say(recorded=store.record(claim, Measurement(outcome=Outcome.OK, wall_s=1.0)))
            case "reap":
                say(lost=store.reap())
"""


class Process:
    """A worker that does what it is told, line by line."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    def told(self) -> dict[str, Any]:
        """What it says next."""
        line = _stream(self.process.stdout).readline()
        assert line, "it ended"
        said: dict[str, Any] = json.loads(line)
        return said

    def do(self, what: str) -> dict[str, Any]:
        """Tells it to do something; what it says then."""
        _stream(self.process.stdin).write(what + "\n")
        _stream(self.process.stdin).flush()
        return self.told()

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


@pytest.fixture
def start(url: str, study: Study) -> Iterator[Start]:
    """Starts workers, which claim the study's oldest probe and ``GPU-0`` at once."""
    with ExitStack() as stack:

        def one(*, lease_s: float = LEASE_S, skew_s: float = 0.0, host: str = "one") -> Process:
            argv = [sys.executable, "-P", "-c", WORKER, url, study.id, str(lease_s), str(skew_s)]
            pipe = subprocess.PIPE
            process = stack.enter_context(
                subprocess.Popen([*argv, host], stdin=pipe, stdout=pipe, text=True)
            )
            stack.callback(process.kill)
            return Process(process)

        yield one


@pytest.fixture
def probe_id(store: Store, study: Study, requests: Requests) -> int:
    """The study's only probe."""
    probe = store.enter_probe(study.id, study.revision, requests(1)[0], None)
    assert probe is not None
    return probe.id


def reaped(store: Store) -> None:
    """Waits until an attempt is lost."""
    for _ in range(int(60 * LEASE_S / 0.05)):
        if store.reap():
            return
        time.sleep(0.05)
    raise AssertionError("no attempt was lost")


def test_a_worker_that_is_stopped_for_two_leases_changes_nothing_when_it_wakes(
    url: str, store: Store, study: Study, start: Start, probe_id: int, worker: WorkerIdentity
) -> None:
    stopped = start()
    assert stopped.told()["probe"] == probe_id
    assert stopped.do("beat") == {"beat": True}
    # Between two transactions: in one it would keep SQLite's lock from all others.
    stopped.signal(signal.SIGSTOP)
    assert store.claim(study.id, worker, devices=("GPU-0",)) is None, "its device is its own"
    time.sleep(2 * LEASE_S)
    reaped(store)
    second = store.claim(study.id, worker, devices=("GPU-0",))
    assert second is not None
    assert second.probe.id == probe_id
    found = Measurement(outcome=Outcome.OOM, detail="the second's")
    assert store.record(second, found)
    before = (store.study(study.id), store.events(study.id))
    stopped.signal(signal.SIGCONT)
    assert stopped.do("beat") == {"beat": False}, "it stops its probe"
    assert stopped.do("record") == {"recorded": False}
    assert (store.study(study.id), store.events(study.id)) == before
    [probe] = before[0].probes
    assert probe.measurement == found
    assert states(store) == [AttemptState.LOST, AttemptState.DONE]


def test_a_worker_that_wakes_while_another_has_its_probe_takes_nothing_from_it(
    url: str, store: Store, study: Study, start: Start, probe_id: int, worker: WorkerIdentity
) -> None:
    stopped = start()
    assert stopped.told()["probe"] == probe_id
    stopped.signal(signal.SIGSTOP)
    reaped(store)
    second = store.claim(study.id, worker, devices=("GPU-0",))
    assert second is not None
    stopped.signal(signal.SIGCONT)
    assert stopped.do("beat") == {"beat": False}
    assert stopped.do("record") == {"recorded": False}
    with store.transactions.read() as session:
        assert session.scalars(select(DeviceRow.attempt_id)).all() == [second.attempt_id]
    assert store.beat(second)
    assert store.record(second, Measurement(outcome=Outcome.OK))


def test_a_worker_that_is_killed_loses_its_probe_and_its_device(
    url: str, store: Store, study: Study, start: Start, probe_id: int, worker: WorkerIdentity
) -> None:
    killed = start()
    assert killed.told()["probe"] == probe_id
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    reaped(store)
    claim = store.claim(study.id, worker, devices=("GPU-0",))
    assert claim is not None
    assert claim.probe.id == probe_id


@pytest.mark.parametrize("skew_s", [SKEW_S, -SKEW_S])
def test_workers_whose_clocks_differ_agree_on_leases(
    url: str, store: Store, study: Study, start: Start, probe_id: int, skew_s: float
) -> None:
    """Of five minutes, five leases: by its own clock either would take the other's for lost."""
    if "sqlite" in url:
        pytest.skip("those who share a file share a machine, and its clock")
    skewed = start(lease_s=60, skew_s=skew_s, host="skewed")
    said = skewed.told()
    assert said["probe"] == probe_id
    assert abs(said["clock"] - time.time() - skew_s) < SKEW_S / 2, "its clock is wrong"
    for _ in range(2):
        with store.transactions.read() as session:
            row = session.get_one(AttemptRow, said["attempt"])
            left = row.lease_until - clock(session)
            assert timedelta(seconds=0) < left <= timedelta(seconds=60)
        assert store.reap() == 0, "its lease holds by every clock"
        assert skewed.do("reap") == {"lost": 0}
        assert skewed.do("beat") == {"beat": True}
    assert skewed.do("record") == {"recorded": True}
    [probe] = store.study(study.id).probes
    assert probe.state is ProbeState.DONE
    assert probe.finished_at is not None
    finished = datetime.fromisoformat(probe.finished_at)
    assert abs(finished - datetime.now(UTC)) < timedelta(seconds=SKEW_S / 2), "the database's"


def test_a_worker_whose_clock_is_ahead_takes_nothing_from_others(
    url: str, store: Store, study: Study, start: Start, probe_id: int, worker: WorkerIdentity
) -> None:
    if "sqlite" in url:
        pytest.skip("those who share a file share a machine, and its clock")
    claim = store.claim(study.id, worker)
    assert claim is not None
    skewed = start(lease_s=60, skew_s=SKEW_S, host="skewed")
    assert skewed.told()["probe"] is None
    assert skewed.do("reap") == {"lost": 0}
    assert store.record(claim, Measurement(outcome=Outcome.OK))
    assert store.study(study.id).probes[0].id == probe_id


def states(store: Store) -> list[AttemptState]:
    with store.transactions.read() as session:
        return list(session.scalars(select(AttemptRow.state).order_by(AttemptRow.id)))
