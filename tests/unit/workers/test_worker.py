"""What a worker does with a study, with ranks that are no processes and a hand-driven clock."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import combinations
from math import inf
from pathlib import Path
from threading import Event

import pytest

from tests.unit.workers.fakes import OK, FakeLauncher, HandStop, always, hang, meeting
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Limits, Probe, ProbeRequest, ProbeState, Study, StudyState
from tuner.errors import ProbeError
from tuner.store import Store, WorkerIdentity
from workers import executor as executor_module
from workers.devices import Device, DeviceLocks
from workers.executor import WorkerOptions
from workers.launchers.site import LocalSite
from workers.stop import INTERRUPTED
from workers.worker import PROBE_S, TimeLeft, Worker, probe_s, time_left

CORES = (Device(name="here/cpu"),)
GPUS = ("GPU-a", "GPU-b", "GPU-c")
DEVICES = (*(Device(name=gpu, visible=gpu) for gpu in GPUS), *CORES)
EVERYTHING = {*GPUS, "here/cpu"}


@dataclass
class Work:
    """Runs a worker at a study; its ranks do as ``act`` says."""

    store: Store
    folder: Path
    stop: HandStop
    devices: tuple[Device, ...] = CORES
    launcher: FakeLauncher = None

    def __call__(self, study, act=OK, **options):
        known = {key: options.pop(key) for key in ("check", "log", "fails") if key in options}
        self.launcher = FakeLauncher(act=act, **known)
        site = LocalSite(launcher=self.launcher, find_devices=lambda: self.devices)
        fixed = {"folder": self.folder / "probes", "lock": self.lock, "site": site}
        plan = WorkerOptions(**{**fixed, "guards": False, **options})
        return Worker(self.store, study.id, stop=self.stop, options=plan).run()

    @property
    def lock(self):
        return self.folder / "probes.lock"

    def another(self, *names):
        """Another worker's locks; by default of all devices."""
        return DeviceLocks(self.lock, names or [device.name for device in self.devices])

    def are_free(self):
        other = self.another()
        free = other.acquire()
        other.release()
        return free

    def on_gpu(self):
        """The probes on each GPU."""
        found = {}
        for probe in self.launcher.probes:
            for gpu in probe.gpus:
                found.setdefault(gpu, []).append(probe)
        return found


@pytest.fixture
def work(store, tmp_path, stop):
    return Work(store, tmp_path, stop)


@pytest.fixture
def on_gpus(work, monkeypatch):
    """A machine with three GPUs."""
    monkeypatch.setattr(executor_module, "check_machine", lambda *_: False)
    work.devices = DEVICES
    return work


@pytest.fixture
def eight(question):
    """Of eight GPUs, of which each here can play one."""
    workload = replace(question.workload, global_batch_size=64)
    return replace(question, workload=workload, cluster=parse_cluster("8xa100-80gb"))


def emulated(**limits):
    return Limits(fidelity=Fidelity.EMULATED, tolerance=0.0, **limits)


def enter(store, study, micro=1, batch=2, fidelity=Fidelity.MEASURED):
    settings = Settings(micro_batch_size=micro, gradient_accumulation_steps=batch // micro)
    request = ProbeRequest(settings=settings, fidelity=fidelity)
    assert store.enter_probe(study.id, store.study(study.id).revision, request, 10**12)


def outcomes(study):
    return [probe.measurement and probe.measurement.outcome for probe in study.probes]


def test_a_study_is_worked_off_on_ranks_that_stay(store, question, work):
    study = store.ask(question, Limits(max_probes=3))
    assert work(study) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert "3 probes" in study.reason
    assert outcomes(study) == [Outcome.OK] * 3
    assert len(work.launcher.runs) == 1
    assert not list((work.folder / "probes").iterdir())
    assert work.are_free()
    assert work(study) == 0
    assert work.launcher.runs == []


def test_only_the_queue_of_a_new_study_and_never_ended_early(store, question, work):
    study = store.ask(question, Limits())
    enter(store, study, 1)
    enter(store, study, 2)
    assert work(study, queued_only=True) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert outcomes(study) == [Outcome.OK] * 2
    assert [probe.spec["give_up_above_s"] for probe in work.launcher.probes] == [None, None]


def test_the_queue_of_a_study_that_another_worker_is_at(store, question, work):
    """Its search goes on, and its budget is not this probe's."""
    study = store.ask(question, Limits(wall_s=1e-6))
    store.move(study.id, StudyState.RUNNING, worker=WorkerIdentity.of_this_process())
    enter(store, study)
    assert work(study, queued_only=True) == 0
    study = store.study(study.id)
    assert (study.state, outcomes(study)) == (StudyState.RUNNING, [Outcome.OK])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (StudyState.DONE, (StudyState.DONE, "the probes that were asked for are done")),
        (StudyState.FAILED, (StudyState.FAILED, "by a test")),
        (StudyState.QUEUED, (StudyState.QUEUED, "by a test")),
    ],
)
def test_a_search_that_was_not_at_its_end_is_not_after_a_single_probe(
    store, question, work, before, after
):
    study = store.ask(question, Limits())
    store.move(study.id, StudyState.RUNNING, worker=WorkerIdentity.of_this_process())
    store.move(study.id, before, "by a test", expect={StudyState.RUNNING})
    enter(store, store.ask(question, Limits()))
    assert work(study, queued_only=True) == 0
    study = store.study(study.id)
    assert outcomes(study) == [Outcome.OK]
    assert (study.state, study.reason) == after


