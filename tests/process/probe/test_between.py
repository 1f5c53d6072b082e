"""A process is brought back to what it was before a probe, and what stays behind is counted."""

import os

import pytest
import torch

from workers.probe.device import CpuDevice
from workers.probe.series import LOADED_BYTES, Between
from workers.probe.tracker import Phase

MIB = 2**20


@pytest.fixture
def device():
    return CpuDevice(Phase(), local_rank=0, limit_bytes=None)


def test_bytes_that_are_still_in_use_are_counted(device):
    between = Between()
    with device.tracker:
        kept = [torch.ones(3 * MIB // 4)]
    assert between.clean_up(device) == 3 * MIB
    kept.append(kept)  # of a cycle, which is collected
    del kept
    assert between.clean_up(device) == 0


def test_variables_are_as_they_were(device, monkeypatch):
    monkeypatch.setenv("KEPT", "1")
    between = Between()
    monkeypatch.setenv("KEPT", "2")
    monkeypatch.setenv("FSDP_NEW", "1")
    between.clean_up(device)
    assert os.environ["KEPT"] == "1"
    assert "FSDP_NEW" not in os.environ


def test_bytes_outside_of_the_allocator_are_held_to_the_first_probe(device, monkeypatch):
    outside = iter([500 * MIB, 500 * MIB + LOADED_BYTES, 501 * MIB + LOADED_BYTES])
    monkeypatch.setattr(CpuDevice, "overhead_bytes", lambda self: next(outside))
    between = Between()
    assert [between.clean_up(device) for _ in range(3)] == [0, 0, MIB + LOADED_BYTES]
    assert LOADED_BYTES > 8 * MIB
