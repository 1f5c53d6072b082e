"""Services as processes, with stand-ins for ranks and for the program that dry-runs."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from tuner.core.cluster import parse_cluster
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import Limits, ProbeState, Question, Study, StudyState
from tuner.store import Store
from tuner.store.tables import AttemptRow, ProbeRow
from tuner.store.workers import Workers
from workers.worker import INTERRUPTED

STAND_IN_DRY = Path(__file__).parent / "stand_in_dry.py"
STAND_IN_WORKER = Path(__file__).parent / "stand_in_worker.py"
OK = {"*": ["ok"]}
GPUS = ("GPU-a", "GPU-b", "GPU-c")


def on(question: Question, cluster: str, batch: int = 4) -> Question:
    workload = replace(question.workload, global_batch_size=batch)
    return replace(question, workload=workload, cluster=parse_cluster(cluster))


def outcomes(study: Study, fidelity: Fidelity) -> list[Outcome | None]:
    return [p.measurement and p.measurement.outcome for p in study.at(fidelity).probes]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """What ranks have noted, in order; on a machine with GPUs that are made up."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("STAND_IN_NOTES", str(path))
    monkeypatch.setenv("STAND_IN_GPUS", ",".join(GPUS))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def start(
    store: Store, tmp_path: Path, notes: object
) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a service: ``start("--serve", script)``; machines have their own folder and locks."""
    started: list[subprocess.Popen[str]] = []

    def run(how: str, script: Any, machine: str = "probes") -> subprocess.Popen[str]:
        words = (store.url, how, str(tmp_path / machine), json.dumps(script))
        argv = [sys.executable, "-P", str(STAND_IN_WORKER), *words]
        process = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield run
    for process in started:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def emulated(store: Store, question: Question, batch: int = 64, **limits: Any) -> Study:
    wanted = {"tolerance": 0.0, "max_probes": 5, **limits}
    asked = on(question, "8xa100-80gb", batch)
    return store.ask(asked, Limits(fidelity=Fidelity.EMULATED, **wanted))


def spans(found: list[dict[str, Any]]) -> dict[str, list[tuple[float, float]]]:
    """When ranks were at work on each GPU."""
    began: dict[int, float] = {}
    ends: dict[str, list[tuple[float, float]]] = {}
    for note in found:
        if note["what"] == "begin":
            began[note["pid"]] = note["at"]
        else:
            ends.setdefault(note["gpu"], []).append((began.pop(note["pid"]), note["at"]))
    return ends


def overlapping(own: list[tuple[float, float]]) -> bool:
    ordered = sorted(own)
    return any(one[1] > later[0] for one, later in pairwise(ordered))


def test_services_of_one_machine_share_its_gpus(store, question, start, notes, tmp_path) -> None:
    """Two workers, two studies: every probe once, and never two on one GPU."""
    asked = [emulated(store, question, batch).id for batch in (32, 64)]
    script = {"*": ["begin", "sleep:0.1", "ok", "end"]}
    workers = [start("--drain", script) for _ in range(2)]
    assert [worker.wait(240) for worker in workers] == [0, 0]
    found = [store.study(name) for name in asked]
    assert [study.state for study in found] == [StudyState.DONE] * 2
    for study in found:
        assert outcomes(study, Fidelity.EMULATED) == [Outcome.OK] * 5
    by_gpu = spans(notes())
    assert sum(map(len, by_gpu.values())) == 10
    assert not any(map(overlapping, by_gpu.values()))
    assert not list((tmp_path / "probes").iterdir())


def test_a_signal_gives_probes_back_and_says_that_the_worker_has_stopped(
    store, question, start, tmp_path, eventually, alive
) -> None:
    study = emulated(store, question)
    worker = start("--serve", {"*": ["ready", "hang"]})
    eventually(lambda: len(list((tmp_path / "probes").glob("*/*/ready-*"))) == 3)
    assert len(Workers(store.transactions).living()) == 1
    worker.send_signal(signal.SIGINT)
    assert worker.wait(60) == INTERRUPTED
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.QUEUED, "interrupted")
    assert {p.state for p in study.at(Fidelity.EMULATED).probes} == {ProbeState.QUEUED}
    assert Workers(store.transactions).living() == []
    assert not alive(str(tmp_path))


@pytest.mark.long
def test_a_stopped_workers_ranks_end_before_its_probe_is_anothers(
    store, question, start, notes, tmp_path, eventually, alive, monkeypatch
) -> None:
    """It sleeps for two leases. Its devices are used again, its probe has one result."""
    monkeypatch.setenv("STAND_IN_GPUS", "GPU-a")
    for lease_s in (6.0, 20.0, 60.0):  # until nothing else holds it up for so long
        monkeypatch.setenv("STAND_IN_LEASE_S", str(lease_s))
        study = emulated(store, question, batch=8 * int(lease_s), max_probes=1)
        machine = tmp_path / f"machine-{lease_s:.0f}"
        sleeper = start("--serve", {"*": ["ready", "tick"]}, machine.name)
        eventually(lambda: list(machine.glob("*/*/ready-*")))  # noqa: B023
        sleeper.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        if attempts(store, study) == ["running"]:
            break
        sleeper.kill()
        eventually(lambda: not alive(str(machine)))  # noqa: B023
        store.move(study.id, StudyState.CANCELLED)
        (tmp_path / "notes").write_text("")
    other = start("--drain", {"*": ["begin", "sleep:0.2", "ok", "end"]}, "other-machine")
    assert other.wait(240) == 0
    time.sleep(max(0.0, began + 2 * lease_s - time.monotonic()))
    study = store.study(study.id)
    assert outcomes(study, Fidelity.EMULATED) == [Outcome.OK]
    pids = dict.fromkeys(note["pid"] for note in notes())
    assert len(pids) == 2  # the sleeper's rank, and the other's
    last, first = ([n["at"] for n in notes() if n["pid"] == pid] for pid in pids)
    assert max(last) < min(first)
    assert not psutil.pid_exists(next(iter(pids))) or is_zombie(next(iter(pids)))
    sleeper.send_signal(signal.SIGCONT)
    eventually(lambda: "lost" in attempts(store, study))
    time.sleep(0.5)
    after = store.study(study.id)
    assert after.probes == study.probes
    assert sleeper.poll() is None  # it goes on serving
    sleeper.send_signal(signal.SIGTERM)
    assert sleeper.wait(60) == 0


def is_zombie(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def attempts(store: Store, study: Study) -> list[str]:
    """The state of each attempt."""
    with store.transactions.read() as session:
        rows = select(AttemptRow.state).join(ProbeRow, ProbeRow.id == AttemptRow.probe_id)
        return [str(state) for state in session.scalars(rows.where(ProbeRow.study_id == study.id))]
