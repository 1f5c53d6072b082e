"""A small question, a database in a file, and a clock that a test drives."""

import time as real_time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from tests.questions import question_about
from tests.unit.workers.fakes import HandStop
from tuner.store import open_store

TIMED = (
    "workers.executor",
    "workers.lease",
    "workers.measuring.ranks",
    "workers.serve",
    "workers.worker",
)


@pytest.fixture
def question():
    """Small: stories15m on two CPU ranks."""
    return question_about("stories15m", "cpu:2", tokens=64, batch=4)


@pytest.fixture
def store(make_database, tmp_path):
    """An empty database."""
    with open_store(make_database(tmp_path / "tuner.db")) as opened:
        yield opened


@dataclass
class HandClock:
    """The monotonic clock of the workers' modules; it stands still unless it is moved."""

    now: float = 1000.0
    moved: list[float] = field(default_factory=list)

    def move(self, seconds):
        self.now += seconds
        self.moved.append(seconds)


@pytest.fixture
def clock(monkeypatch):
    found = HandClock()
    time = SimpleNamespace(monotonic=lambda: found.now, sleep=found.move, time=real_time.time)
    for module in TIMED:
        monkeypatch.setattr(f"{module}.time", time)
    return found


@pytest.fixture
def stop(clock):
    """A request to stop that moves the clock in place of waiting."""
    return HandStop(clock.move)
