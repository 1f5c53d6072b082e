"""A CUDA device reads the allocator at the right moments; the allocator is stood in for."""

from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from workers.probe import device as devices
from workers.probe import nvidia_smi
from workers.probe.device import CudaDevice
from workers.probe.record import Record
from workers.probe.run import local_bytes
from workers.probe.tracker import INSTRUMENT, Phase

MIB = 2**20


class Allocator:
    """What CUDA's caching allocator would say."""

    def __init__(self):
        self.allocated = self.peak = self.retries = 0
        self.is_lost = False
        self.outside = 0
        self.has_context = False
        self.share = None
        self.observer = None

    def hold(self, size):
        self.allocated = size
        self.peak = max(self.peak, size)

    def free_and_total(self, _):
        if self.is_lost:
            raise torch.AcceleratorError("CUDA error: unspecified launch failure")
        return 80 * MIB - self.allocated - self.outside, 80 * MIB

    def set_device(self, _):
        """CUDA makes a context where a device is first made the current one."""
        self.outside += 0 if self.has_context else MIB
        self.has_context = True

    def reset(self, _=None):
        self.peak = self.allocated


@pytest.fixture
def allocator(monkeypatch):
    made = Allocator()

    def attach(observer):
        made.observer = observer

    monkeypatch.setattr(devices, "_HELD_BEFORE", {})
    stands_in = {
        "set_device": made.set_device,
        "device_count": lambda: 1,
        "get_allocator_backend": lambda: "native",
        "synchronize": lambda _: None,
        "empty_cache": lambda: None,
        "get_device_properties": lambda _: SimpleNamespace(
            name="NVIDIA H200", uuid="5c9d", total_memory=80 * MIB
        ),
        "set_per_process_memory_fraction": lambda share, _: setattr(made, "share", share),
        "memory_stats": lambda _: {"num_alloc_retries": made.retries},
        "max_memory_allocated": lambda _: made.peak,
        "max_memory_reserved": lambda _: made.peak,
        "memory_allocated": lambda _: made.allocated,
        "memory_reserved": lambda _: made.allocated,
        "mem_get_info": made.free_and_total,
        "reset_peak_memory_stats": made.reset,
        "reset_accumulated_memory_stats": lambda _: setattr(made, "retries", 0),
    }
    for name, function in stands_in.items():
        monkeypatch.setattr(torch.cuda, name, function)
    monkeypatch.setattr(nvidia_smi, "ask", lambda *_: {})
    has_context = lambda _: made.has_context  # noqa: E731
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", has_context, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", attach, raising=False)
    return made


def test_a_shortage_is_what_was_allocated_when_it_happened(allocator):
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=40 * MIB)
    allocator.hold(39 * MIB)
    allocator.observer(0, 2 * MIB, 40 * MIB, MIB)
    allocator.hold(5 * MIB)  # tensors died while the error rose
    shortage = device.out_of_memory(torch.OutOfMemoryError())
    assert shortage.requested_bytes == 2 * MIB
    assert shortage.allocated_bytes == 39 * MIB
    assert shortage.limit_bytes == 40 * MIB
    assert device.out_of_memory(RuntimeError("out of memory")) is None


def test_a_probe_after_another_has_its_own_limit_and_shortage(allocator):
    CudaDevice(Phase(), local_rank=0, limit_bytes=40 * MIB)
    first, allocator.retries = allocator.observer, 3
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
    assert allocator.share == 1.0
    assert device.allocation_retries() == 0
    allocator.retries = 2
    assert device.allocation_retries() == 2
    first(0, 2 * MIB, 40 * MIB, MIB)  # observers stay, and the device of this one is gone
    allocator.observer(0, 4 * MIB, 40 * MIB, MIB)
    shortage = device.out_of_memory(torch.OutOfMemoryError())
    assert shortage.requested_bytes == 4 * MIB


def test_what_is_only_cached_goes_back(allocator, monkeypatch):
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
    allocator.hold(5 * MIB)
    given = []
    for name, size in (("_cuda_clearCublasWorkspaces", 3 * MIB), ("_host_emptyCache", 5 * MIB)):
        give = lambda size=size: (given.append(size), allocator.hold(size))  # noqa: E731
        monkeypatch.setattr(torch._C, name, give, raising=False)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: allocator.hold(MIB))
    assert device.give_back() == MIB
    assert len(given) == 2


@pytest.mark.parametrize(
    ("limit", "own", "share"), [(200 * MIB, 80 * MIB, 1.0), (20 * MIB, 20 * MIB, 0.25)]
)
def test_a_limit_caps_the_allocator_as_far_as_the_device_has_memory(allocator, limit, own, share):
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=limit)
    allocator.observer(0, 2 * MIB, 80 * MIB, MIB)
    shortage = device.out_of_memory(torch.OutOfMemoryError())
    assert (shortage.limit_bytes, allocator.share) == (own, share)


@pytest.mark.parametrize(("code", "is_shortage"), [(2, True), (700, False)])
def test_memory_that_cuda_itself_wants(allocator, code, is_shortage):
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
    error = torch.AcceleratorError("CUDA error")
    error.error_code = code
    assert (device.out_of_memory(error) is not None) is is_shortage


