"""A worker that serves studies, with stand-ins for ranks and for the program that dry-runs."""

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import select

from tuner.answering.known import best_known
from tuner.cluster import parse_cluster
from tuner.dryrun import DryRunner
from tuner.errors import ProbeError, UsageError
from tuner.measurement import Fidelity, Outcome
from tuner.planner import next_probe
from tuner.store import Store, WorkerIdentity
from tuner.store.tables import AttemptRow, ProbeRow
from tuner.store.workers import Workers
from tuner.study import ProbeState, Question, Study, StudyState, Terms
from workers import service as service_module
from workers import slot as slot_module
from workers.options import Options
from workers.service import Service, Until, wants_dry_runs
from workers.stop import StopRequest
from workers.worker import INTERRUPTED

STAND_IN_DRY = Path(__file__).parent / "stand_in_dry.py"
STAND_IN_WORKER = Path(__file__).parent / "stand_in_worker.py"
OK = {"*": ["ok"]}
GPUS = ("GPU-a", "GPU-b", "GPU-c")


@pytest.fixture
def serve(
    store: Store, tmp_path: Path, stand_in_argv: Callable[..., tuple[str, ...]]
) -> Callable[..., int]:
    """Serve in this process until nothing is left; the exit code."""
    command = (sys.executable, "-P", str(STAND_IN_DRY), "ok", str(tmp_path))

    def run(*, script: Any = OK, stop: StopRequest | None = None, **more: Any) -> int:
        options = Options(
            folder=tmp_path / "probes",
            lock=tmp_path / "probes.lock",
            argv=lambda out: stand_in_argv(out, script),
            dry_runner=partial(DryRunner, command=command, limit_s=20.0),
            guards=False,
        )
        known = {"until": Until.DRAINED, "options": options, **more}
        return Service(store, stop=stop or StopRequest(), **known).run()

    return run


def on(question: Question, cluster: str, batch: int = 4) -> Question:
    workload = replace(question.workload, global_batch_size=batch)
    return replace(question, workload=workload, cluster=parse_cluster(cluster))


def outcomes(study: Study, fidelity: Fidelity) -> list[Outcome | None]:
    return [p.measurement and p.measurement.outcome for p in study.at(fidelity).probes]


def test_it_does_what_it_can_and_leaves_the_rest(store, question, serve, caplog) -> None:
    caplog.set_level("INFO", logger="workers")
    here = store.ask(on(question, "cpu:2"), Terms(max_probes=2)).id
    predicted = Terms(fidelity=Fidelity.PREDICTED, max_probes=2)
    anywhere = store.ask(on(question, "8xa100-80gb"), predicted).id
    elsewhere = store.ask(on(question, "4xh100-80gb"), Terms()).id
    others = store.ask(on(question, "cpu:2", 8), Terms(pool="h100")).id
    assert serve() == 0
    found = {name: store.study(name) for name in (here, anywhere, elsewhere, others)}
    assert found[here].state is found[anywhere].state is StudyState.DONE
    assert outcomes(found[here], Fidelity.MEASURED) == [Outcome.OK] * 2
    assert found[elsewhere].state is found[others].state is StudyState.QUEUED
    assert not found[others].probes
    told = [r.getMessage() for r in caplog.records if "left to other workers" in r.getMessage()]
    assert len(told) == 1
    assert "4xh100-80gb is asked about" in told[0]


def test_a_study_that_nobody_can_probe_has_its_prediction(store, question, serve) -> None:
    study = store.ask(on(question, "4xh100-80gb"), Terms())
    assert best_known(study) is None
    assert wants_dry_runs(study)
    assert serve() == 0
    study = store.study(study.id)
    assert study.state is StudyState.QUEUED
    assert not study.at(Fidelity.MEASURED).probes
    found = best_known(study)
    assert found is not None
    assert found.best is not None
    assert not wants_dry_runs(study)


def test_a_pool_is_served_beside_what_names_none(store, question, serve) -> None:
    predicted = partial(Terms, fidelity=Fidelity.PREDICTED, max_probes=1)
    asked = [
        store.ask(on(question, "8xa100-80gb", 4 * n), predicted(pool=pool)).id
        for n, pool in enumerate(("", "h100", "a100"), start=1)
    ]
    assert serve(pools=("h100", "b200")) == 0
    states = [store.study(name).state for name in asked]
    assert states == [StudyState.DONE, StudyState.DONE, StudyState.QUEUED]


