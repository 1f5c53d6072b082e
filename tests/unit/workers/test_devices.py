"""Devices of a machine: their names, shares and locks, and the clusters that they can be."""

from dataclasses import replace
from pathlib import Path

import pytest

from tuner import machine as facts
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.core.framework import Framework
from tuner.core.measurement import Fidelity
from tuner.core.script import Script
from tuner.core.study import ProbeRequest
from tuner.cost.prediction import predict
from tuner.errors import ProbeError
from tuner.machine import Machine, ReportedGpu, free_bytes
from tuner.model.shape import unnamed_model
from workers.devices import (
    Device,
    DeviceLocks,
    DeviceShare,
    check_free_memory,
    check_machine,
    devices_here,
    shares,
)
from workers.measuring.ranks import Kind

UUIDS = ("GPU-c", "GPU-a", "GPU-b")
GPUS = tuple(ReportedGpu(name="NVIDIA L4", memory_mib=23034, uuid=uuid) for uuid in UUIDS)
EMULATED = Kind(ranks=1, world_size=8, device="cuda", fidelity=Fidelity.EMULATED)


def machine(*gpus):
    return Machine(name="node7", gpus=gpus, cores=8, memory_bytes=2**33)


NO_KERNEL = Path("nowhere")


def test_a_rehearsal_is_of_no_device_here(question, monkeypatch):
    asked = replace(question, cluster=parse_cluster("64x8xh100-80gb"))
    monkeypatch.setattr(facts, "shows_gpu", lambda: False)
    monkeypatch.setattr(facts, "why_no_standin", lambda: "")
    assert check_machine(asked, Fidelity.REHEARSED) is False
    monkeypatch.setattr(facts, "why_no_standin", lambda: "there is no nm")
    with pytest.raises(ProbeError, match="cannot be rehearsed here: there is no nm"):
        check_machine(asked, Fidelity.REHEARSED)


DEVICES = devices_here(machine(*GPUS), {}, NO_KERNEL)


def test_gpus_are_named_by_their_uuids():
    """Numbers mean something else to CUDA than to the driver, unless somebody chose them."""
    assert (
        *(Device(name=uuid, visible=uuid) for uuid in UUIDS),
        Device(name="node7/cpu"),
    ) == DEVICES


def test_gpus_that_were_chosen_keep_their_spelling():
    environment = {"CUDA_VISIBLE_DEVICES": "4, GPU-a,nonsense"}
    chosen = devices_here(machine(*GPUS[:2]), environment, NO_KERNEL)
    assert [(one.name, one.visible) for one in chosen] == [
        ("GPU-c", "4"),
        ("GPU-a", "GPU-a"),
        ("node7/cpu", ""),
    ]


def test_two_containers_of_one_machine_call_its_cores_the_same(tmp_path):
    """The database keeps apart what has one name; a container has a name of its own."""
    boots = {"here": "0b1c6c5e-31f0", "there": "77aa01c2-92bd"}
    for machine_name, boot in boots.items():
        random = tmp_path / machine_name / "proc" / "sys" / "kernel" / "random"
        random.mkdir(parents=True)
        (random / "boot_id").write_text(f"{boot}\n")

    def cores(container, machine_name):
        seen = replace(machine(), name=container)
        (device,) = devices_here(seen, {}, tmp_path / machine_name)
        return device.name

    assert cores("a1b2", "here") == cores("c3d4", "here") == "0b1c6c5e-31f0/cpu"
    assert cores("a1b2", "there") == "77aa01c2-92bd/cpu"
    assert cores("a1b2", "without") == "a1b2/cpu"


def test_a_rank_alone_has_a_place_on_each_gpu():
    found = shares(EMULATED, DEVICES)
    assert [(place.own, place.visible) for place in found] == [
        (("GPU-a",), ("GPU-a",)),
        (("GPU-b",), ("GPU-b",)),
        (("GPU-c",), ("GPU-c",)),
    ]
    assert set(found[0].rest) == {"GPU-b", "GPU-c", "node7/cpu"}
    assert set(found[1].rest) == {"GPU-a", "GPU-c", "node7/cpu"}


