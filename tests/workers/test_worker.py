import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tuner.errors import ProbeError, StoreError, UsageError
from tuner.measurement import Fidelity, Outcome
from tuner.settings import Settings
from tuner.store import Claim, Store, WorkerIdentity
from tuner.study import ProbeRequest, ProbeState, Study, StudyState, Terms
from workers import retrying_store as retrying_module
from workers import slots as slots_module
from workers import worker as worker_module
from workers.launchers.site import LocalSite
from workers.measuring import warm as warm_module
from workers.options import Options
from workers.placement import devices_here, turn_on_all
from workers.stop import StopRequest
from workers.worker import INTERRUPTED, Worker, probe_s

OK = {"*": ["ok"]}
HANG = {"*": ["ready", "hang"]}


@pytest.fixture
def work(store, tmp_path, stand_in_argv):
    """Run a worker in this process: ``work(study_id, script)`` is its exit code."""

    def run(study_id: str, script, *, stop: StopRequest | None = None, **options: object) -> int:
        known = {
            "folder": tmp_path / "probes",
            "lock": tmp_path / "probes.lock",
            "argv": lambda out: stand_in_argv(out, script),
            "guards": False,
        }
        plan = Options(**{**known, **options})
        return Worker(store, study_id, stop=stop or StopRequest(), options=plan).run()

    return run


def enter(store: Store, study: Study, micro_batch_size: int = 1) -> None:
    settings = Settings(
        micro_batch_size=micro_batch_size, gradient_accumulation_steps=2 // micro_batch_size
    )
    request = ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED)
    revision = store.study(study.id).revision
    assert store.enter_probe(study.id, revision, request, 10**9) is not None


def outcomes(study: Study) -> list[Outcome | None]:
    return [probe.measurement and probe.measurement.outcome for probe in study.probes]


def test_a_study_is_worked_off(store, question, work, tmp_path) -> None:
    study = store.ask(question, Terms(max_probes=3))
    assert work(study.id, OK) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert "3 probes" in study.reason
    assert outcomes(study) == [Outcome.OK] * 3
    assert not list((tmp_path / "probes").iterdir())
    assert work(study.id, OK) == 0


def test_only_what_is_queued(store, question, work) -> None:
    study = store.ask(question, Terms())
    enter(store, study, 1)
    enter(store, study, 2)
    assert work(study.id, OK, queued_only=True) == 0
    study = store.study(study.id)
    assert (study.state, study.reason) == (
        StudyState.DONE,
        "the probes that were asked for are done",
    )
    assert outcomes(study) == [Outcome.OK] * 2


def test_only_what_is_queued_in_a_study_that_another_worker_is_at(store, question, work) -> None:
    """Its search goes on, and its budget is not this probe's."""
    study = store.ask(question, Terms(wall_s=1e-6))
    store.move(study.id, StudyState.RUNNING, worker=WorkerIdentity.of_this_process())
    enter(store, study)
    assert work(study.id, OK, queued_only=True) == 0
    study = store.study(study.id)
    assert (study.state, outcomes(study)) == (StudyState.RUNNING, [Outcome.OK])


def test_failures_are_recorded_with_their_logs(store, question, work) -> None:
    study = store.ask(question, Terms())
    enter(store, study)
    assert work(study.id, {"*": ["say:help", "oom"]}, queued_only=True) == 0
    (probe,) = store.study(study.id).probes
    assert probe.measurement is not None
    assert probe.measurement.outcome is Outcome.OOM
    assert probe.measurement.oom is not None
    assert probe.measurement.log_tails == {0: "help\n", 1: "help\n"}


def test_a_crash_is_tried_once_more(store, question, work) -> None:
    study = store.ask(question, Terms())
    enter(store, study)
    assert work(study.id, {"*": ["exit:1"]}, queued_only=True) == 0
    study = store.study(study.id)
    assert outcomes(study) == [Outcome.CRASHED]
    states = [event.data.get("state") for event in store.events(study.id) if "probe" in event.data]
    assert states == ["queued", "running", "queued", "running", "done"]


def test_the_deadline(store, question, work) -> None:
    study = store.ask(question, Terms())
    enter(store, study)
    assert work(study.id, HANG, queued_only=True, deadline_s=0.5) == 0
    assert outcomes(store.study(study.id)) == [Outcome.TIMEOUT]


