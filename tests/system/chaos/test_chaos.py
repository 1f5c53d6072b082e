"""Short probes, while workers, services and the database's server end at random moments.

    CHAOS_SEED=7 pytest -s tests/system/chaos/test_chaos.py

What is killed, and after how many probes, follows from the seed; what it is at just then does not.
"""

import os
import random
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from tests.system.chaos.callers import Caller
from tests.system.chaos.databases import Database
from tests.system.chaos.evidence import confirmed, left, mistakes, overlaps, spans
from tests.system.chaos.processes import Member, service, worker
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import StudyState
from tuner.core.words import number_text
from tuner.store import open_store
from tuner.store.workers import Workers

SEED = int(os.environ.get("CHAOS_SEED", "1"))
GPUS = "GPU-a,GPU-b,GPU-c"
LONGEST_S = 3600.0
KILL_S = 15.0
"""Between two kills, if no probe ends."""
SERVICES_SHARE = 0.25
"""Of the kills."""
NO_DATABASE = " cannot be used: "
SLICE = ["begin", "sleep:0.02", "end"]
SCRIPT = {"*": [*SLICE * 4, "ok"]}
"""Ranks note each short time at which they are at work."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is at stake, and how often something is killed."""

    studies: int
    probes: int
    """Of each study."""
    workers: int
    services: int
    kill_probes: tuple[int, int]
    """That end between two kills, at least and at most."""

    @property
    def troubles(self):
        """Probes after which the database's server crashes, and after which it is restarted."""
        return self.studies * self.probes // 3, self.studies * self.probes * 2 // 3


SHORT = Size(studies=2, probes=6, workers=2, services=1, kill_probes=(3, 5))
LONG = Size(studies=15, probes=20, workers=4, services=2, kill_probes=(1, 10))


@dataclass(kw_only=True)
class Chaos:
    """Kills members at random, and has the database's server fail, until all callers are done."""

    size: Size
    random: random.Random
    database: Database
    workers: list[Member]
    services: list[Member]
    ended: Callable[[], int]
    """How many probes have ended so far."""
    kills: int = 0

    def rage(self, callers, until):
        """Go on until the callers are done."""
        crash, restart = self.size.troubles
        troubles = [(crash, self.database.crash), (restart, self.database.restart)]
        while self._goes_on(callers):
            assert time.monotonic() < until, [m.log[-2000:] for m in self.workers + self.services]
            if troubles and self.ended() >= troubles[0][0]:
                troubles.pop(0)[1]()
            self._pause(callers, self.ended() + self.random.randint(*self.size.kill_probes))
            self._kill_one()
        assert not troubles

    def _kill_one(self):
        is_service = self.random.random() < SERVICES_SHARE
        victim = self.random.choice(self.services if is_service else self.workers)
        victim.kill()
        victim.start()
        self.kills += 1
        assert not any(worker.died() for worker in self.workers), "they wait for a database"
        for member in self.services:
            if member.died():  # of itself only if it found no database when it started
                assert member.log.rstrip().splitlines()[-1].count(NO_DATABASE), member.log[-2000:]
                member.kill()
                member.start()

    def _pause(self, callers, probes):
        until = time.monotonic() + KILL_S
        while time.monotonic() < until and self.ended() < probes and self._goes_on(callers):
            time.sleep(0.2)

    def _goes_on(self, callers):
        """Whether any waits; raises what one has met."""
        return not all(caller.done() and caller.result() for caller in callers)


@pytest.fixture
def notes(tmp_path):
    """Where ranks note when they are at work."""
    path = tmp_path / "notes"
    path.touch()
    return path


@pytest.fixture(params=[SHORT, pytest.param(LONG, marks=pytest.mark.long)], ids=["short", "long"])
def size(request):
    return request.param


@pytest.fixture
def members(size, database, tmp_path, notes, join):
    """Workers and services. Half of the workers do not see the locks of the others, as if in
    another container, so that only the database keeps them from a device."""
    more = {"STAND_IN_GPUS": GPUS, "STAND_IN_NOTES": str(notes)}
    workers = [
        worker(f"worker-{n}", database.url, tmp_path, SCRIPT, machine=f"machine-{n % 2}", **more)
        for n in range(size.workers)
    ]
    services = [
        service(f"service-{n}", database.url, tmp_path, port)
        for n, port in enumerate(free_ports(size.services))
    ]
    for member in (*services, *workers):
        join(member)
    return workers, services