def test_a_failure_is_recorded_with_its_logs(store, question, work):
    study = store.ask(question, Limits())
    enter(store, study)
    assert work(study, always("oom"), log="help\n", queued_only=True) == 0
    (probe,) = store.study(study.id).probes
    assert probe.measurement.outcome is Outcome.OOM
    assert probe.measurement.oom is not None
    assert probe.measurement.log_tails == {0: "help\n", 1: "help\n"}


def test_probes_after_the_first_that_fits_may_end_early(store, question, work):
    study = store.ask(question, Limits(max_probes=3))
    early = lambda run, spec, number: "stopped_early" if number == 2 else "ok"  # noqa: E731
    assert work(study, early) == 0
    assert outcomes(store.study(study.id))[:2] == [Outcome.OK, Outcome.STOPPED_EARLY]
    limits = [probe.spec["give_up_above_s"] for probe in work.launcher.probes]
    assert limits[0] is None
    assert limits[1] > 0.2  # of the ranks' steps


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"wall_s": 10.0}, "the budget of 10 s is spent"),
        ({"device_s": 20.0}, "the budget of 20 device-seconds is spent"),
    ],
)
def test_a_budget_that_ends_in_mid_probe_says_nothing_about_its_configuration(
    store, question, work, limits, reason
):
    study = store.ask(question, Limits(**limits))
    assert work(study, hang) == 0
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.DONE, reason)
    assert outcomes(study) == [Outcome.CANCELLED]


def test_a_stop_hands_the_probe_back(store, question, work, stop):
    study = store.ask(question, Limits())
    stop.when = lambda: "enough" if work.launcher.probes else ""
    assert work(study, hang) == INTERRUPTED
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.QUEUED, "interrupted")
    assert [probe.state for probe in study.probes] == [ProbeState.QUEUED]
    assert not list((work.folder / "probes").iterdir())


def test_a_cancelled_study_ends_its_probes(store, eight, on_gpus, stop, monkeypatch):
    monkeypatch.setattr("workers.lease.BEATS", 6000)  # a hundredth of a second
    study = store.ask(eight, emulated())

    def cancel():
        if len(on_gpus.launcher.probes) == 3:
            store.move(study.id, StudyState.CANCELLED, "by a test")
        return ""

    stop.when = cancel
    stop.move = lambda seconds: None  # or the lease would run out before
    assert on_gpus(study, hang) == 0
    study = store.study(study.id)
    assert study.state is StudyState.CANCELLED
    assert outcomes(study) == [Outcome.CANCELLED] * 3


@pytest.mark.parametrize("whose", ["ours", "another's", "a service's"])
def test_a_machine_that_is_not_the_cluster(store, question, work, monkeypatch, whose):
    def refuse(*_):
        raise ProbeError("this machine is cpu:2")

    monkeypatch.setattr(executor_module, "check_machine", refuse)
    study = store.ask(question, Limits())
    if whose == "another's":
        other = WorkerIdentity.of_this_process("other")
        assert store.move(study.id, StudyState.RUNNING, worker=other)
    with pytest.raises(ProbeError):
        work(study, serves=whose == "a service's")
    study = store.study(study.id)
    states = {"ours": StudyState.FAILED, "another's": StudyState.RUNNING}
    assert study.state is states.get(whose, StudyState.QUEUED)
    assert study.reason == ("" if whose == "another's" else "this machine is cpu:2")


@dataclass(frozen=True, kw_only=True)
class Allotted(LocalSite):
    """This machine, for some seconds more."""

    left_s: float = 0.0
    name: str = "this allocation"