def test_others_have_the_machine_for_themselves():
    for kind, visible in [
        (Kind(ranks=2, world_size=2, device="cuda"), ("GPU-c", "GPU-a")),
        (Kind(ranks=2, world_size=2, device="cpu"), ()),
        (Kind(ranks=1, world_size=8, device="cpu", fidelity=Fidelity.EMULATED), ()),
    ]:
        everything = tuple(device.name for device in DEVICES)
        assert shares(kind, DEVICES) == (DeviceShare(own=everything, visible=visible),)


A100 = ReportedGpu(name="NVIDIA A100-SXM4-80GB", memory_mib=81920)


def on(question, cluster):
    return replace(question, cluster=parse_cluster(cluster))


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ("4xa100-80gb", "this machine is 2xa100-80gb"),
        ("2xh100-80gb", "this machine is 2xa100-80gb"),
        ("2x1xa100-80gb", "it is 2 nodes, and this machine is 2xa100-80gb"),
    ],
)
def test_another_cluster_than_this_machine(question, monkeypatch, cluster, why):
    monkeypatch.setattr(facts, "visible_gpus", lambda: (A100, A100))
    with pytest.raises(ProbeError, match=why):
        check_machine(on(question, cluster))


@pytest.mark.parametrize(
    "cluster", ["4xa100-80gb", "2x8xa100-80gb", "8xa100-40gb", "cpu:64", "4x8xcpu"]
)
def test_one_device_plays_rank_0_of_any_cluster_of_its_kind_or_of_smaller_ones(
    question, monkeypatch, cluster
):
    monkeypatch.setattr(facts, "visible_gpus", lambda: (A100,))
    stands_in = check_machine(on(question, cluster), Fidelity.EMULATED)
    assert stands_in is (cluster == "8xa100-40gb")


@pytest.mark.parametrize(
    ("gpus", "why"), [((), "shows none here"), ((A100,), r"one here \(a100-80gb\) has 80\.0 GiB")]
)
def test_a_device_that_is_too_small_plays_nothing(question, monkeypatch, gpus, why):
    monkeypatch.setattr(facts, "visible_gpus", lambda: gpus)
    with pytest.raises(ProbeError, match=why):
        check_machine(on(question, "8xh200-141gb"), Fidelity.EMULATED)


def test_other_versions_than_were_stated(question):
    versions = dict(question.framework.versions)
    package = next(iter(versions))
    stated = Framework(name=question.framework.name, versions={**versions, package: "2.11.9"})
    with pytest.raises(ProbeError, match=f"states {package} 2.11.9"):
        check_machine(replace(question, framework=stated))


def has_free(monkeypatch, root, size):
    """Has this machine's kernel tell so many free bytes, of more."""
    (root / "proc").mkdir(exist_ok=True)
    told = f"MemTotal: {2**36} kB\nMemAvailable: {size // 1024} kB\n"
    (root / "proc" / "meminfo").write_text(told)
    monkeypatch.setattr("workers.devices.free_bytes", lambda: free_bytes(root))


def test_ranks_on_the_cpu_start_only_where_what_they_need_is_free(question, monkeypatch, tmp_path):
    settings = Settings(micro_batch_size=2, gradient_accumulation_steps=1)
    alone = ProbeRequest(settings=settings, fidelity=Fidelity.EMULATED)
    both = replace(alone, fidelity=Fidelity.MEASURED)
    found = predict(question.workload, question.cluster, question.framework, settings)
    needed = int(found.allocated_bytes.value)
    has_free(monkeypatch, tmp_path, needed + 1024)
    check_free_memory(question, alone)
    with pytest.raises(ProbeError, match=r"needs some \S+ GiB in its 2 ranks, and \S+ GiB"):
        check_free_memory(question, both)
    has_free(monkeypatch, tmp_path, 2 * needed + 1024)
    check_free_memory(question, both)
    has_free(monkeypatch, tmp_path, 0)
    check_free_memory(on(question, "2xa100-80gb"), both)  # GPUs have memory of their own
    unnamed = replace(question.workload, model=unnamed_model())
    sizes = "{micro_batch_size} {gradient_accumulation_steps}"
    script = Script(path="/train.py", sha256="0" * 64, folder="/", arguments=(sizes,))
    check_free_memory(replace(question, workload=unnamed, script=script), both)


