"""Copies in the place of what a rank alone would receive, timed in the memory that there is."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from workers.probe import run
from workers.probe.collectives import Call
from workers.probe.run import LEAST_BYTES, Alone

RANKS = 4
SIZE = 16 * 2**20
"""Bytes of the call's whole tensor."""
CALL = Call(op="all_gather", group="dp", bytes=SIZE, phase="forward", micro_batch=0)


class Device:
    """One that has so much room, and copies a byte in a nanosecond."""

    type = "cpu"
    torch_device = torch.device("meta")

    def __init__(self, room_bytes):
        self.room_bytes = room_bytes
        self.copied = []

    def copy(self, whole, part):
        if whole.numel() + part.numel() > self.room_bytes:
            raise MemoryError
        assert whole.numel() == RANKS * part.numel()
        self.copied.append(whole.numel())

    def seconds_of(self, work):
        work()
        return self.copied[-1] * 1e-9

    def out_of_memory(self, error):
        return "shortage" if isinstance(error, MemoryError) else None


def seconds(device, monkeypatch, op="all_gather", size=SIZE, dtype=torch.uint8):
    group = SimpleNamespace(size=lambda: RANKS)
    monkeypatch.setattr(run, "group_of_name", lambda name: group)
    monkeypatch.setattr(run, "gather_into", lambda whole, part, group: device.copy(whole, part))
    scatter = lambda part, whole, group: device.copy(whole, part)  # noqa: E731
    monkeypatch.setattr(run, "reduce_scatter_into", scatter)
    call = replace(CALL, op=op, bytes=size, dtype=dtype)
    return Alone(device=device, axes={})._copy_s(call)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("room_bytes", "piece"), [(2**30, SIZE), (2**22, SIZE // 8)])
def test_copies_are_timed_in_the_room_there_is(monkeypatch, room_bytes, piece, op):
    device = Device(room_bytes)
    assert seconds(device, monkeypatch, op) == pytest.approx(SIZE * 1e-9)
    assert set(device.copied) == {piece}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_copies_are_of_as_many_elements_as_the_steps_own(monkeypatch, dtype):
    """A kernel that copies elements takes as long for bytes as for fp32."""
    device = Device(2**30)
    assert seconds(device, monkeypatch, dtype=dtype) == pytest.approx(SIZE / dtype.itemsize * 1e-9)
    assert set(device.copied) == {SIZE // dtype.itemsize}


def test_without_any_room_copies_are_left_out_and_the_steps_stay(monkeypatch):
    device = Device(LEAST_BYTES // 2)
    assert seconds(device, monkeypatch) == 0.0
    found = Alone(
        device=device, axes={"dp": "dp_shard"}, seconds={1: [{"forward": 0.5}]}, calls={1: [CALL]}
    )
    values = found.values()
    assert values["copies_s"] == {"1": {"forward": 0.0}}
    assert values["copies_left_out"] == f"no memory was left to time all_gather of {SIZE} bytes"
    assert found.computing_s() == {1: [0.5]}
    assert device.copied == []
