"""What becomes of a probe when its nodes, its step or its allocation end; ranks are stand-ins."""

import re
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.questions import question_about
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import Limits, ProbeRequest, ProbeState, StudyState
from tuner.errors import ProbeError
from workers.executor import WorkerOptions
from workers.launchers import slurm
from workers.launchers.base import Why
from workers.launchers.slurm import slurm_site
from workers.stop import StopRequest
from workers.worker import INTERRUPTED, Worker

HANG = {"*": ["say:ready", "hang"]}


@pytest.fixture
def study(store):
    """One probe of two nodes is queued."""
    question = question_about("stories15m", "2x1xcpu", tokens=64, batch=4)
    study = store.ask(question, Limits())
    settings = Settings(micro_batch_size=1, gradient_accumulation_steps=2)
    request = ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED)
    assert store.enter_probe(study.id, study.revision, request, 10**9)
    return study


@pytest.fixture
def working(allocate, store, study, tmp_path, stand_in_argv, eventually):
    """A worker in a thread in an allocation, whose ranks hang, when all are ready."""

    @contextmanager
    def work():
        job, stop, folder, codes = allocate(), StopRequest(), tmp_path / "shared", list[int]()

        def join():
            thread.join(200.0)
            assert not thread.is_alive()
            return store.study(study.id)

        def ready():
            logs = [path.read_text() for path in folder.glob("*/rank-*.log")]
            return len(logs) == 2 and all("ready" in text for text in logs)

        with slurm_site(stop, folder, poll_s=0.5) as site:
            options = WorkerOptions(
                site=site, folder=folder, argv=lambda out: stand_in_argv(out, HANG),
                queued_only=True, guards=False, deadline_s=300,
            )  # fmt: skip
            worker = Worker(store, study.id, stop=stop, options=options)
            thread = threading.Thread(target=lambda: codes.append(worker.run()))
            thread.start()
            try:
                eventually(ready, 120.0)
                yield SimpleNamespace(job=job, stop=stop, codes=codes, join=join)
            finally:
                stop.request("the test is over")
                thread.join()

    return work


def probe_of(study):
    (probe,) = study.probes
    return probe.state, probe.measurement and probe.measurement.outcome


def test_a_node_that_goes_down_is_a_lost_device_and_ends_the_worker(
    working, in_slurm, alive, tmp_path
):
    with working() as work:
        in_slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        study = work.join()
    assert work.codes == [INTERRUPTED]
    assert study.state is StudyState.QUEUED
    assert probe_of(study)[0] is ProbeState.QUEUED, "for others, or for later"
    assert "node n2 of Slurm job" in work.stop.wait(0)
    assert "1 of the 2 needed are left" in work.stop.wait(0)
    assert not alive(str(tmp_path / "shared"))


@pytest.mark.long
def test_a_step_that_is_cancelled_is_an_accident_that_happens_twice_at_most(
    working, in_slurm, eventually
):
    def steps():
        found = in_slurm.run("squeue", "-h", "-s", "-o", "%i %j").splitlines()
        return [line.split()[0] for line in found if "tuner-probe" in line]

    with working() as work:
        (first,) = steps()
        in_slurm.run("scancel", first)
        eventually(lambda: steps() not in ([], [first]))
        (second,) = steps()
        in_slurm.run("scancel", second)
        study = work.join()
    assert work.codes == [0]
    assert probe_of(study) == (ProbeState.DONE, Outcome.CRASHED)
    assert "the Slurm step was ended from outside" in study.probes[0].measurement.detail


@pytest.mark.parametrize(
    "command", [("scancel",), pytest.param(("scontrol", "requeue"), marks=pytest.mark.long)]
)
def test_a_job_that_is_cancelled_or_queued_again_gives_its_probe_back(
    working, in_slurm, alive, tmp_path, command
):
    with working() as work:
        in_slurm.run(*command, work.job)
        study = work.join()
    assert work.codes == [INTERRUPTED]
    assert study.state is StudyState.QUEUED
    assert probe_of(study) == (ProbeState.QUEUED, None)
    assert re.fullmatch(r"Slurm job \d+ is (COMPLETING|CANCELLED|PENDING)", work.stop.wait(0))
    assert not alive(str(tmp_path / "shared"))


@pytest.mark.long
def test_no_probe_is_begun_that_could_not_end_in_time(
    allocate, store, study, tmp_path, monkeypatch
):
    allocate("--time=5")
    stop = StopRequest()
    with slurm_site(stop, tmp_path, poll_s=0.5) as site:
        monkeypatch.setattr(slurm, "LEAVE_S", slurm.LEAVE_S + site.left_s - 25.0)
        options = WorkerOptions(site=site, folder=tmp_path, queued_only=True)
        assert Worker(store, study.id, stop=stop, options=options).run() == INTERRUPTED
    assert stop.wait(0).endswith("ends before another probe could")


@pytest.mark.long
def test_a_node_without_power_is_found_out_by_slurm(
    inside, in_slurm, make_job, alive, eventually, tmp_path
):
    run = inside.launcher.start(make_job(HANG, nodes=2, deadline_s=300.0))
    eventually(lambda: run.poll() or all("ready" in text for text in run.logs().values()))
    in_slurm.cut_power("n2")
    while (ended := run.poll()) is None:
        time.sleep(0.05)
    assert ended.why is Why.NODE_LOST, ended
    assert ended.detail == f"node n2 of Slurm job {inside.job} went down"
    assert [end.stopped for end in ended.ranks] == [True, True]
    assert not alive(str(tmp_path))


def test_more_nodes_than_there_are(inside, make_job):
    with pytest.raises(ProbeError, match=r"3 nodes are needed, and 2 of Slurm job .* are up"):
        inside.launcher.start(make_job(HANG, ranks=3, nodes=3))


@pytest.mark.long
def test_a_folder_that_a_node_does_not_see(allocate, tmp_path, monkeypatch):
    """It is gone by the time the nodes look for it."""
    allocate()
    made = tmp_path / "elsewhere"
    monkeypatch.setattr("workers.launchers.slurm.make_folder", lambda *_: made)
    with (
        pytest.raises(ProbeError, match=r"n1, n2 of Slurm job .* does not see .*--probes"),
        slurm_site(StopRequest(), tmp_path),
    ):
        pass


def test_what_the_nodes_have_is_found_on_them(allocate, tmp_path):
    allocate()
    with slurm_site(StopRequest(), tmp_path) as site:
        first, second = site.machines()
        assert first == second
        assert first.cores > 0
        assert [device.name.endswith("/cpu") for device in site.devices()] == [True]
        assert 0 < site.left_s < 3600
    assert list(tmp_path.iterdir()) == []
