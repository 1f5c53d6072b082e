"""Slots for a study's probes, of a machine with GPUs that are made up."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tuner.cluster import parse_cluster
from tuner.measurement import Fidelity
from tuner.store import Store, WorkerIdentity
from workers.desk import Desk
from workers.hiring import device_slots
from workers.launchers.local import LocalLauncher
from workers.options import Options
from workers.places import Device
from workers.stop import StopRequest

DEVICES = (*(Device(name=f"GPU-{n}", visible=str(n)) for n in range(4)), Device(name="here/cpu"))


@pytest.fixture
def hire(store: Store, tmp_path: Path):
    """The slots for probes of a cluster at a fidelity."""

    def make(cluster: str, fidelity: Fidelity, **more: Any) -> list[Any]:
        desk = Desk(store, StopRequest(), WorkerIdentity.of_this_process(), tmp_path)
        known = Options(folder=tmp_path, lock=tmp_path / "lock", devices=lambda: DEVICES)
        slots, stack = device_slots(
            desk,
            parse_cluster(cluster),
            fidelity,
            options=replace(known, **more),
            launcher=LocalLauncher(),
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
