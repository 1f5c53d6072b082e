"""Workplaces and their devices, and a probe's way from its claim to its record."""

import math
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.workers.fakes import FakeLauncher, FakeRanks, GatedMeasure
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.measurement import Fidelity, Measurement, Outcome
from tuner.core.study import Limits, ProbeRequest
from tuner.dryrun import DryRunner
from tuner.errors import ProbeError, StoreError
from tuner.machine import Machine
from tuner.store import Store, WorkerIdentity
from workers import executor as executor_module
from workers.devices import Device, DeviceLocks
from workers.executor import Executor, WorkerOptions, Workplace
from workers.launchers.site import LocalSite

OK = Measurement(outcome=Outcome.OK, wall_s=1.0, device_s=1.0)
DEVICES = (*(Device(name=f"GPU-{n}", visible=str(n)) for n in range(4)), Device(name="here/cpu"))
HERE = [device.name for device in DEVICES]


@dataclass
class Places:
    """Three workplaces, each with a GPU, whose probes last until they are let go."""

    lock: Path
    measures: list[GatedMeasure] = field(default_factory=lambda: [GatedMeasure(OK) for _ in "123"])
    ranks: list[FakeRanks] = field(default_factory=lambda: [FakeRanks() for _ in "123"])
    all: list[Workplace] = field(default_factory=list)

    def __post_init__(self):
        self.all = [
            Workplace(
                measure=self.measures[n],
                own=DeviceLocks(self.lock, [HERE[n]]),
                others=DeviceLocks(self.lock, [name for name in HERE if name != HERE[n]]),
                ranks=self.ranks[n],
            )
            for n in range(3)
        ]

    def another(self, *names):
        """Another worker's locks of devices."""
        return DeviceLocks(self.lock, names)


@pytest.fixture
def places(tmp_path):
    return Places(tmp_path / "lock")


@pytest.fixture
def options(tmp_path):
    site = LocalSite(launcher=FakeLauncher(), find_devices=lambda: DEVICES)
    return WorkerOptions(folder=tmp_path / "probes", lock=tmp_path / "lock", site=site)


@pytest.fixture
def executor(store, stop, options, places):
    identity = WorkerIdentity.of_this_process()
    with Executor(store, stop, identity, options, DryRunner()) as made:
        made.open(places.all)
        yield made


@pytest.fixture
def study(store, question):
    """With four probes in its queue."""
    asked = store.ask(question, Limits())
    for size in (1, 2, 3, 4):
        settings = Settings(micro_batch_size=size, gradient_accumulation_steps=1)
        request = ProbeRequest(settings=settings, fidelity=Fidelity.MEASURED)
        assert store.enter_probe(asked.id, store.study(asked.id).revision, request, 10**9)
    return store.study(asked.id)


@pytest.fixture
def begin(executor, study):
    """Claims a probe and starts it."""

    def start(workplace):
        assert workplace.acquire(alone=False, waits=True)
        task = executor.claim(study, Fidelity.MEASURED, workplace)
        assert task is not None
        executor.start(workplace, task)
        return task

    return start


def states(store, study):
    return [str(probe.state) for probe in store.study(study.id).probes]


def test_giving_up_puts_all_back_and_waits_for_them(executor, store, study, places, begin):
    begin(places.all[0])
    begin(places.all[2])
    executor.give_up("enough")
    assert not executor.is_busy
    assert [m.whys for m in places.measures] == [["enough"], [], ["enough"]]
    # a measurement that was there all the same is recorded, not thrown away
    assert states(store, study)[:2] == ["done", "done"]
    assert begin(places.all[0]).pause(0) == "", "what was given up before says nothing of it"


@pytest.mark.parametrize("why", ["a request to stop", "enough"])
def test_a_cancelled_probe_is_given_back_with_the_reason(
    executor, store, study, places, begin, stop, why
):
    places.measures[0].result = Measurement(outcome=Outcome.CANCELLED)
    begin(places.all[0])
    if why == "enough":
        executor.give_up(why)
    else:
        stop.request(why)
        executor.give_up("later")
    assert states(store, study)[0] == "queued"
    assert store.events(study.id)[-1].data["detail"] == why


def test_a_workplace_for_which_nothing_was_claimed_is_asked_last(executor, store, study, places):
    other = WorkerIdentity.of_this_process("another machine, of the same devices")
    assert store.claim(study.id, other, Fidelity.MEASURED, (HERE[0],))
    assert executor.acquire(alone=False) is places.all[0]
    assert executor.claim(study, Fidelity.MEASURED, places.all[0]) is None
    assert executor.acquire(alone=False) is places.all[1]