@pytest.mark.parametrize(("left_s", "begins"), [(29.0, False), (3600.0, True)])
def test_no_probe_is_begun_that_could_not_end_before_its_devices_are_taken_away(
    store, question, work, stop, left_s, begins
):
    study = store.ask(question, Limits())
    assert probe_s(study) == PROBE_S
    enter(store, study)
    site = Allotted(left_s=left_s, launcher=FakeLauncher(), find_devices=lambda: CORES)
    assert work(study, site=site, queued_only=True) == (0 if begins else INTERRUPTED)
    (probe,) = store.study(study.id).probes
    assert probe.state is (ProbeState.DONE if begins else ProbeState.QUEUED)
    if begins:
        assert probe_s(store.study(study.id)) == probe.measurement.wall_s
    else:
        assert stop.wait(0) == "the time of this allocation ends before another probe could"


def test_ranks_make_room_between_two_probes_for_another_that_waits(
    store, question, work, stop, monkeypatch
):
    other, had = work.another(), []
    record = Store.record

    def recorded(self, claim, measurement):
        if claim.probe.id == 1:
            assert not other.acquire()
        return record(self, claim, measurement)

    def let_in(seconds):
        if seconds == executor_module.ROOM_S:
            had.append((other.acquire(), [run.ended is None for run in work.launcher.runs]))
            other.release()

    stop.move = let_in
    monkeypatch.setattr(executor_module, "TURN_S", 0.0)
    monkeypatch.setattr(Store, "record", recorded)
    study = store.ask(question, Limits(max_probes=3))
    assert work(study) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 3
    assert had == [(True, [False])]
    assert len(work.launcher.runs) == 2


def test_probes_run_at_once_and_never_two_on_one_device(store, eight, on_gpus):
    study = store.ask(eight, emulated(max_probes=5))
    assert on_gpus(study, meeting(3)) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert outcomes(study) == [Outcome.OK] * 5
    assert len({probe.request.settings for probe in study.probes}) == 5
    assert set(on_gpus.on_gpu()) == set(GPUS)
    for probes in on_gpus.on_gpu().values():
        assert not any(one.overlaps(other) for one, other in combinations(probes, 2))
    assert any(one.overlaps(other) for one, other in combinations(on_gpus.launcher.probes, 2))


def test_finalists_are_alone_and_hold_every_device(store, eight, on_gpus, monkeypatch):
    claims = []
    claim = Store.claim

    def noted(self, study_id, worker, fidelity, devices, **more):
        found = claim(self, study_id, worker, fidelity, devices, **more)
        if found:
            claims.append((found.probe.request.repetition, set(devices)))
        return found

    monkeypatch.setattr(Store, "claim", noted)
    study = store.ask(eight, emulated(max_probes=8))
    assert on_gpus(study, meeting(3)) == 0
    finals = [devices for repetition, devices in claims if repetition]
    assert finals == [EVERYTHING] * 2
    assert all(len(devices) == 1 for repetition, devices in claims if not repetition)
    last = on_gpus.launcher.probes[-2:]
    assert {probe.gpus for probe in last} == {("GPU-a",)}  # the place of those without neighbours
    for probe in last:
        others = (one for one in on_gpus.launcher.probes if one is not probe)
        assert not any(probe.overlaps(other) for other in others)


def test_a_rank_that_is_killed_leaves_its_neighbours_alone(store, eight, on_gpus):
    def kill_b(run, spec, number):
        return "kill" if run.job.visible == ("GPU-b",) else "ok"

    study = store.ask(eight, emulated(max_probes=6))
    assert on_gpus(study, meeting(3, kill_b)) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert set(outcomes(study)) <= {Outcome.OK, Outcome.CRASHED}
    assert outcomes(study).count(Outcome.OK) >= 3
    runs = [run.job.visible[0] for run in on_gpus.launcher.runs]
    assert (runs.count("GPU-a"), runs.count("GPU-c")) == (1, 1), "none was started anew"


def test_device_seconds_end_all_that_run(store, eight, on_gpus):
    study = store.ask(eight, emulated(device_s=20.0))
    assert on_gpus(study, hang) == 0
    study = store.study(study.id)
    assert "20 device-seconds" in study.reason
    assert outcomes(study) == [Outcome.CANCELLED] * 3


@pytest.mark.parametrize("how", ["locks of this machine", "names in the database"])
def test_another_workers_device_is_left_to_it(store, eight, on_gpus, how):
    """Containers with locks of their own may see the same GPUs: the database decides."""
    other = on_gpus.another("GPU-b")
    if how == "locks of this machine":
        assert other.acquire()
    else:
        another = store.ask(replace(eight, knobs={"tp_size": (1,)}), emulated())
        enter(store, another, 8, 8, Fidelity.EMULATED)
        worker = WorkerIdentity.of_this_process("another machine")
        assert store.claim(another.id, worker, Fidelity.EMULATED, ("GPU-b",))
    study = store.ask(eight, emulated(max_probes=4))
    assert on_gpus(study, meeting(2)) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 4
    assert set(on_gpus.on_gpu()) == {"GPU-a", "GPU-c"}
    assert not other.wanted


