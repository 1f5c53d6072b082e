"""DDP's buckets by arithmetic."""

import torch

from workers.probe.replica import buckets

MIB = 2**20


def parameters(*mib: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    return [torch.empty(size * MIB // dtype.itemsize, dtype=dtype, device="meta") for size in mib]


def test_buckets_close_at_1_and_then_at_25_mib_from_the_last_parameter_on() -> None:
    found = buckets(parameters(40, 3, 20, 10, 1))
    assert [size // MIB for size in found] == [1, 30, 43]


def test_what_is_left_is_a_bucket_too() -> None:
    assert [size // MIB for size in buckets(parameters(2, 4, 1))] == [1, 6]


def test_dtypes_do_not_share_buckets() -> None:
    mixed = [*parameters(1), *parameters(1, dtype=torch.bfloat16)]
    assert buckets(mixed) == [MIB, MIB]
