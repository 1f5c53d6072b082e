"""One worker whose database is away, whose disk is full, or that stops inside a transaction."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.system.chaos.databases import PostgresServer
from tests.system.chaos.evidence import mistakes, overlaps, spans
from tests.system.chaos.processes import Member, worker
from tuner.core import lease
from tuner.core.cluster import parse_cluster
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import Limits, ProbeState, Question, Study, StudyState
from tuner.core.workload import Workload
from tuner.model import load_model
from tuner.store import Store, open_store

Join = Callable[[Member], Member]

pytestmark = pytest.mark.long

PROBES = 6
SLICES = 20
"""Short times at work, at least, that the ranks of a probe note."""
SCRIPT = {"*": [*["begin", "sleep:0.05", "end"] * SLICES, "ok"]}
AWAY_S = 6.0
LEASE_S = 6.0


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """Where ranks note when they are at work."""
    path = tmp_path / "notes"
    path.touch()
    return path


def ask(store: Store) -> Study:
    workload = Workload(model=load_model("stories15m"), sequence_length=128, global_batch_size=64)
    question = Question(
        workload=workload, cluster=parse_cluster("8xa100-80gb"), framework=framework("torch")
    )
    return store.ask(question, Limits(fidelity=Fidelity.EMULATED, tolerance=0.0, max_probes=PROBES))


def eventually(condition: Callable[[], object], seconds: float = 600.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it did not come to pass"
        time.sleep(0.05)


def ended(store: Store, study: Study) -> int:
    probes = store.study(study.id).at(Fidelity.EMULATED).probes
    return sum(probe.state is ProbeState.DONE for probe in probes)


def check(store: Store, study: Study, notes: Path) -> None:
    """Every probe has one result, and no two were at work on one GPU."""
    ran = store.study(study.id).at(Fidelity.EMULATED).probes
    outcomes = [probe.measurement.outcome for probe in ran if probe.measurement]
    assert len(outcomes) == PROBES
    assert set(outcomes) <= {Outcome.OK, Outcome.STOPPED_EARLY}
    assert mistakes(store) == []
    assert overlaps(notes) == []
    assert sum(map(len, spans(notes).values())) >= SLICES * PROBES


@contextmanager
def moved(folder: Path, process: psutil.Process) -> Iterator[None]:
    """The database's file, with its log."""
    other = folder / "other"
    other.mkdir()
    for path in folder.glob("studies.db*"):
        path.rename(other / path.name)
    yield
    assert not (folder / "studies.db").exists(), "nothing is made in its place"
    for path in other.iterdir():
        path.rename(folder / path.name)


@contextmanager
def full(folder: Path, process: psutil.Process) -> Iterator[None]:
    """No file of the worker's can grow beyond a page, its log and its probes' too."""
    before = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (4096, before[1]))
    yield
    process.rlimit(psutil.RLIMIT_FSIZE, before)


@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_FSIZE"), reason="limits of others are Linux's")
@pytest.mark.parametrize("trouble", [moved, full])
def test_a_worker_goes_on(tmp_path: Path, notes: Path, join: Join, trouble) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    with open_store(url) as store:
        study = ask(store)
    more = {"STAND_IN_GPUS": "GPU-a,GPU-b", "STAND_IN_NOTES": str(notes)}
    member = join(worker("worker", url, tmp_path, SCRIPT, **more))
    assert member.process is not None
    with open_store(url) as store:
        eventually(lambda: ended(store, study) >= 1)
    with trouble(tmp_path, psutil.Process(member.process.pid)):
        time.sleep(AWAY_S)
        assert not member.died(), member.log[-2000:]
    with open_store(url, create=False) as store:
        assert ended(store, study) < PROBES
        eventually(lambda: store.study(study.id).state is StudyState.DONE)
        assert member.end() == 0
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


@pytest.mark.xdist_group("postgresql")
@pytest.mark.parametrize("statement", ["INSERT INTO probes", "INSERT INTO measurements"])
def test_a_worker_that_stops_inside_a_transaction_holds_nobody_up(
    server: PostgresServer, tmp_path: Path, notes: Path, join: Join, monkeypatch, statement: str
) -> None:
    monkeypatch.setattr(lease, "LEASE_S", LEASE_S)
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(STOPS_INSIDE)
    variables = {
        "STAND_IN_NOTES": str(notes), "STAND_IN_LEASE_S": str(LEASE_S), "STAND_IN_GPUS": "GPU-a",
    }  # fmt: skip
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
        eventually(lambda: store.study(study.id).state is StudyState.DONE)
        sleeper.send(signal.SIGCONT)
        time.sleep(2.0)  # for anything that the sleeper may still do
        check(store, study, notes)
        assert sleeper.end() == 0
