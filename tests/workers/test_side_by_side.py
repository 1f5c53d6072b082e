"""Several probes at once, on three GPUs that are made up and whose ranks are stand-ins."""

import json
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tuner.cluster import parse_cluster
from tuner.errors import ProbeError
from tuner.measurement import Fidelity, Outcome
from tuner.planner.spending import total_measured
from tuner.settings import Settings
from tuner.store import Store, WorkerIdentity
from tuner.study import ProbeRequest, ProbeState, Question, Study, StudyState, Terms
from workers import retrying_store as retrying_module
from workers import slot as slot_module
from workers import worker as worker_module
from workers.device_locks import DeviceLocks
from workers.launchers.site import LocalSite
from workers.measuring import warm as warm_module
from workers.options import Options
from workers.placement import Device, turn_on_all
from workers.stop import StopRequest
from workers.worker import INTERRUPTED, Worker

GPUS = ("GPU-a", "GPU-b", "GPU-c")
DEVICES = (*(Device(name=gpu, visible=gpu) for gpu in GPUS), Device(name="here/cpu"))
EVERYTHING = (*GPUS, "here/cpu")
SHORT = {"*": ["begin", "sleep:0.15", "ok", "end"]}
THREE = {"*": ["begin", "meet:3", "sleep:0.05", "ok", "end"]}
TWO = {"*": ["begin", "meet:2", "sleep:0.05", "ok", "end"]}
"""The first probes end when so many ranks have begun."""
HANG = {"*": ["begin", "ready", "hang"]}
Work = Callable[..., int]


@pytest.fixture
def question(question: Question) -> Question:
    """Of eight GPUs, of which each here can play one."""
    workload = replace(question.workload, global_batch_size=64)
    return replace(question, workload=workload, cluster=parse_cluster("8xa100-80gb"))


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[dict[str, Any]]]:
    """What ranks have noted: begins and ends, in order."""
    path = tmp_path / "notes"
    path.touch()
    monkeypatch.setenv("STAND_IN_NOTES", str(path))
    return lambda: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def work(
    store: Store,
    tmp_path: Path,
    stand_in_argv: Callable[..., tuple[str, ...]],
    monkeypatch: pytest.MonkeyPatch,
    notes: object,
) -> Work:
    """Run a worker in this process."""
    monkeypatch.setattr(worker_module, "check_machine", lambda *_: False)

    def run(study_id: str, script: object, *, stop: StopRequest | None = None, **more: Any) -> int:
        known = {
            "folder": tmp_path / "probes",
            "lock": tmp_path / "probes.lock",
            "argv": lambda out: stand_in_argv(out, script),
            "site": LocalSite(find_devices=lambda: DEVICES),
            "guards": False,
        }
        options = Options(**{**known, **more})
        return Worker(store, study_id, stop=stop or StopRequest(), options=options).run()

    return run


def emulated(**terms: Any) -> Terms:
    return Terms(fidelity=Fidelity.EMULATED, tolerance=0.0, **terms)


def outcomes(study: Study) -> list[Outcome | None]:
    return [probe.measurement and probe.measurement.outcome for probe in study.probes]


Span = tuple[float, float]


def spans(found: list[dict[str, Any]]) -> dict[str, list[Span]]:
    """When ranks were at work on each GPU."""
    began: dict[int, float] = {}
    ends: dict[str, list[Span]] = {}
    for note in found:
        if note["what"] == "begin":
            began[note["pid"]] = note["at"]
        else:
            ends.setdefault(note["gpu"], []).append((began.pop(note["pid"]), note["at"]))
    assert not began
    return ends


def overlap(one: Span, other: Span) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def test_probes_run_at_once_and_never_two_on_one_device(store, question, work, notes) -> None:
    study = store.ask(question, emulated(max_probes=5))
    assert work(study.id, THREE) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert outcomes(study) == [Outcome.OK] * 5
    assert len({probe.request.settings for probe in study.probes}) == 5
    by_gpu = spans(notes())
    assert set(by_gpu) == set(GPUS)
    for own in by_gpu.values():
        assert not any(overlap(*pair) for pair in combinations(own, 2))
    every = [span for own in by_gpu.values() for span in own]
    assert any(overlap(*pair) for pair in combinations(every, 2))