def test_a_result_waits_for_a_store_that_fails_and_is_kept_if_it_never_answers(
    executor, store, study, places, begin, monkeypatch, tmp_path
):
    record, failures = Store.record, [StoreError("no answer")] * 3

    def fail(self, claim, measurement):
        if failures:
            raise failures.pop()
        return record(self, claim, measurement)

    monkeypatch.setattr(Store, "record", fail)
    begin(places.all[0])
    places.measures[0].go.set()
    executor.wait(math.inf)
    assert states(store, study)[0] == "done"
    failures += [StoreError("no answer")] * 10_000
    begin(places.all[1])
    places.measures[1].go.set()
    with pytest.raises(StoreError, match="a result is kept in"):
        executor.wait(math.inf)
    (kept,) = (tmp_path / "probes").iterdir()
    assert kept.name.startswith("kept-")
    assert (kept / "result.json").exists()
    failures.clear()


def test_a_lease_that_is_not_renewed_gives_the_probe_up(executor, study, places, begin, clock):
    task = begin(places.all[0])
    assert task.pause(0) == ""
    clock.move(36)
    assert task.pause(0) == "the lease could not be renewed in time"


def test_a_probe_that_cannot_be_run_is_given_back_and_the_others_end(
    store, stop, options, study, places
):
    places.measures[1].fails = ProbeError("a device is gone")
    places.measures[2].fails = ProbeError("another one")  # logged alone
    with (
        pytest.raises(ProbeError, match="a device is gone"),
        Executor(store, stop, WorkerIdentity.of_this_process(), options, DryRunner()) as executor,
    ):
        executor.open(places.all)
        for workplace in places.all:
            assert workplace.acquire(alone=False, waits=True)
            executor.start(workplace, executor.claim(study, Fidelity.MEASURED, workplace))
        places.measures[1].go.set()
        executor.wait(math.inf)
    assert [m.whys for m in places.measures] == [["the worker ends"], [""], ["the worker ends"]]
    assert states(store, study) == ["done", "queued", "queued", "queued"]
    assert places.another(*HERE).acquire()


def test_a_probe_for_which_no_memory_is_free_is_given_back_before_its_ranks_start(
    store, stop, options, study, places, monkeypatch
):
    monkeypatch.setattr("workers.devices.free_bytes", lambda: 2**20)
    places.measures[0].go.set()
    with (
        pytest.raises(ProbeError, match=r"2 ranks, and 0\.0 GiB of this machine's memory are free"),
        Executor(store, stop, WorkerIdentity.of_this_process(), options, DryRunner()) as executor,
    ):
        executor.open(places.all)
        assert places.all[0].acquire(alone=False, waits=True)
        executor.start(places.all[0], executor.claim(study, Fidelity.MEASURED, places.all[0]))
        executor.wait(math.inf)
    assert places.measures[0].whys == []
    assert states(store, study) == ["queued"] * 4


def test_a_probe_that_must_be_alone_ends_other_ranks_and_waits_for_its_neighbours(
    executor, places, begin
):
    places.ranks[2].alive = True
    begin(places.all[1])
    places.measures[1].go.set()
    assert executor.acquire(alone=True) is None, "that waited for the neighbour"
    assert executor.acquire(alone=True) is places.all[0]
    assert [ranks.ends for ranks in places.ranks] == [0, 1, 1]
    assert not places.another(HERE[3]).acquire()


def test_a_stop_ends_waiting(executor, places, begin, stop, clock):
    begin(places.all[0])
    others = [places.another(name) for name in HERE[1:3]]
    assert all(other.acquire() for other in others)
    stop.request("enough")
    executor.wait(math.inf)
    assert executor.acquire(alone=False) is None
    assert clock.moved == []


@pytest.fixture
def prepared(store, stop, options, question, monkeypatch):
    """The workplaces for a study of a cluster at a fidelity."""
    monkeypatch.setattr(executor_module, "check_machine", lambda *_: True)

    def make(cluster, fidelity, **more):
        chosen = replace(options, **more)
        executor = Executor(store, stop, WorkerIdentity.of_this_process(), chosen, DryRunner())
        asked = replace(question, cluster=parse_cluster(cluster))
        study = SimpleNamespace(question=asked)
        with executor:
            executor.prepare(study, fidelity)
            return executor.workplaces

    return make


