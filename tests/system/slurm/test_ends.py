"""What becomes of a probe when its nodes, its step or its allocation end; ranks are stand-ins."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.system.slurm.cluster import SlurmCluster
from tests.system.slurm.conftest import Allocate
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import framework
from tuner.core.measurement import Fidelity, Outcome
from tuner.core.study import (
    Limits,
    ProbeRequest,
    ProbeState,
    Question,
    Study,
    StudyState,
)
from tuner.core.workload import Workload
from tuner.errors import ProbeError
from tuner.model import load_model
from tuner.store import Store
from workers.executor import WorkerOptions
from workers.launchers import slurm, slurm_watch
from workers.launchers import slurm_site as slurm_site_module
from workers.launchers.base import Why
from workers.launchers.site import Facts
from workers.launchers.slurm_site import SlurmSite, slurm_site
from workers.launchers.slurm_watch import job_state, node_states
from workers.stop import StopRequest
from workers.worker import INTERRUPTED, Worker

HANG = {"*": ["say:ready", "hang"]}


@pytest.fixture
def study(store: Store) -> Study:
    """One probe of two nodes is queued."""
    return queued(store, "2x1xcpu")


def queued(store: Store, cluster: str) -> Study:
    """A study whose one probe is queued."""
    workload = Workload(model=load_model("stories15m"), sequence_length=64, global_batch_size=4)
    question = Question(
        workload=workload, cluster=parse_cluster(cluster), framework=framework("torch")
    )
    study = store.ask(question, Limits())
    steps = 4 // question.cluster.world_size
    settings = Settings(micro_batch_size=1, gradient_accumulation_steps=steps)
    request = ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED)
    assert store.enter_probe(study.id, study.revision, request, 10**9)
    return study


class Working:
    """A worker in a thread, in an allocation."""

    def __init__(self, store: Store, study: Study, site: SlurmSite, stop: StopRequest) -> None:
        self.site, self.stop, self.codes = site, stop, list[int]()
        self._store, self._study = store, study
        self._thread: threading.Thread | None = None

    def start(self, folder: Path, argv: Callable[[Path], tuple[str, ...]]) -> None:
        options = WorkerOptions(
            site=self.site, folder=folder, argv=argv, queued_only=True, guards=False, deadline_s=300
        )
        worker = Worker(self._store, self._study.id, stop=self.stop, options=options)
        self._thread = threading.Thread(target=lambda: self.codes.append(worker.run()))
        self._thread.start()

    def join(self, seconds: float = 200.0) -> Study:
        """Wait for its end; the study afterwards."""
        assert self._thread is not None
        self._thread.join(seconds)
        assert not self._thread.is_alive()
        return self._store.study(self._study.id)

    def end(self) -> None:
        self.stop.request("the test is over")
        if self._thread is not None:
            self._thread.join()


@pytest.fixture
def working(
    allocate: Allocate, store: Store, study: Study, tmp_path: Path, stand_in_argv, eventually
) -> Iterator[Callable[..., Working]]:
    """A worker in an allocation whose ranks do what a script says, when all are ready."""

    @contextmanager
    def work(script: dict[str, list[str]], *options: str) -> Iterator[Working]:
        allocate(*options)
        stop, folder = StopRequest(), tmp_path / "shared"
        with slurm_site(stop, folder, poll_s=0.5) as site:
            working = Working(store, study, site, stop)
            try:
                working.start(folder, lambda out: stand_in_argv(out, script))
                eventually(lambda: ready(folder), 120.0)
                yield working
            finally:
                working.end()

    return work


def ready(folder: Path) -> bool:
    found = logs(folder)
    return len(found) == 2 and all("ready" in text for text in found)


def logs(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.glob("*/rank-*.log")]


def probe_of(study: Study) -> tuple[ProbeState, Outcome | None]:
    (probe,) = study.probes
    return probe.state, probe.measurement and probe.measurement.outcome


def steps(slurm: SlurmCluster) -> list[str]:
    """The steps of probes that run."""
    found = slurm.run("squeue", "-h", "-s", "-o", "%i %j").splitlines()
    return [line.split()[0] for line in found if "tuner-probe" in line]


def test_a_node_that_goes_down_is_a_lost_device_and_ends_the_worker(
    working, in_slurm: SlurmCluster, alive, tmp_path: Path
) -> None:
    with working(HANG) as work:
        in_slurm.run("scontrol", "update", "nodename=n2", "state=down", "reason=test")
        study = work.join()
    assert work.codes == [INTERRUPTED]
    assert study.state is StudyState.QUEUED
    assert probe_of(study)[0] is ProbeState.QUEUED, "for others, or for later"
    assert "node n2 of Slurm job" in work.stop.wait(0)
    assert "1 of the 2 needed are left" in work.stop.wait(0)
    assert not alive(str(tmp_path / "shared"))


@pytest.mark.long
def test_where_a_node_is_left_over_it_takes_the_place_of_one_that_went_down(
    allocate: Allocate,
    in_slurm: SlurmCluster,
    store: Store,
    tmp_path: Path,
    stand_in_argv,
    eventually,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    find = slurm_site_module.facts_of

    def facts_of(*of: Any) -> dict[str, Facts]:  # both nodes are of this machine
        return {name: replace(one, cores=f"{name}/cpu") for name, one in find(*of).items()}

    monkeypatch.setattr(slurm_site_module, "facts_of", facts_of)
    study, stop, folder = queued(store, "cpu:1"), StopRequest(), tmp_path / "shared"
    script = dict(HANG)
    allocate(script=False)
    with slurm_site(stop, folder, poll_s=0.5) as site:
        work = Working(store, study, site, stop)
        try:
            work.start(folder, lambda out: stand_in_argv(out, script))
            eventually(lambda: any("ready" in log for log in logs(folder)), 120.0)
            script["*"] = ["ok"]
            in_slurm.run("scontrol", "update", "nodename=n1", "state=down", "reason=test")
            study = work.join()
        finally:
            work.end()
    assert work.codes == [0], stop.wait(0)
    assert probe_of(study) == (ProbeState.DONE, Outcome.OK)
    told = [event.data for event in store.events(study.id)]
    assert [one["outcome"] for one in told if "outcome" in one] == ["device_lost", "ok"]


@pytest.mark.long
def test_a_step_that_is_cancelled_is_an_accident_that_happens_twice_at_most(
    working, in_slurm: SlurmCluster, eventually, tmp_path: Path
) -> None:
    with working(HANG) as work:
        (first,) = steps(in_slurm)
        in_slurm.run("scancel", first)
        eventually(lambda: steps(in_slurm) not in ([], [first]))
        eventually(lambda: ready(tmp_path / "shared"))
        (second,) = steps(in_slurm)
        in_slurm.run("scancel", second)
        study = work.join()
    assert work.codes == [0]
    assert probe_of(study) == (ProbeState.DONE, Outcome.CRASHED)
    assert "the Slurm step was ended from outside" in study.probes[0].measurement.detail


@pytest.mark.parametrize(
    "command", [("scancel",), pytest.param(("scontrol", "requeue"), marks=pytest.mark.long)]
)
def test_a_job_that_is_cancelled_or_queued_again_gives_its_probe_back(
    working, in_slurm: SlurmCluster, alive, tmp_path: Path, command: tuple[str, ...]
) -> None:
    with working(HANG) as work:
        in_slurm.run(*command, work.site.name.split()[-1])
        study = work.join()
    assert work.codes == [INTERRUPTED]
    assert study.state is StudyState.QUEUED
    assert probe_of(study) == (ProbeState.QUEUED, None)
    assert re.fullmatch(r"Slurm job \d+ is (COMPLETING|CANCELLED|PENDING)", work.stop.wait(0))
    assert not alive(str(tmp_path / "shared"))


@pytest.mark.long
def test_a_worker_leaves_before_the_time_of_its_allocation_is_over(
    working, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_watch, "LEAVE_S", 15.0)
    monkeypatch.setattr("workers.worker.PROBE_S", 5.0)
    with working(HANG, "--time=4:30") as work:  # which Slurm rounds up to five minutes
        in_time = work.site.left_s
        slurm_watch.LEAVE_S += in_time - 3.0
        study = work.join()
    assert probe_of(study) == (ProbeState.QUEUED, None)
    assert study.state is StudyState.QUEUED
    assert work.stop.wait(0).endswith("is nearly over")


@pytest.mark.long
def test_no_probe_is_begun_that_could_not_end_in_time(
    allocate: Allocate, store: Store, study: Study, tmp_path: Path, monkeypatch
) -> None:
    allocate("--time=5")
    stop = StopRequest()
    with slurm_site(stop, tmp_path, poll_s=0.5) as site:
        monkeypatch.setattr(slurm_watch, "LEAVE_S", slurm_watch.LEAVE_S + site.left_s - 25.0)
        options = WorkerOptions(site=site, folder=tmp_path, queued_only=True)
        assert Worker(store, study.id, stop=stop, options=options).run() == INTERRUPTED
    assert stop.wait(0).endswith("ends before another probe could")
    assert not store.events(study.id) or probe_of(store.study(study.id)) == (
        ProbeState.QUEUED,
        None,
    )


@pytest.mark.long
def test_a_node_without_power_is_found_out_by_slurm(
    inside: SimpleNamespace, in_slurm: SlurmCluster, make_job, alive, eventually, tmp_path: Path
) -> None:
    run = inside.launcher.start(make_job(HANG, nodes=2, deadline_s=300.0))
    eventually(lambda: run.poll() or all("ready" in text for text in run.logs().values()))
    in_slurm.cut_power("n2")
    while (ended := run.poll()) is None:
        time.sleep(0.05)
    assert ended.why is Why.NODE_LOST, ended
    assert ended.detail == f"node n2 of Slurm job {inside.job} went down"
    assert [end.stopped for end in ended.ranks] == [True, True]
    assert "1 of the 2 needed are left" in inside.stop.wait(0)
    assert not alive(str(tmp_path))


def test_more_nodes_than_there_are(inside: SimpleNamespace, make_job) -> None:
    with pytest.raises(ProbeError, match=r"3 nodes are needed, and 2 of Slurm job .* are up"):
        inside.launcher.start(make_job(HANG, ranks=3, nodes=3))


@pytest.mark.long
def test_a_step_that_cannot_be_started(
    inside: SimpleNamespace, make_job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "PYTHON", "/nonexistent/python")
    run = inside.launcher.start(make_job(HANG, nodes=2))
    with pytest.raises(ProbeError, match=r"srun could not start the ranks: .*nonexistent"):
        while run.poll() is None:
            time.sleep(0.05)
    run.cancel()


@pytest.mark.long
def test_a_step_that_waits_says_nothing_of_what_it_was_to_run(
    inside: SimpleNamespace, make_job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "START_S", 0.0)
    run = inside.launcher.start(make_job(HANG, nodes=2, deadline_s=0.0))
    with pytest.raises(ProbeError, match="srun has not started the ranks within 0 s: it says"):
        run.poll()
    run.cancel()


@pytest.mark.long
def test_options_of_slurms_commands_in_variables_change_nothing(
    inside: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CLUSTERS", "elsewhere")
    monkeypatch.setenv("SQUEUE_FORMAT", "%i")
    monkeypatch.setenv("SINFO_FORMAT", "%n")
    assert list(node_states(job_state(inside.job).nodes)) == ["n1", "n2"]


@pytest.mark.long
def test_an_allocation_that_is_over(
    in_slurm: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "99999")
    left = pytest.raises(ProbeError, match="knows no job 99999 any more: where SLURM_JOB_ID=99999")
    with left, slurm_site(StopRequest(), tmp_path):
        pass


@pytest.mark.long
def test_of_an_array_the_last_job_has_the_arrays_number(in_slurm: SlurmCluster) -> None:
    sleep = ("--output=/dev/null", "--wrap=exec sleep 600")
    array = in_slurm.run("sbatch", "--parsable", "--array=1-2", *sleep).strip()
    try:
        in_slurm.wait_for("RUNNING RUNNING", "squeue", "-h", "-j", array, "-o", "%T %T")
        in_slurm.run("scontrol", "requeuehold", f"{array}_1")
        in_slurm.wait_for("PENDING", "squeue", "-h", "-j", array, "-o", "%T")
        assert job_state(array).state == "RUNNING"
    finally:
        in_slurm.run("scancel", "--quiet", array)
        in_slurm.mend()


@pytest.mark.long
def test_a_folder_that_a_node_does_not_see(
    allocate: Allocate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is gone by the time the nodes look for it."""
    allocate()
    made = tmp_path / "elsewhere"
    monkeypatch.setattr("workers.launchers.slurm_site.make_folder", lambda *_: made)
    with (
        pytest.raises(ProbeError, match=r"n1, n2 of Slurm job .* does not see .*--probes"),
        slurm_site(StopRequest(), tmp_path),
    ):
        pass


def test_what_the_nodes_have_is_found_on_them(allocate: Allocate, tmp_path: Path) -> None:
    allocate()
    with slurm_site(StopRequest(), tmp_path) as site:
        first, second = site.machines()
        assert first == second
        assert first.cores > 0
        assert [device.name.endswith("/cpu") for device in site.devices()] == [True]
        assert 0 < site.left_s < 3600
    assert list(tmp_path.iterdir()) == []