def test_gpus_that_cannot_be_used_fail_a_study_and_no_probe_of_it(store, question, work) -> None:
    study = store.ask(question, emulated(max_probes=5))
    with pytest.raises(ProbeError, match="no probe can be run: Error: crashed"):
        work(study.id, {**SHORT, "*@check": ["crashed"]})
    study = store.study(study.id)
    assert study.state is StudyState.FAILED
    assert "no probe can be run" in study.reason
    assert set(outcomes(study)) <= {None, Outcome.CANCELLED}
    # asked again, on GPUs that are well now: nothing was ruled out
    study = store.ask(question, emulated(max_probes=3))
    assert work(study.id, SHORT) == 0
    assert Outcome.OK in outcomes(store.study(study.id))


def test_gpus_of_which_one_serves_others_are_queued_again(store, question, work) -> None:
    study = store.ask(question, emulated(max_probes=5))
    with pytest.raises(ProbeError, match="no probe can be run"):
        work(study.id, {**SHORT, "*@check": ["crashed"]}, serves=True)
    assert store.study(study.id).state is StudyState.QUEUED


def test_what_ran_at_once_is_charged_once_and_for_all_devices(store, question, work) -> None:
    study = store.ask(question, emulated(max_probes=3))
    assert work(study.id, THREE) == 0
    found = store.study(study.id).probes
    each_s = [probe.measurement.wall_s for probe in found if probe.measurement]
    wall_s, device_s = total_measured(found)
    assert max(each_s) <= wall_s + 1e-5 < sum(each_s)  # moments are of microseconds
    assert device_s == pytest.approx(sum(each_s))


def probe_spans(store: Store, study: Study) -> dict[tuple[str, int], Span]:
    """From each probe's claim to its end, by settings and repetition, as event ids."""
    began: dict[tuple[str, int], int] = {}
    found: dict[tuple[str, int], Span] = {}
    for event in store.events(study.id):
        which = (event.data.get("settings", ""), event.data.get("repetition", 0))
        if event.data.get("state") == "running" and which[0]:
            began[which] = event.id
        elif event.data.get("state") == "done" and which[0]:
            found[which] = (began[which], event.id)
    return found


def test_finalists_are_alone(store, question, work, notes) -> None:
    study = store.ask(question, emulated(max_probes=8))
    assert work(study.id, THREE) == 0
    found = probe_spans(store, store.study(study.id))
    finals = {key: span for key, span in found.items() if key[1]}
    assert len(finals) == 2
    for key, span in finals.items():
        assert not any(overlap(span, other) for one, other in found.items() if one != key)
    assert any(overlap(*pair) for pair in combinations(found.values(), 2))
    last = [note["gpu"] for note in notes()][-4:]
    assert set(last) == {"GPU-a"}  # the place of those without neighbours


def test_a_finalist_holds_every_device(store, question, work, monkeypatch) -> None:
    held: list[tuple[int, tuple[str, ...]]] = []
    claim = Store.claim

    def noted(
        self: Store, study_id: str, worker: object, fidelity: object, devices: Any, *, key: str
    ) -> Any:
        found = claim(self, study_id, worker, fidelity, devices, key=key)
        if found:
            held.append((found.probe.request.repetition, tuple(devices)))
        return found

    monkeypatch.setattr(Store, "claim", noted)
    study = store.ask(question, emulated(max_probes=8))
    assert work(study.id, {"*": ["ok"]}) == 0
    assert {devices for repetition, devices in held if repetition} == {EVERYTHING}
    assert {devices for repetition, devices in held if not repetition} <= {(g,) for g in GPUS}


