"""Slots for a study's probes, of a machine with GPUs that are made up."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tuner.cluster import parse_cluster
from tuner.machine import Machine, this_machine
from tuner.measurement import Fidelity, Measurement, Outcome
from tuner.store import Store, WorkerIdentity
from workers.launchers.local import LocalLauncher
from workers.launchers.site import LocalSite
from workers.options import Options
from workers.placement import Device
from workers.retrying_store import RetryingStore
from workers.slot import DeviceSlot, Order
from workers.slot_setup import device_slots
from workers.stop import StopRequest

DEVICES = (*(Device(name=f"GPU-{n}", visible=str(n)) for n in range(4)), Device(name="here/cpu"))


@pytest.fixture
def hire(store: Store, tmp_path: Path):
    """The slots for probes of a cluster at a fidelity."""

    def make(cluster: str, fidelity: Fidelity, **more: Any) -> list[Any]:
        retrying = RetryingStore(store, StopRequest(), WorkerIdentity.of_this_process(), tmp_path)
        site = LocalSite(find_devices=lambda: DEVICES)
        known = Options(folder=tmp_path, lock=tmp_path / "lock", site=site)
        slots, stack = device_slots(
            retrying,
            parse_cluster(cluster),
            fidelity,
            options=replace(known, **more),
            stands_in=True,
        )
        stack.close()
        return slots

    return make


def test_a_process_on_a_gpu_of_its_own_has_its_share_of_the_cores(hire) -> None:
    slots = hire("2xa100-80gb", Fidelity.EMULATED)
    assert [slot.kind.visible for slot in slots] == [("0",), ("1",), ("2",), ("3",)]
    assert {slot.kind.sharing for slot in slots} == {4}  # more run here than on a node there
    assert all(slot.stands_in for slot in slots)
    (one,) = {slot.kind.sharing for slot in hire("2x8xa100-80gb", Fidelity.EMULATED)}
    assert one == 8


def test_ranks_that_talk_have_one_slot(hire) -> None:
    (slot,) = hire("2xa100-80gb", Fidelity.MEASURED)
    assert slot.kind.visible == ("0", "1")
    assert slot.devices == tuple(device.name for device in DEVICES)
    (slot,) = hire("cpu:2", Fidelity.MEASURED)
    assert slot.kind.visible == ()


def test_a_probe_that_was_asked_for_has_one_slot(hire) -> None:
    (slot,) = hire("2xa100-80gb", Fidelity.EMULATED, queued_only=True)
    assert slot.take(alone=True, wait=False)
    assert slot.devices == tuple(device.name for device in DEVICES)
    slot.rest()
    assert slot.take(alone=False, wait=False)
    assert slot.devices == ("GPU-0",)
    slot.end()


@dataclass
class Elsewhere:
    """Two machines with two GPUs each that somebody has given to a worker."""

    launcher: LocalLauncher = field(default_factory=LocalLauncher)
    name: str = "elsewhere"
    is_here: bool = False
    left_s: float = math.inf

    def machines(self) -> tuple[Machine, ...]:
        return tuple(Machine(name=n, gpus=(), cores=2, memory_bytes=2**30) for n in ("a", "b"))

    def devices(self) -> tuple[Device, ...]:
        return DEVICES


def test_ranks_of_several_machines_have_all_of_them_and_no_locks(hire, tmp_path: Path) -> None:
    (slot,) = hire("2x2xa100-80gb", Fidelity.MEASURED, site=Elsewhere())
    assert (slot.kind.nodes, slot.kind.ranks, slot.kind.visible) == (2, 4, ())
    (other,) = hire("2x2xa100-80gb", Fidelity.EMULATED, site=Elsewhere())
    assert (other.kind.nodes, other.kind.ranks) == (1, 1)
    assert slot.take(alone=True, wait=True)
    assert other.take(alone=True, wait=True)
    assert set(slot.devices) == {device.name for device in DEVICES}
    assert not list(tmp_path.glob("lock*"))


class Loses(DeviceSlot):
    """Each of its probes loses a device."""

    def measured(self, order: Order) -> Measurement:
        return Measurement(outcome=Outcome.DEVICE_LOST)


def test_devices_of_another_site_are_looked_for_again_when_one_was_lost(tmp_path: Path) -> None:
    here = replace(this_machine(), gpus=())
    there = [Device(name="n1/cpu"), Device(name="n2/cpu")]
    site: Any = SimpleNamespace(
        is_here=False,
        machines=lambda: (here, here),
        devices=lambda: tuple(there),
        launcher=LocalLauncher(),
    )
    retrying: Any = SimpleNamespace(record=lambda *_: None)
    (slot,), stack = device_slots(
        retrying,
        parse_cluster("cpu:1"),
        Fidelity.MEASURED,
        options=Options(folder=tmp_path, site=site),
        stands_in=False,
        place_for=Loses,
    )
    with stack:
        assert slot.take(alone=False, wait=True)
        assert slot.devices == ("n1/cpu", "n2/cpu")
        del there[0]
        assert slot.take(alone=False, wait=True)
        assert slot.devices == ("n1/cpu", "n2/cpu"), "that costs a look at each node"
        slot.run(Order(study=None, held=MagicMock()))
        assert slot.take(alone=False, wait=True)
        assert slot.devices == ("n2/cpu",)
