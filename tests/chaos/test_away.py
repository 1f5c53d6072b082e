"""A worker whose database is away for a while, or whose disk is full: it goes on when it can."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psutil
import pytest

from tests.chaos.databases import PostgresServer
from tests.chaos.processes import Member, worker
from tests.chaos.studies import PROBES, SLICES, ask, check, eventually, is_done
from tuner.core.measurement import Fidelity
from tuner.core.study import ProbeState, Study
from tuner.store import Store, open_store

AWAY_S = 6.0
SCRIPT = {"*": [*["begin", "sleep:0.05", "end"] * SLICES, "ok"]}


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


def ended(store: Store, study: Study) -> int:
    probes = store.study(study.id).at(Fidelity.EMULATED).probes
    return sum(probe.state is ProbeState.DONE for probe in probes)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(psutil, "RLIMIT_FSIZE"), reason="limits of others are Linux's")
@pytest.mark.parametrize("trouble", [moved, full])
def test_a_worker_goes_on(
    tmp_path: Path,
    join: Callable[[Member], Member],
    trouble: Callable[[Path, psutil.Process], AbstractContextManager[None]],
) -> None:
    url = f"sqlite:///{tmp_path}/studies.db"
    notes = tmp_path / "notes"
    notes.touch()
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
        eventually(lambda: is_done(store, study))
        assert member.end() == 0
        check(store, study, notes)


@pytest.mark.slow
@pytest.mark.xdist_group("postgresql")
def test_a_worker_waits_for_a_server(
    server: PostgresServer, tmp_path: Path, join: Callable[[Member], Member]
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    more = {"STAND_IN_GPUS": "GPU-a", "STAND_IN_NOTES": str(notes)}
    with open_store(server.url) as store:
        study = ask(store)
        member = join(worker("worker", server.url, tmp_path, SCRIPT, **more))
        eventually(lambda: ended(store, study) >= 1)
        server.crash(AWAY_S)
        eventually(lambda: is_done(store, study))
        assert member.end() == 0
        check(store, study, notes)
        assert "; trying again" in member.log