def test_a_rank_that_is_killed_leaves_its_neighbours_alone(store, question, work, notes) -> None:
    study = store.ask(question, emulated(max_probes=6))
    script = {
        "*": ["begin", "meet:2", "sleep:0.1", "ok", "end"],
        "GPU-b": ["meet:2", "sleep:0.1", "signal:SIGKILL"],
    }
    assert work(study.id, script) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert set(outcomes(study)) <= {Outcome.OK, Outcome.CRASHED}
    assert outcomes(study).count(Outcome.OK) >= 3
    events = [event.data for event in store.events(study.id)]
    assert any("SIGKILL" in data.get("detail", "") for data in events)
    assert set(spans(notes())) == {"GPU-a", "GPU-c"}
    assert len({note["pid"] for note in notes()}) == 2  # none was started anew


def test_another_workers_device_is_left_to_it(store, question, work, notes, tmp_path) -> None:
    other = DeviceLocks(tmp_path / "probes.lock", ["GPU-b"])
    assert other.take()
    study = store.ask(question, emulated(max_probes=4))
    assert work(study.id, TWO) == 0
    assert not other.wanted
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 4
    assert set(spans(notes())) == {"GPU-a", "GPU-c"}
    other.give()


def test_devices_that_another_machine_of_this_database_names_are_left_to_it(
    store, question, work, notes
) -> None:
    """Containers with locks of their own may see the same GPUs: the database decides."""
    elsewhere = store.ask(replace(question, knobs={"tp_size": (1,)}), emulated())
    request = ProbeRequest(settings=Settings(micro_batch_size=8), fidelity=Fidelity.EMULATED)
    assert store.enter_probe(elsewhere.id, elsewhere.revision, request, 10**9)
    worker = WorkerIdentity.of_this_process("elsewhere")
    held = store.claim(elsewhere.id, worker, Fidelity.EMULATED, ("GPU-a",))
    assert held is not None
    study = store.ask(question, emulated(max_probes=4))
    assert work(study.id, TWO) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 4
    assert set(spans(notes())) == {"GPU-b", "GPU-c"}


def test_a_trouble_of_the_machine_ends_the_worker_and_gives_the_rest_back(
    store, question, work, monkeypatch, tmp_path
) -> None:
    measure = slot_module.measure

    def fails_on_b(*given: Any, kind: Any, **named: Any) -> Any:
        if kind.visible == ("GPU-b",):
            raise ProbeError("a device was lost, and is not there again: rank 0's")
        return measure(*given, kind=kind, **named)

    monkeypatch.setattr(slot_module, "measure", fails_on_b)
    study = store.ask(question, emulated(max_probes=6))
    with pytest.raises(ProbeError, match="a device was lost"):
        work(study.id, HANG)
    study = store.study(study.id)
    assert study.state is StudyState.FAILED
    assert set(outcomes(study)) == {Outcome.CANCELLED}
    assert turn_on_all(tmp_path / "probes.lock", DEVICES).take()


def test_device_seconds_end_all_that_run(store, question, work) -> None:
    for device_s in (2.0, 20.0, 100.0):  # until it leaves the time to begin three
        workload = replace(question.workload, sequence_length=64 + round(device_s))
        study = store.ask(replace(question, workload=workload), emulated(device_s=device_s))
        assert work(study.id, HANG) == 0
        study = store.study(study.id)
        assert (study.state, study.reason) == (
            StudyState.DONE,
            f"the budget of {device_s:.0f} device-seconds is spent",
        )
        if len(outcomes(study)) == 3:
            break
    assert outcomes(study) == [Outcome.CANCELLED] * 3
    assert study.fruitless_s >= 0.75 * device_s


def test_a_cancelled_study_ends_all_its_probes(
    store, question, work, tmp_path, monkeypatch
) -> None:
    lease = retrying_module.Lease

    def quick_lease(beat: Any, *, claimed_at: float, lease_s: float) -> Any:
        return lease(beat, claimed_at=claimed_at, lease_s=lease_s, beat_s=0.05)

    monkeypatch.setattr(retrying_module, "Lease", quick_lease)
    study = store.ask(question, emulated())

    class CancelWhenReady(StopRequest):
        def wait(self, seconds: float) -> str:
            if ready(tmp_path) == 3:
                store.move(study.id, StudyState.CANCELLED, "by a test")
            return super().wait(seconds)

    assert work(study.id, HANG, stop=CancelWhenReady()) == 0
    study = store.study(study.id)
    assert study.state is StudyState.CANCELLED
    assert set(outcomes(study)) == {Outcome.CANCELLED}