def kinds(workplaces):
    return [place.measure.keywords["kind"] for place in workplaces]


@pytest.mark.parametrize(
    ("cluster", "fidelity", "visible", "sharing"),
    [
        # more run here than on a node there
        ("2xa100-80gb", Fidelity.EMULATED, [("0",), ("1",), ("2",), ("3",)], 4),
        ("2x8xa100-80gb", Fidelity.EMULATED, [("0",), ("1",), ("2",), ("3",)], 8),
        ("2xa100-80gb", Fidelity.MEASURED, [("0", "1")], 2),
        ("cpu:2", Fidelity.MEASURED, [()], 2),
    ],
)
def test_a_process_on_a_gpu_of_its_own_has_neighbours_and_ranks_that_talk_have_none(
    prepared, cluster, fidelity, visible, sharing
):
    workplaces = prepared(cluster, fidelity)
    assert [kind.visible for kind in kinds(workplaces)] == visible
    assert {kind.sharing for kind in kinds(workplaces)} == {sharing}


def test_a_probe_that_was_asked_for_has_one_workplace(prepared):
    (place,) = prepared("2xa100-80gb", Fidelity.EMULATED, queued_only=True)
    assert place.acquire(alone=True, waits=False)
    assert set(place.devices) == set(HERE)
    place.release()
    assert place.acquire(alone=False, waits=False)
    assert place.devices == ("GPU-0",)
    place.end_ranks()


@dataclass
class Lent:
    """Machines that somebody has given to a worker."""

    there: list[Device]
    launcher: FakeLauncher = field(default_factory=FakeLauncher)
    name: str = "an allocation"
    is_here: bool = False
    left_s: float = math.inf

    def machines(self):
        return tuple(Machine(name=n, gpus=(), cores=2, memory_bytes=2**30) for n in ("a", "b"))

    def devices(self):
        return tuple(self.there)


def test_ranks_of_several_machines_have_all_of_them_and_no_locks(prepared, tmp_path):
    site = Lent(list(DEVICES))
    measured = prepared("2x2xa100-80gb", Fidelity.MEASURED, site=site)
    emulated = prepared("2x2xa100-80gb", Fidelity.EMULATED, site=site)
    assert [(k.nodes, k.ranks, k.visible) for k in kinds(measured + emulated)] == [
        (2, 4, ()),
        (1, 1, ()),
    ]
    for place in measured + emulated:
        assert place.acquire(alone=True, waits=True)
        assert set(place.devices) == set(HERE)
    assert not list(tmp_path.glob("lock*"))


def test_lent_devices_are_looked_for_again_once_one_was_lost(prepared):
    site = Lent([Device(name="n1/cpu"), Device(name="n2/cpu")])
    (place,) = prepared("2x1xcpu", Fidelity.MEASURED, site=site)
    assert place.acquire(alone=False, waits=True)
    del site.there[0]
    assert place.acquire(alone=False, waits=True)
    assert place.devices == ("n1/cpu", "n2/cpu"), "that costs a look at each node"
    place.has_lost_a_device = True
    assert place.acquire(alone=False, waits=True)
    assert place.devices == ("n2/cpu",)


def test_other_workplaces_take_the_place_of_those_there_were(executor, places):
    assert places.all[0].acquire(alone=False, waits=True)
    executor.open(places.all[2:])
    assert places.another(HERE[0]).acquire()
    assert executor.workplaces == places.all[2:]


def test_whom_one_waits_for_is_told_once_a_minute(executor, places, caplog, monkeypatch):
    monkeypatch.setattr("workers.executor.LOCKS_S", 0.0)
    other = places.another(*HERE)
    assert other.acquire()
    assert [executor.acquire(alone=True) for _ in range(3)] == [None] * 3
    told = [one.message for one in caplog.records if "waiting for" in one.message]
    assert told == [f"waiting for the worker that is process {os.getpid()} on this machine"]
    other.release()


def test_idle_ranks_have_their_turn_before_others_get_their_devices(executor, places, monkeypatch):
    place = places.all[0]
    assert executor.acquire(alone=False) is place
    place.ranks.alive = True
    other = places.another(HERE[0])
    assert not other.acquire()
    executor.make_room()
    assert place.has_ranks, "it was started for more than one probe"
    monkeypatch.setattr("workers.executor.TURN_S", 0.0)
    executor.make_room()
    assert not place.has_ranks
    assert other.acquire()
    other.release()
