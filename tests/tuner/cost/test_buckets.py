"""DDP's buckets, and when they are full."""

from tuner.catalog.models import read
from tuner.cost.buckets import BUCKET_BYTES, FIRST_BUCKET_BYTES, ddp_buckets, full_buckets_bytes


def test_buckets_hold_every_gradient_once_and_reach_their_caps() -> None:
    model = read("stories15m")
    first, *others, last = ddp_buckets(model, 4)
    assert first + sum(others) + last == 4 * model.parameters
    assert first >= FIRST_BUCKET_BYTES
    assert all(size >= BUCKET_BYTES for size in others)


def test_buckets_fill_as_backward_comes_down() -> None:
    model = read("stories15m")
    full = full_buckets_bytes(model, 4)
    assert len(full) == model.layers + 1
    assert list(full) == sorted(full, reverse=True)
    assert full[0] < 4 * model.parameters  # the embedding's gradient is missing
    assert {0, *ddp_buckets(model, 4)[:1]} & {full[-1]}