def test_probes_that_were_asked_for_are_alone(store, question, work, notes) -> None:
    study = store.ask(question, emulated())
    for size in (1, 2):
        request = ProbeRequest(
            settings=Settings(micro_batch_size=size, gradient_accumulation_steps=8 // size),
            fidelity=Fidelity.EMULATED,
        )
        assert store.enter_probe(study.id, store.study(study.id).revision, request, 10**12)
    assert work(study.id, SHORT, queued_only=True, fidelity=Fidelity.EMULATED) == 0
    assert outcomes(store.study(study.id)) == [Outcome.OK] * 2
    by_gpu = spans(notes())
    assert set(by_gpu) == {"GPU-a"}
    assert len({note["pid"] for note in notes()}) == 1


def test_probes_may_end_early_beside_others(store, question, work, monkeypatch) -> None:
    """Those that begin after one was seen to fit; the others run on."""
    limits: list[float | None] = []
    write = warm_module.write_spec

    def noted(folder: Path, spec: Mapping[str, Any]) -> Path:
        if "check" not in spec:
            limits.append(spec["give_up_above_s"])
        return write(folder, spec)

    monkeypatch.setattr(warm_module, "write_spec", noted)
    study = store.ask(question, emulated(max_probes=5))
    script = {**THREE, "*@2": ["stopped_early"]}
    assert work(study.id, script) == 0
    found = outcomes(store.study(study.id))
    assert set(found) == {Outcome.OK, Outcome.STOPPED_EARLY}
    assert limits[0] is None
    assert limits[-1] is not None
    assert limits[-1] > 0.2


# -- the worker as a process ------------------------------------------------------------------


@pytest.fixture
def three_gpus(monkeypatch: pytest.MonkeyPatch, notes: object) -> None:
    """What worker processes are told that there is."""
    monkeypatch.setenv("STAND_IN_GPUS", ",".join(GPUS))


def ready(tmp_path: Path) -> int:
    try:
        return len(list((tmp_path / "probes").glob("*/*/ready-*")))
    except FileNotFoundError:  # a folder that ended ranks have left, removed during the look
        return 0


def test_a_signal_hands_all_probes_back(
    store, question, three_gpus, start_worker, tmp_path, eventually, alive
) -> None:
    study = store.ask(question, emulated())
    worker = start_worker(study.id, HANG)
    eventually(lambda: ready(tmp_path) == 3)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == INTERRUPTED
    study = store.study(study.id)
    assert (study.state, study.reason) == (StudyState.QUEUED, "interrupted")
    assert [probe.state for probe in study.probes] == [ProbeState.QUEUED] * 3
    assert not alive(str(tmp_path))
    assert not list((tmp_path / "probes").iterdir())


def test_kill_leaves_nothing_and_the_next_worker_goes_on(
    store, question, three_gpus, start_worker, work, tmp_path, eventually, alive, monkeypatch
) -> None:
    monkeypatch.setenv("STAND_IN_LEASE_S", "600")  # ranks would bear a long silence
    study = store.ask(question, emulated(max_probes=4))
    worker = start_worker(study.id, HANG)
    eventually(lambda: ready(tmp_path) == 3)
    assert len(alive(str(tmp_path))) == 4
    worker.kill()
    worker.wait()
    eventually(lambda: not alive(str(tmp_path)))
    assert work(study.id, SHORT) == 0
    study = store.study(study.id)
    assert study.state is StudyState.DONE
    assert outcomes(study) == [Outcome.OK] * 4
    assert not list((tmp_path / "probes").iterdir())
