"""A worker that is stopped for two leases and woken, and clocks that are minutes apart."""

import os
import signal
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import psutil
import pytest

from tests.chaos.databases import Database, PostgresServer
from tests.chaos.evidence import left, mistakes, overlaps
from tests.chaos.processes import Member, worker
from tests.chaos.studies import PROBES, SLICES, ask, attempts, check, eventually, is_done
from tuner.core import lease
from tuner.core.measurement import Fidelity
from tuner.core.study import StudyState
from tuner.store import open_store
from tuner.store.tables import AttemptState

Join = Callable[[Member], Member]

LEASE_S = 6.0
"""Of every worker that is stopped, and of those that wait for its lease to run out."""
SKEW_S = 300
SLICE = ["begin", "sleep:0.05", "end"]
SCRIPT = {"*": ["ready", *SLICE * SLICES, "ok"]}
"""Ranks are at work for a second, and note it."""
SKEWED = """
import datetime, os, time
AHEAD_S = float(os.environ["STAND_IN_SKEW_S"])
real, real_ns = time.time, time.time_ns
time.time = lambda: real() + AHEAD_S
time.time_ns = lambda: real_ns() + int(AHEAD_S * 1e9)
class Moment(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(seconds=AHEAD_S)
    @classmethod
    def utcnow(cls):
        return super().utcnow() + datetime.timedelta(seconds=AHEAD_S)
datetime.datetime = Moment
with open(os.environ["STAND_IN_NOTES"] + ".clocks", "a") as file:
    print(round(datetime.datetime.now().timestamp() - real()), file=file)
"""
"""A clock that is wrong, for all Python code of a process and of those that it starts."""


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where ranks note when they are at work."""
    path = tmp_path / "notes"
    path.touch()
    return path


@pytest.fixture
def variables(notes: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Of workers, whose leases are short."""
    monkeypatch.setattr(lease, "LEASE_S", LEASE_S)
    return {"STAND_IN_NOTES": str(notes), "STAND_IN_LEASE_S": str(LEASE_S)}


@pytest.mark.slow
def test_a_worker_that_sleeps_for_two_leases_doubles_nothing(
    database: Database, tmp_path: Path, notes: Path, variables: dict[str, str], join: Join
) -> None:
    """Both see the same GPU, and not each other's locks: only the database is between them."""
    variables["STAND_IN_GPUS"] = "GPU-a"
    with open_store(database.url) as store:
        study = ask(store)
        sleeper = worker("sleeper", database.url, tmp_path, SCRIPT, machine="one", **variables)
        join(sleeper)
        eventually(lambda: list((tmp_path / "one").glob("*/*/ready-*")))
        sleeper.send(signal.SIGSTOP)
        until = time.monotonic() + 2 * LEASE_S
        before = attempts(store, AttemptState.LOST)
        join(worker("other", database.url, tmp_path, SCRIPT, machine="two", **variables))
        eventually(lambda: attempts(store, AttemptState.LOST) == before + 1)
        assert store.study(study.id).state is StudyState.RUNNING
        time.sleep(max(0.0, until - time.monotonic()))
        sleeper.send(signal.SIGCONT)
        eventually(lambda: is_done(store, study))
        time.sleep(1.0)  # for anything that the sleeper may still do
        check(store, study, notes)


# A worker stops as soon as it has sent a statement: it has a transaction open, and rows locked.
STOPS_INSIDE = """
import os, signal
from sqlalchemy import Engine, event
def stop(connection, cursor, statement, *rest):
    if os.environ["STAND_IN_STOP_AT"] in statement and os.environ.pop("STAND_IN_STOPS", None):
        os.kill(os.getpid(), signal.SIGSTOP)
event.listen(Engine, "after_cursor_execute", stop)
"""


@pytest.mark.slow
@pytest.mark.xdist_group("postgresql")
@pytest.mark.parametrize("statement", ["INSERT INTO probes", "INSERT INTO measurements"])
def test_a_worker_that_stops_inside_a_transaction_holds_nobody_up(
    server: PostgresServer,
    tmp_path: Path,
    notes: Path,
    variables: dict[str, str],
    join: Join,
    statement: str,
) -> None:
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(STOPS_INSIDE)
    variables["STAND_IN_GPUS"] = "GPU-a"
    with open_store(server.url) as store:
        study = ask(store)
        sleeper = worker("sleeper", server.url, tmp_path, SCRIPT, machine="one", **variables)
        sleeper.environment = {
            **sleeper.environment, "STAND_IN_STOPS": "1", "STAND_IN_STOP_AT": statement,
            "PYTHONPATH": f"{hook}{os.pathsep}{sleeper.environment['PYTHONPATH']}",
        }  # fmt: skip
        join(sleeper)
        assert sleeper.process is not None
        process = psutil.Process(sleeper.process.pid)
        eventually(lambda: process.status() == psutil.STATUS_STOPPED)
        join(worker("other", server.url, tmp_path, SCRIPT, machine="two", **variables))
        eventually(lambda: is_done(store, study))
        sleeper.send(signal.SIGCONT)
        time.sleep(2.0)  # for anything that the sleeper may still do
        check(store, study, notes)
        assert sleeper.end() == 0


@pytest.mark.slow
@pytest.mark.xdist_group("postgresql")
def test_clocks_that_are_minutes_apart_change_nothing(
    server: PostgresServer, tmp_path: Path, notes: Path, variables: dict[str, str], join: Join
) -> None:
    """One worker's clock is five minutes ahead, one's behind; one of them is killed."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(SKEWED)
    del variables["STAND_IN_LEASE_S"]  # nobody waits for one to run out: the usual one
    members = []
    with open_store(server.url) as store:
        studies = [ask(store, batch, wall_s=600.0) for batch in (64, 128)]
        # a GPU each, or the one that is up first might leave the other nothing to do
        for name, skew_s, gpu in (("ahead", SKEW_S, "GPU-a"), ("behind", -SKEW_S, "GPU-b")):
            member = worker(name, server.url, tmp_path, SCRIPT, machine=name, **variables)
            path = f"{hook}{os.pathsep}{member.environment['PYTHONPATH']}"
            skew = {"PYTHONPATH": path, "STAND_IN_SKEW_S": str(skew_s), "STAND_IN_GPUS": gpu}
            member.environment = {**member.environment, **skew}
            members.append(join(member))
        for member in members:
            eventually(lambda: list((tmp_path / member.name).glob("*/*/ready-*")))  # noqa: B023
        ahead = members[0]
        ahead.kill()
        ahead.start()
        eventually(lambda: all(is_done(store, study) for study in studies))
        for study in studies:
            found = store.study(study.id)
            asked = datetime.fromisoformat(found.asked_at)
            told = [datetime.fromisoformat(event.at) for event in store.events(study.id)]
            assert told == sorted(told)
            assert all(timedelta() <= at - asked < timedelta(seconds=SKEW_S) for at in told)
            assert len(found.at(Fidelity.EMULATED).probes) == PROBES
        assert mistakes(store) == []
        assert overlaps(notes) == []
        assert attempts(store, AttemptState.LOST) <= 2  # those of the worker that was killed
        assert [member.end() for member in members] == [0, 0]
        assert left(tmp_path) == []
    clocks = notes.with_name("notes.clocks").read_text().split()
    assert {int(ahead_s) for ahead_s in clocks} == {SKEW_S, -SKEW_S}
