"""Leases among processes of one database whose clocks differ: the database's counts."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from tuner.core.measurement import Measurement, Outcome
from tuner.core.study import ProbeState
from tuner.store.tables import AttemptRow, clock

# Five leases: by its own clock either would take the other's for lost.
SKEW_S = 300

WORKER = """
import datetime, json, sys, time
url, study_id, skew_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
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
from tuner.store import WorkerIdentity, open_store

# Of another machine, so that nobody can see whether its process lives: its lease alone tells.
worker = replace(WorkerIdentity.of_this_process(), host="skewed")
with open_store(url) as store:
    claim = store.claim(study_id, worker, devices=["GPU-0"])
    print(json.dumps([claim and claim.attempt_id, time.time()]), flush=True)
    does = {
        "beat": lambda: store.beat(claim),
        "record": lambda: store.record(claim, Measurement(outcome=Outcome.OK, wall_s=1.0)),
        "reap": store.reap,
    }
    for line in sys.stdin:
        print(json.dumps(does[line.strip()]()), flush=True)
"""


@contextmanager
def skewed(url, study, skew_s):
    """A worker whose clock is wrong: what it says of its claim, and a way to tell it more."""
    argv = [sys.executable, "-P", "-c", WORKER, url, study.id, str(skew_s)]
    pipe = subprocess.PIPE
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        said = process.stdout

        def do(what):
            print(what, file=process.stdin, flush=True)
            return json.loads(said.readline())

        attempt_id, now = json.loads(said.readline())
        assert abs(now - time.time() - skew_s) < SKEW_S / 2, "its clock is wrong"
        yield attempt_id, do
        process.kill()


@pytest.fixture(autouse=True)
def probe_id(store, study, requests):
    """The study's only probe."""
    probe = store.enter_probe(study.id, study.revision, requests(1)[0], None)
    return probe.id


@pytest.mark.parametrize("skew_s", [SKEW_S, -SKEW_S])
def test_workers_whose_clocks_differ_agree_on_leases(url, store, study, skew_s):
    with skewed(url, study, skew_s) as (attempt_id, do):
        for _ in range(2):
            with store.transactions.read() as session:
                row = session.get_one(AttemptRow, attempt_id)
                left = row.lease_until - clock(session)
                assert timedelta(seconds=0) < left <= timedelta(seconds=60)
            assert store.reap() == do("reap") == 0, "its lease holds by every clock"
            assert do("beat")
        assert do("record")
    [probe] = store.study(study.id).probes
    assert probe.state is ProbeState.DONE
    assert probe.finished_at is not None
    finished = datetime.fromisoformat(probe.finished_at)
    assert abs(finished - datetime.now(UTC)) < timedelta(seconds=SKEW_S / 2), "the database's"


def test_a_worker_whose_clock_is_ahead_takes_nothing_from_others(url, store, study, worker):
    claim = store.claim(study.id, worker)
    assert claim is not None
    with skewed(url, study, SKEW_S) as (attempt_id, do):
        assert attempt_id is None
        assert do("reap") == 0
    assert store.record(claim, Measurement(outcome=Outcome.OK))