def test_a_label_that_is_none(store, serve) -> None:
    with pytest.raises(UsageError, match="pool"):
        serve(pools=("no spaces",))


def test_once_is_the_study_that_was_asked_first(store, question, serve) -> None:
    first = store.ask(on(question, "cpu:2"), Terms(max_probes=2)).id
    second = store.ask(on(question, "cpu:2", 8), Terms(max_probes=2)).id
    assert serve(until=Until.ONCE) == 0
    assert store.study(first).state is StudyState.DONE
    assert not store.study(second).probes
    assert serve(until=Until.ONCE) == 0
    assert store.study(second).state is StudyState.DONE
    assert serve(until=Until.ONCE) == 0  # none is open


def test_it_is_registered_while_it_serves(store, question, serve, monkeypatch) -> None:
    seen: list[Any] = []
    check = service_module.check_machine

    def noted(*given: Any) -> bool:
        seen.extend(Workers(store.transactions).living())
        return check(*given)

    monkeypatch.setattr(service_module, "check_machine", noted)
    store.ask(on(question, "cpu:2"), Terms(max_probes=1))
    assert serve(name="w1", pools=("cpus",)) == 0
    assert {(one.name, one.pools) for one in seen} == {("w1", ("cpus",))}
    assert Workers(store.transactions).living() == []


def test_a_trouble_of_this_machine_queues_the_study_again(
    store, question, serve, monkeypatch
) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise ProbeError("cannot make a folder for a probe")

    monkeypatch.setattr(slot_module, "measure", fail)
    study = store.ask(on(question, "cpu:2"), Terms(max_probes=1))
    assert serve(until=Until.ONCE) == 0
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.QUEUED, "cannot make a folder for a probe")


def test_what_waits_for_another_worker_is_left_for_the_next_study(store, question, serve) -> None:
    """The first study's only probe is another worker's, which lives and does nothing."""
    first = store.ask(on(question, "cpu:2"), Terms(max_probes=1))
    second = store.ask(on(question, "cpu:2", 8), Terms(max_probes=1))
    other = WorkerIdentity.of_this_process("other")
    stop = StopRequest()
    claimed: list[Any] = []
    claim = store.claim

    def end_when_done() -> None:
        while store.study(second.id).state is not StudyState.DONE:
            time.sleep(0.05)
        store.give_back(claimed[0], "by a test")  # now it is this worker's

    plan = next_probe(first)
    assert store.enter_probe(first.id, first.revision, plan, 10**12)  # type: ignore[arg-type]
    claimed.append(claim(first.id, other, Fidelity.MEASURED))
    waiter = threading.Thread(target=end_when_done, daemon=True)
    waiter.start()
    assert serve(stop=stop) == 0
    waiter.join(60)
    assert store.study(first.id).state is store.study(second.id).state is StudyState.DONE


# -- services as processes --------------------------------------------------------------------


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


def emulated(store: Store, question: Question, batch: int = 64, **terms: Any) -> Study:
    wanted = {"tolerance": 0.0, "max_probes": 5, **terms}
    asked = on(question, "8xa100-80gb", batch)
    return store.ask(asked, Terms(fidelity=Fidelity.EMULATED, **wanted))


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, INTERRUPTED)])
def test_a_signal_gives_probes_back_and_says_that_the_worker_has_stopped(
    store, question, start, tmp_path, eventually, alive, number, code
) -> None:
    study = emulated(store, question)
    worker = start("--serve", {"*": ["ready", "hang"]})
    eventually(lambda: len(list((tmp_path / "probes").glob("*/*/ready-*"))) == 3)
    assert len(Workers(store.transactions).living()) == 1
    worker.send_signal(number)
    assert worker.wait(60) == code
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.QUEUED, "interrupted")
    assert {p.state for p in study.at(Fidelity.EMULATED).probes} == {ProbeState.QUEUED}
    assert Workers(store.transactions).living() == []
    assert not alive(str(tmp_path))


def test_a_service_with_nothing_to_do_ends_at_once_when_told(start, eventually, store) -> None:
    worker = start("--serve", OK)
    eventually(lambda: Workers(store.transactions).living())
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0


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