def test_a_program_that_cannot_be_started(store, question, work) -> None:
    study = store.ask(question, Terms())
    enter(store, study)
    assert work(study.id, OK, queued_only=True, argv=lambda out: ("/nonexistent",)) == 0
    (probe,) = store.study(study.id).probes
    assert probe.measurement is not None
    assert probe.measurement.outcome is Outcome.CRASHED
    assert "could not be started" in probe.measurement.detail


def test_a_budget_that_ends_in_mid_probe_says_nothing_about_the_settings(
    store, question, work
) -> None:
    for wall_s in (1.0, 10.0, 60.0):  # until it leaves the time to begin a probe
        study = store.ask(question, Terms(wall_s=wall_s))
        assert work(study.id, HANG) == 0
        study = store.study(study.id)
        assert (study.state, study.reason) == (
            StudyState.DONE,
            f"the budget of {wall_s:.0f} s is spent",
        )
        if any(outcomes(study)):
            break
    assert outcomes(study) == [Outcome.CANCELLED]


def test_device_seconds_that_end_in_mid_probe_end_the_study(store, question, work) -> None:
    """What the probe was given back for is charged, or it would be begun again and again."""
    study = store.ask(question, Terms(device_s=1.0))
    assert work(study.id, HANG) == 0
    study = store.study(study.id)
    assert study.reason == "the budget of 1 device-seconds is spent"
    assert outcomes(study) == [Outcome.CANCELLED]
    assert study.fruitless_s >= 0.5  # on two devices


@pytest.fixture
def limits(monkeypatch) -> list[float | None]:
    """The seconds of a step above which each probe is given up, in order."""
    seen: list[float | None] = []
    write = warm_module.write_spec

    def noted(folder: Path, spec: Mapping[str, Any]) -> Path:
        seen.append(spec["give_up_above_s"])
        return write(folder, spec)

    monkeypatch.setattr(warm_module, "write_spec", noted)
    return seen


def test_probes_after_the_first_that_fits_may_end_early(store, question, work, limits) -> None:
    study = store.ask(question, Terms(max_probes=3))
    assert work(study.id, {"*": ["ok"], "*@2": ["stopped_early"]}) == 0
    assert outcomes(store.study(study.id))[:2] == [Outcome.OK, Outcome.STOPPED_EARLY]
    assert limits[0] is None
    assert limits[1] is not None
    assert limits[1] > 0.2  # of the stand-ins' steps


def test_a_probe_that_was_asked_for_is_never_ended_early(store, question, work, limits) -> None:
    study = store.ask(question, Terms())
    enter(store, study, 1)
    enter(store, study, 2)
    assert work(study.id, OK, queued_only=True) == 0
    assert limits == [None, None]


def test_a_stop_that_was_requested_before_anything_began(store, question, work) -> None:
    class Stopped(StopRequest):
        def wait(self, seconds: float) -> str:
            return "stop"

    study = store.ask(question, Terms())
    assert work(study.id, OK, stop=Stopped()) == INTERRUPTED
    assert store.study(study.id).state is StudyState.QUEUED


def test_an_unknown_study(work) -> None:
    with pytest.raises(UsageError, match="no such study"):
        work("st-123456789abc", OK)


def test_a_machine_that_is_not_the_cluster(store, question, work, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise ProbeError("8xa100-80gb is asked about; this machine is cpu:2")

    monkeypatch.setattr(worker_module, "check_machine", refuse)
    study = store.ask(question, Terms())
    with pytest.raises(ProbeError):
        work(study.id, OK)
    study = store.study(study.id)
    assert study.state is StudyState.FAILED
    assert "this machine is cpu:2" in study.reason


def test_a_machine_that_is_not_the_cluster_leaves_anothers_study_alone(
    store, question, work, monkeypatch
) -> None:
    def refuse(*_: object) -> None:
        raise ProbeError("not here")

    monkeypatch.setattr(worker_module, "check_machine", refuse)
    study = store.ask(question, Terms())
    other = WorkerIdentity.of_this_process("other")
    assert store.move(study.id, StudyState.RUNNING, worker=other)
    with pytest.raises(ProbeError):
        work(study.id, OK)
    assert store.study(study.id).state is StudyState.RUNNING


def test_a_store_that_fails_for_a_while(store, question, work, monkeypatch) -> None:
    record, failures = Store.record, iter([StoreError("no answer"), UsageError("db", "x", "busy")])

    def fail_twice(self: Store, claim: Claim, measurement: object) -> bool:
        if (failure := next(failures, None)) is not None:
            raise failure
        return record(self, claim, measurement)

    monkeypatch.setattr(Store, "record", fail_twice)
    monkeypatch.setattr(retrying_module, "RETRY_S", 0.01)
    study = store.ask(question, Terms())
    enter(store, study)
    assert work(study.id, OK, queued_only=True) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK]


