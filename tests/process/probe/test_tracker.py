"""Bytes of live storages, peaks by phase, the limit, and collectives."""

import gc

import pytest
import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from workers.probe.tracker import BLOCK_BYTES, MemoryLimitError, Phase, StorageTracker

KIB = 1024


def test_counts_live_storages_and_keeps_the_peak():
    with StorageTracker(Phase()) as tracker:
        first = torch.empty(4 * KIB, dtype=torch.uint8)
        second = torch.empty(8 * KIB, dtype=torch.uint8)
        del first
        third = torch.empty(2 * KIB, dtype=torch.uint8)
    assert tracker.current_bytes == second.nbytes + third.nbytes
    assert tracker.peak_bytes == 12 * KIB


def test_views_share_a_storage_and_small_ones_are_rounded_up():
    with StorageTracker(Phase()) as tracker:
        tensor = torch.empty(10, dtype=torch.uint8)
        views = [tensor.view(2, 5), tensor[3:], tensor.t()]
    assert tracker.current_bytes == BLOCK_BYTES
    assert len(views) == 3


def test_follows_resize_of_a_storage():
    with StorageTracker(Phase()) as tracker:
        tensor = torch.empty(4 * KIB, dtype=torch.uint8)
        tensor.untyped_storage().resize_(0)
        assert tracker.current_bytes == 0
        tensor.untyped_storage().resize_(8 * KIB)
        assert tracker.current_bytes == 8 * KIB


@pytest.mark.parametrize(
    ("backend", "name"), [(SDPBackend.FLASH_ATTENTION, "flash"), (SDPBackend.MATH, "math")]
)
def test_counts_kernels_of_attention_in_the_first_forward(backend, name):
    """Not again in forward that backward runs, nor in micro-batches after the first."""
    x = torch.ones(1, 2, 8, 16, requires_grad=True)

    def attend():
        with sdpa_kernel(backend):
            scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward()

    phase = Phase()
    with StorageTracker(phase) as tracker:
        for phase.name, phase.micro_batch in (("forward", 1), ("backward", 1), ("forward", 2)):
            attend()
            attend()
    assert tracker.attention == {name: 2}


def test_peak_of_each_phase_holds_what_was_there_before():
    phase = Phase("forward")
    with StorageTracker(phase) as tracker:
        kept = torch.empty(4 * KIB, dtype=torch.uint8)
        phase.name = "backward"
        tracker.note_phase()
        del kept
        gc.collect()
        phase.name = "optimizer"
        tracker.note_phase()
    assert tracker.peak_by_phase == {"forward": 4 * KIB, "backward": 4 * KIB, "optimizer": 0}


def test_the_limit_is_an_error_that_says_how_much_was_asked():
    with (
        StorageTracker(Phase(), limit_bytes=8 * KIB) as tracker,
        pytest.raises(MemoryLimitError) as caught,
    ):
        kept = torch.empty(6 * KIB, dtype=torch.uint8)
        torch.empty(4 * KIB, dtype=torch.uint8)
    assert kept.nbytes == 6 * KIB
    assert caught.value.requested_bytes == 4 * KIB
    assert caught.value.allocated_bytes == 6 * KIB
    assert caught.value.limit_bytes == 8 * KIB
    assert tracker.peak_bytes == 6 * KIB


def test_backward_frees_what_forward_kept():
    """Known by hand: a product keeps its inputs, and gradients are as large as the weights."""
    weight = torch.ones(64, 64, requires_grad=True)  # 16 KiB
    with StorageTracker(Phase()) as tracker:
        tracker.add(weight)
        loss = (weight * 2).pow(2).sum()
        held = tracker.current_bytes  # weight, weight * 2, and the loss; pow(2) is gone
        loss.backward()
        del loss
    assert held == 2 * 16 * KIB + BLOCK_BYTES
    assert tracker.current_bytes == 2 * 16 * KIB  # the weight and its gradient


def test_records_collectives_with_their_phase_and_whole_bytes(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/r", rank=0, world_size=1)
    try:
        phase = Phase("backward")
        with StorageTracker(phase) as tracker:
            tensor = torch.ones(256)
            dist.all_reduce(tensor)
            dist.all_gather([torch.empty(256)], tensor)
            dist.barrier()
    finally:
        dist.destroy_process_group()
    assert [(c.op, c.phase, c.bytes) for c in tracker.calls] == [
        ("all_reduce", "backward", KIB),
        ("all_gather", "backward", KIB),
    ]
    assert len({c.group for c in tracker.calls}) == 1
