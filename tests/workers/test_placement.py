"""On which devices probes run, and how many at once."""

from dataclasses import replace
from pathlib import Path

import pytest

from tuner.machine import Machine, ReportedGpu
from tuner.measurement import Fidelity
from workers.measuring.warm import Kind
from workers.placement import Device, Place, devices_here, first_gpus, places

UUIDS = ("GPU-c", "GPU-a", "GPU-b")
GPUS = tuple(ReportedGpu(name="NVIDIA L4", memory_mib=23034, uuid=uuid) for uuid in UUIDS)
EMULATED = Kind(ranks=1, world_size=8, device="cuda", fidelity=Fidelity.EMULATED)


def machine(*gpus: ReportedGpu) -> Machine:
    return Machine(name="node7", gpus=gpus, cores=8, memory_bytes=2**33)


NO_KERNEL = Path("nowhere")
DEVICES = devices_here(machine(*GPUS), {}, NO_KERNEL)


def test_gpus_are_named_by_their_uuids() -> None:
    """Numbers mean something else to CUDA than to the driver, unless somebody chose them."""
    assert (
        *(Device(name=uuid, visible=uuid) for uuid in UUIDS),
        Device(name="node7/cpu"),
    ) == DEVICES


def test_gpus_that_were_chosen_keep_their_spelling() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "4, GPU-a,nonsense"}
    chosen = devices_here(machine(*GPUS[:2]), environment, NO_KERNEL)
    assert [(one.name, one.visible) for one in chosen] == [
        ("GPU-c", "4"),
        ("GPU-a", "GPU-a"),
        ("node7/cpu", ""),
    ]


def test_two_containers_of_one_machine_call_its_cores_the_same(tmp_path: Path) -> None:
    """The database keeps apart what has one name; a container has a name of its own."""
    boots = {"here": "0b1c6c5e-31f0", "there": "77aa01c2-92bd"}
    for machine_name, boot in boots.items():
        random = tmp_path / machine_name / "proc" / "sys" / "kernel" / "random"
        random.mkdir(parents=True)
        (random / "boot_id").write_text(f"{boot}\n")

    def cores(container: str, machine_name: str) -> str:
        seen = replace(machine(), name=container)
        (device,) = devices_here(seen, {}, tmp_path / machine_name)
        return device.name

    assert cores("a1b2", "here") == cores("c3d4", "here") == "0b1c6c5e-31f0/cpu"
    assert cores("a1b2", "there") == "77aa01c2-92bd/cpu"
    assert cores("a1b2", "without") == "a1b2/cpu"


def test_a_rank_alone_has_a_place_on_each_gpu() -> None:
    found = places(EMULATED, DEVICES)
    assert [(place.own, place.visible) for place in found] == [
        (("GPU-a",), ("GPU-a",)),
        (("GPU-b",), ("GPU-b",)),
        (("GPU-c",), ("GPU-c",)),
    ]
    assert found[0].rest == ("GPU-b", "GPU-c", "node7/cpu")
    assert found[1].rest == ("GPU-a", "GPU-c", "node7/cpu")


@pytest.mark.parametrize(
    ("kind", "visible"),
    [
        (Kind(ranks=2, world_size=2, device="cuda"), ("GPU-c", "GPU-a")),
        (Kind(ranks=2, world_size=2, device="cpu"), ()),
        (Kind(ranks=1, world_size=8, device="cpu", fidelity=Fidelity.EMULATED), ()),
    ],
)
def test_others_have_the_machine_for_themselves(kind: Kind, visible: tuple[str, ...]) -> None:
    everything = ("GPU-a", "GPU-b", "GPU-c", "node7/cpu")
    assert places(kind, DEVICES) == (Place(own=everything, visible=visible),)


def test_a_machine_without_a_gpu_has_one_place() -> None:
    for kind in (EMULATED, Kind(ranks=1, world_size=1, device="cpu")):
        assert places(kind, devices_here(machine(), {}, NO_KERNEL)) == (Place(own=("node7/cpu",)),)


def test_the_first_gpus_are_those_that_cuda_would_take() -> None:
    assert first_gpus(DEVICES, 2) == ("GPU-c", "GPU-a")
    assert first_gpus(devices_here(machine(), {}, NO_KERNEL), 2) == ()