def test_a_result_that_cannot_be_recorded_is_kept(
    store, question, work, monkeypatch, tmp_path
) -> None:
    def fail(self: Store, claim: Claim, measurement: object) -> bool:
        raise StoreError("no answer")

    monkeypatch.setattr(Store, "record", fail)
    monkeypatch.setattr(retrying_module, "RECORD_PATIENCE_S", 0.0)
    study = store.ask(question, Terms())
    enter(store, study)
    with pytest.raises(StoreError, match="a result is kept in"):
        work(study.id, OK, queued_only=True)
    (kept,) = (tmp_path / "probes").iterdir()
    assert (kept / "result.json").exists()


def test_another_studys_turn_is_waited_for(
    store, question, work, tmp_path, caplog, monkeypatch
) -> None:
    monkeypatch.setattr(slots_module, "TURN_S", 0.1)
    caplog.set_level("INFO", logger="workers")
    other = turn_on_all(tmp_path / "probes.lock", devices_here())
    assert other.take()
    study = store.ask(question, Terms())
    enter(store, study)
    looks = []

    def look(self: Store) -> int:
        looks.append(1)
        if len(looks) == 4:
            other.give()
        return 0

    monkeypatch.setattr(Store, "reap", look)
    assert work(study.id, OK, queued_only=True) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK]
    waits = [record for record in caplog.records if "waiting for another" in record.message]
    assert len(waits) == 1


@pytest.fixture
def folders(tmp_path, stand_in_argv):
    """``folders.argv``: a stand-in's, that notes each folder that ranks were started in."""

    class Folders(list[Path]):
        def argv(self, out: Path) -> tuple[str, ...]:
            self.append(out)
            return stand_in_argv(out, OK)

    return Folders()


def test_the_probes_of_a_study_share_ranks(store, question, work, folders, tmp_path) -> None:
    study = store.ask(question, Terms(max_probes=4))
    assert work(study.id, OK, argv=folders.argv) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 4
    assert len(folders) == 1
    assert not list((tmp_path / "probes").iterdir())


def test_cold_probes_have_ranks_of_their_own(store, question, work, folders) -> None:
    study = store.ask(question, Terms(max_probes=3))
    assert work(study.id, OK, argv=folders.argv, cold=True) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 3
    assert len(folders) == 3


def test_ranks_make_room_for_another_study_that_waits(
    store, question, work, folders, tmp_path, monkeypatch, alive
) -> None:
    """Who waits gets the turn between two probes, when no rank is left."""
    other, seen = turn_on_all(tmp_path / "probes.lock", devices_here()), []
    record = Store.record

    def recorded(self: Store, claim: Claim, measurement: object) -> bool:
        if claim.probe.id == 1:
            assert not other.take()
        return record(self, claim, measurement)

    class LetsIn(StopRequest):
        def wait(self, seconds: float) -> str:
            if seconds == slots_module.ROOM_S:
                seen.append((other.take(), alive(str(tmp_path))))
                other.give()
            return super().wait(seconds)

    monkeypatch.setattr(Store, "record", recorded)
    study = store.ask(question, Terms(max_probes=3))
    assert work(study.id, OK, argv=folders.argv, stop=LetsIn()) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 3
    assert seen == [(True, [])]
    assert len(folders) == 2