def test_what_a_control_group_holds_is_not_free(tmp_path, monkeypatch):
    has_free(monkeypatch, tmp_path, 10_000 * 1024)
    assert free_bytes(tmp_path) == 10_000 * 1024
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    told = {"max": "5000\n", "current": "4000\n", "stat": "anon 3000\ninactive_file 700\n"}
    for name, text in told.items():
        (group / f"memory.{name}").write_text(text)
    assert free_bytes(tmp_path) == 5000 - 4000 + 700
    (group / "memory.max").write_text("max\n")
    assert free_bytes(tmp_path) == 10_000 * 1024


ONE = ("GPU-1",)


def test_a_lock_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "lock.GPU-1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProbeError, match="cannot lock"):
        DeviceLocks(tmp_path / "lock", ONE).acquire()
    assert not (tmp_path / "elsewhere").exists()


def test_who_holds_a_turn_knows_whether_another_waits(tmp_path):
    holder, other, third = (DeviceLocks(tmp_path / "lock", ONE) for _ in range(3))
    assert holder.acquire()
    assert not holder.wanted
    assert not other.acquire()
    assert holder.wanted
    assert not third.acquire()
    other.release()
    assert holder.wanted
    third.release()
    assert not holder.wanted
    assert not other.acquire()
    holder.release()
    assert other.acquire()
    assert not other.wanted


def test_devices_are_taken_in_one_order_gpus_first():
    names = ["GPU-b", "a/cpu", "GPU-a", "Z/cpu"]
    assert DeviceLocks(Path("x"), names).devices == ("GPU-a", "GPU-b", "Z/cpu", "a/cpu")


def test_a_turn_on_several_keeps_what_it_has_and_waits_for_the_rest(tmp_path):
    first, second, third = (
        DeviceLocks(tmp_path / "lock", [name]) for name in ("GPU-1", "GPU-2", "GPU-3")
    )
    whole = DeviceLocks(tmp_path / "lock", ["GPU-3", "GPU-1", "GPU-2"])
    assert second.acquire()
    assert third.acquire()
    assert not whole.acquire()
    assert not whole.held
    assert not first.acquire()  # it is kept for the whole
    assert whole.wanted
    assert second.wanted
    assert third.wanted  # also those behind the one that is waited for
    third.release()
    assert not whole.acquire()
    assert third.acquire()  # what comes later in the order is not had before
    third.release()
    second.release()
    assert whole.acquire()
    assert not second.acquire()
    whole.release()
    assert second.acquire()
    second.release()


def test_what_is_free_is_taken_whole_or_not_at_all_and_quietly(tmp_path):
    holder, whole = (
        DeviceLocks(tmp_path / "lock", ["GPU-2"]),
        DeviceLocks(tmp_path / "lock", ["GPU-1", "GPU-2"]),
    )
    assert holder.acquire()
    assert not whole.acquire_at_once()
    assert not holder.wanted
    other = DeviceLocks(tmp_path / "lock", ["GPU-1"])
    assert other.acquire()
    other.release()
    holder.release()
    assert whole.acquire_at_once()
    assert whole.held
    assert whole.acquire_at_once()
    whole.release()


def test_two_that_want_everything_do_not_wait_for_each_other(tmp_path):
    names = ["GPU-1", "GPU-2", "host/cpu"]
    one, other = DeviceLocks(tmp_path / "lock", names), DeviceLocks(tmp_path / "lock", names[::-1])
    assert not all(turn.acquire() for turn in (one, other))
    assert one.held
    one.release()
    assert other.acquire()
    other.release()


def test_devices_that_nobody_else_wants_have_no_locks(tmp_path):
    one, other = DeviceLocks(None, ["n2/cpu", "GPU-1"]), DeviceLocks(None, ["GPU-1"])
    assert one.acquire()
    assert other.acquire_at_once()
    assert one.devices == ("GPU-1", "n2/cpu")
    assert not one.wanted
    assert list(tmp_path.iterdir()) == []