def free_ports(count):
    """Ports of this machine that nobody listens to."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    yield from ports


def body(number, probes):
    """A question of many settings, whose probes take a moment on GPUs that are made up."""
    workload = {
        "model": "stories15m", "sequence_length": 128, "global_batch_size": 32 + 8 * number,
    }  # fmt: skip
    return {
        "workload": workload,
        "cluster": "8xa100-80gb",
        "fidelity": "emulated",
        "tolerance": 0.0,
        "budget": {"max_probes": probes},
    }


@contextmanager
def asking(ports, size):
    """Callers, each with a study; they give up when it is left."""
    over = threading.Event()
    callers = [Caller(ports, SEED + number, over) for number in range(size.studies)]
    with ThreadPoolExecutor(size.studies) as pool:
        try:
            yield [
                pool.submit(caller.run, body(number, size.probes), f"chaos {number}")
                for number, caller in enumerate(callers)
            ]
        finally:
            over.set()


def test_nothing_is_lost_or_doubled(size, database, members, tmp_path, notes):
    print(f"CHAOS_SEED={SEED}")
    workers, services = members
    ports = [int(one.argv[-1]) for one in services]
    chaos = Chaos(
        size=size,
        random=random.Random(SEED),
        database=database,
        workers=workers,
        services=services,
        ended=lambda: sum(one.log.count(" after ") for one in workers),
    )
    began = time.monotonic()
    with asking(ports, size) as callers:
        chaos.rage(callers, began + LONGEST_S)
        done = [caller.result() for caller in callers]
    took_s = time.monotonic() - began
    assert [member.end() for member in (*workers, *services)] == [0] * (
        size.workers + size.services
    )
    with open_store(database.url) as store:
        tell(store, chaos, done, took_s)
        check_database(store, size, workers)
        check_callers(store, size, done)
        assert Workers(store.transactions).living() == []
    assert overlaps(notes) == []
    assert sum(map(len, spans(notes).values())) >= 4 * size.studies * size.probes
    assert left(tmp_path) == []


def tell(store, chaos, done, took_s):
    """What pytest shows of a test that fails, or with -s."""
    found = [store.study(caller.study_id) for caller in done]
    probes = [len(study.at(Fidelity.EMULATED).probes) for study in found]
    breaks = sum(caller.breaks for caller in done)
    print(f"{took_s:.0f} s, {chaos.kills} kills, {sum(probes)} probes, {breaks} breaks")


def check_database(store, size, workers):
    """Every probe has ended once, and what a worker was told to be recorded is there."""
    assert mistakes(store) == []
    studies = [store.study(one.id) for one in store.studies(limit=size.studies + 1)]
    assert len(studies) == size.studies
    assert {study.state for study in studies} == {StudyState.DONE}
    probes = [probe for study in studies for probe in study.at(Fidelity.EMULATED).probes]
    assert len(probes) == size.studies * size.probes
    outcomes = [probe.measurement.outcome for probe in probes if probe.measurement]
    assert set(outcomes) <= {Outcome.OK, Outcome.STOPPED_EARLY, Outcome.WORKER_LOST}
    assert outcomes.count(Outcome.WORKER_LOST) <= len(outcomes) / 20 + 1
    told = confirmed(member.log for member in workers)
    ended = {
        f"{number_text(probe.id)} of {study.id}" for study in studies for probe in study.probes
    }
    assert set(told.values()) == {1}
    assert set(told) <= ended


def check_callers(store, size, done):
    """Each had every event of its study once and in order, and no answer that is none."""
    assert len({caller.study_id for caller in done}) == size.studies
    for caller in done:
        assert caller.unexpected == []
        events = store.events(caller.study_id)
        missing = [event for event in events if event.id not in caller.events]
        assert missing == []
        assert caller.events == [event.id for event in events]