def test_a_turn_is_given_when_the_last_rank_is_gone(store, question, work, tmp_path) -> None:
    study = store.ask(question, Terms(max_probes=2))
    assert work(study.id, OK) == 0
    assert turn_on_all(tmp_path / "probes.lock", devices_here()).take()


def ready(tmp_path: Path) -> bool:
    return len(list((tmp_path / "probes").glob("*/*/ready-*"))) == 2


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_hand_the_probe_back(
    store, question, start_worker, tmp_path, eventually, alive, end
) -> None:
    study = store.ask(question, Terms())
    worker = start_worker(study.id, HANG)
    eventually(lambda: ready(tmp_path))
    worker.send_signal(end)
    assert worker.wait(60) == INTERRUPTED
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.QUEUED, "interrupted")
    assert [probe.state for probe in study.probes] == [ProbeState.QUEUED]
    assert not alive(str(tmp_path))
    assert not list((tmp_path / "probes").iterdir())


def test_the_end_of_the_starting_command_is_a_request_to_stop(
    store, question, start_worker, tmp_path, eventually, alive
) -> None:
    study = store.ask(question, Terms())
    read, write = os.pipe()
    worker = start_worker(study.id, HANG, read)
    os.close(read)
    eventually(lambda: ready(tmp_path))
    os.close(write)
    assert worker.wait(60) == INTERRUPTED
    assert store.study(study.id).state is StudyState.QUEUED
    assert not alive(str(tmp_path))


def test_kill_leaves_no_process_and_the_next_worker_goes_on(
    store, question, start_worker, work, tmp_path, eventually, alive, monkeypatch
) -> None:
    monkeypatch.setenv("STAND_IN_LEASE_S", "600")  # ranks would bear a long silence
    study = store.ask(question, Terms(max_probes=2))
    worker = start_worker(study.id, HANG)
    eventually(lambda: ready(tmp_path))
    assert len(alive(str(tmp_path))) == 3
    worker.kill()
    worker.wait()
    eventually(lambda: not alive(str(tmp_path)))
    assert work(study.id, OK) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert outcomes(study) == [Outcome.OK] * 2
    assert not list((tmp_path / "probes").iterdir())


def test_a_cancelled_study_ends_its_probe(store, question, work, tmp_path, monkeypatch) -> None:
    poll_s = 0.05

    def quick_lease(beat, *, claimed_at, lease_s):
        return lease(beat, claimed_at=claimed_at, lease_s=lease_s, beat_s=poll_s)

    lease = retrying_module.Lease
    monkeypatch.setattr(retrying_module, "Lease", quick_lease)
    study = store.ask(question, Terms())

    class CancelWhenReady(StopRequest):
        def wait(self, seconds: float) -> str:
            if ready(tmp_path):
                store.move(study.id, StudyState.CANCELLED, "by a test")
            return super().wait(seconds)

    assert work(study.id, HANG, stop=CancelWhenReady()) == 0
    study = store.study(study.id)
    assert study.state is StudyState.CANCELLED
    assert outcomes(study) == [Outcome.CANCELLED]


@dataclass(frozen=True)
class Allotted(LocalSite):
    """This machine, for some seconds more."""

    left_s: float = 0.0
    name: str = "this allocation"


@pytest.mark.parametrize(("left_s", "code"), [(29.0, INTERRUPTED), (3600.0, 0)])
def test_no_probe_is_begun_that_could_not_end_before_its_devices_are_taken_away(
    store, question, work, left_s: float, code: int
) -> None:
    study = store.ask(question, Terms())
    enter(store, study)
    stop = StopRequest()
    assert work(study.id, OK, stop=stop, site=Allotted(left_s=left_s), queued_only=True) == code
    state = ProbeState.DONE if code == 0 else ProbeState.QUEUED
    assert [probe.state for probe in store.study(study.id).probes] == [state]
    if code:
        assert stop.wait(0) == "the time of this allocation ends before another probe could"


def test_probes_take_as_long_as_the_longest_that_ran(store, question, work) -> None:
    study = store.ask(question, Terms())
    assert probe_s(store.study(study.id)) == worker_module.PROBE_S
    enter(store, study)
    assert work(study.id, OK, queued_only=True) == 0
    (probe,) = store.study(study.id).probes
    assert probe_s(store.study(study.id)) == probe.measurement.wall_s