def test_a_probe_that_ends_while_other_devices_are_waited_for_makes_room_for_the_next(
    store, eight, on_gpus, stop, clock
):
    assert on_gpus.another("GPU-b", "GPU-c").acquire()
    waits, move, began = Event(), stop.move, clock.now

    def act(run, spec, number):
        return "ok" if waits.is_set() else "wait"

    def moved(seconds):
        if seconds == executor_module.ACQUIRE_S:
            waits.set()
        move(seconds)

    stop.move = moved
    stop.when = lambda: "it waits for ever" if clock.now > began + 60 else ""
    study = store.ask(eight, emulated(max_probes=2))
    for micro in (8, 4):
        enter(store, study, micro, 8, Fidelity.EMULATED)
    assert on_gpus(study, act) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 2
    assert set(on_gpus.on_gpu()) == {"GPU-a"}


@pytest.mark.parametrize("serves", [False, True])
def test_gpus_that_cannot_be_used_end_the_worker_and_close_no_configuration(
    store, eight, on_gpus, serves
):
    def check(run):
        return "crashed" if run.job.visible == ("GPU-b",) else "ok"

    study = store.ask(eight, emulated(max_probes=5))
    with pytest.raises(ProbeError, match="no probe can be run: Error in forward: crashed"):
        on_gpus(study, hang, check=check, serves=serves)
    study = store.study(study.id)
    assert study.state is (StudyState.QUEUED if serves else StudyState.FAILED)
    assert "no probe can be run" in study.reason
    assert set(outcomes(study)) <= {None, Outcome.CANCELLED}
    assert on_gpus.are_free()
    # asked again, on GPUs that are well now
    study = store.ask(eight, emulated(max_probes=3))
    assert on_gpus(study) == 0
    assert Outcome.OK in outcomes(store.study(study.id))


@pytest.fixture
def measured(question):
    """Asked half a minute ago; a probe held its two devices for 2 s."""
    probe = Probe(
        id=1,
        request=ProbeRequest(settings=Settings(), fidelity=Fidelity.MEASURED),
        state=ProbeState.DONE,
        measurement=Measurement(outcome=Outcome.OK, wall_s=2.0, device_s=4.0),
    )
    return Study(
        id="st-1",
        question=question,
        limits=Limits(),
        state=StudyState.RUNNING,
        probes=(probe,),
        asked_at=(datetime.now(UTC) - timedelta(seconds=30)).isoformat(),
    )


DRY = {"fidelity": Fidelity.PREDICTED, "device_s": 1.0}


@pytest.mark.parametrize(
    ("limits", "worked_s", "running_s", "seconds", "of_running_s", "spent"),
    [
        ({}, 1e9, [], inf, inf, ""),
        ({"wall_s": 100.0}, 10.0, [], 90, 90, ""),
        ({"wall_s": 10.0}, 10.0, [], 0, 0, "the budget of 10 s is spent"),
        ({"wall_s": 100.0, "device_s": 10.0}, 10.0, [], 90, 3, ""),
        ({"device_s": 4.0}, 10.0, [], inf, 0, "the budget of 4 device-seconds is spent"),
        # 10 s of both devices are left, and shared by those that run
        ({"wall_s": 100.0, "device_s": 24.0}, 10.0, [1.0, 3.0], 90, 3, ""),
        ({"wall_s": 12.0, "device_s": 24.0}, 10.0, [1.0, 3.0], 2, 2, ""),
        ({"wall_s": 100.0, "device_s": 24.0}, 10.0, [4.0, 6.0], 90, 0, "24 device-seconds"),
        (DRY, 10.0, [5.0], inf, inf, ""),  # a dry run holds no device
    ],
)
def test_what_a_budget_leaves(measured, limits, worked_s, running_s, seconds, of_running_s, spent):
    for minutes in (-5, 5):  # the worker's clock may be minutes away from the database's
        asked = (datetime.now(UTC) + timedelta(minutes=minutes)).isoformat()
        study = replace(measured, limits=Limits(**limits), asked_at=asked)
        left = time_left(study, worked_s, running_s)
        assert (left.seconds, left.of_running_s) == (seconds, of_running_s)
        assert spent in left.why_spent
        assert bool(spent) == bool(left.why_spent)
        assert time_left(study, worked_s, running_s, limited=False) == TimeLeft()