def test_what_a_probe_before_held_is_no_peak_of_this_one(allocator):
    allocator.hold(60 * MIB)
    allocator.hold(MIB)
    phase = Phase()
    device = CudaDevice(phase, local_rank=0, limit_bytes=None)
    shortage = device.out_of_memory(torch.OutOfMemoryError())
    assert shortage.allocated_bytes == MIB
    phase.name = "build"
    device.enter_phase()
    allocator.hold(30 * MIB)  # weights are filled
    allocator.hold(8 * MIB)
    phase.name = "forward"
    device.start_steps()
    allocator.hold(20 * MIB)
    device.end_step()
    assert device.peaks.allocated == 20 * MIB
    assert device.peaks.reserved == 20 * MIB
    assert device.peaks.by_phase == {"forward": 20 * MIB}


NCCL = "NCCL error in: NCCLUtils.cpp:96, unhandled cuda error\nLast error:\n"


def test_where_nvml_refuses_a_shortage_is_the_peak_of_its_phase(allocator):
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
    allocator.hold(70 * MIB)
    allocator.hold(5 * MIB)  # tensors died while the error rose, and no observer was told before
    record = Record(rank=0)
    where = '"/pytorch/c10/cuda/CUDACachingAllocator.cpp":1165'
    refused = f"NVML_SUCCESS == r INTERNAL ASSERT FAILED at {where}, please report a bug to PyTorch"
    record.fail(RuntimeError(refused), "backward", device)
    assert record.outcome == "oom"
    sizes = {"requested_bytes": 0, "allocated_bytes": 70 * MIB, "reserved_bytes": 70 * MIB}
    assert record.oom == {"phase": "backward", **sizes, "limit_bytes": 80 * MIB}


def test_an_allocator_without_an_observer_runs_probes(allocator, monkeypatch):
    def refuse(_):
        raise RuntimeError("cudaMallocAsync does not yet support attachOutOfMemoryObserver")

    monkeypatch.setattr(torch._C, "_cuda_attach_out_of_memory_observer", refuse, raising=False)
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
    allocator.hold(30 * MIB)
    shortage = device.out_of_memory(torch.OutOfMemoryError())
    assert (shortage.requested_bytes, shortage.allocated_bytes) == (0, 30 * MIB)


@pytest.mark.parametrize(
    ("error", "size"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate`"), 0),
        (dist.DistBackendError(f"{NCCL}Failed to CUDA calloc 6291456 bytes"), 6 * MIB),
    ],
)
def test_memory_that_a_library_wants(allocator, error, size):
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
    allocator.hold(60 * MIB)
    allocator.observer(0, 90 * MIB, 80 * MIB, MIB)  # of before: torch got along without it
    record = Record(rank=0)
    record.fail(error, "forward", device)
    assert record.outcome == "oom"
    sizes = {"requested_bytes": size, "allocated_bytes": 60 * MIB, "reserved_bytes": 60 * MIB}
    assert record.oom == {"phase": "forward", **sizes, "limit_bytes": 80 * MIB}


def test_a_lost_device_refuses_memory_and_has_not_run_out_of_it(allocator):
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
    allocator.is_lost = True
    record = Record(rank=0)
    refused = dist.DistBackendError(f"{NCCL}Failed to CUDA calloc async 608 bytes")
    record.fail(refused, "forward", device)
    assert record.outcome == "communication_error"


def test_each_phase_has_its_own_peak(allocator):
    phase = Phase("build")
    device = CudaDevice(phase, local_rank=0, limit_bytes=None)
    allocator.hold(60 * MIB)
    allocator.hold(8 * MIB)
    device.start_steps()
    for name, highest in (("forward", 20), (INSTRUMENT, 70), ("optimizer", 30)):
        phase.name = name
        device.enter_phase()
        allocator.hold(highest * MIB)
        allocator.hold(10 * MIB)
    device.end_step()
    assert device.peaks.allocated == 30 * MIB
    by_phase = {"build": 8 * MIB, "forward": 20 * MIB, "optimizer": 30 * MIB}
    assert device.peaks.by_phase == by_phase


def test_what_others_held_before_is_not_of_the_probe(allocator, monkeypatch):
    asked = []

    def ask(uuids, *figures):
        asked.extend(uuids)
        return {"5c9d": dict.fromkeys(figures, str(allocator.outside // MIB))}

    monkeypatch.setattr(nvidia_smi, "ask", ask)
    allocator.outside = 7 * MIB
    for _ in range(2):  # the second in the same process, whose context is there by then
        device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
        allocator.hold(20 * MIB)
        assert device.process_bytes() == 28 * MIB
        assert device.overhead_bytes() == MIB
        hardware = device.hardware()
        assert hardware["used_at_start_bytes"] == 8 * MIB
        assert hardware["held_by_others_bytes"] == 7 * MIB
    assert asked == ["5c9d"]


def test_a_context_is_not_taken_for_others_memory(allocator, monkeypatch):
    monkeypatch.setattr(nvidia_smi, "ask", lambda *_: {"5c9d": {"memory.used": "9"}})
    allocator.set_device(0)
    device = CudaDevice(Phase(), local_rank=0, limit_bytes=None)
    assert device.overhead_bytes() == MIB


def test_bytes_on_another_device_are_not_held_by_this_one():
    tensors = [torch.empty(4), torch.empty(4, device="meta")]
    assert local_bytes(tensors, "cpu") == 16
