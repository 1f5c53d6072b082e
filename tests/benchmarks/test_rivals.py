import pytest

from tuner.core.configuration import Settings, Sharding

pytestmark = pytest.mark.long

WHOLE = {"model": 4.0, "gradients": 6.0, "optimizer": 8.0, "step": 8.0}
"""Accelerate's figures of one parameter in mixed precision."""
FP32 = {"model": 4.0, "gradients": 4.0, "optimizer": 8.0, "step": 16.0}


@pytest.fixture
def rivals(benchmark):
    return benchmark("rivals")


@pytest.mark.parametrize(
    ("sharding", "mixed", "fp32"),
    [
        (Sharding.DDP, 8.0, 16.0),
        (Sharding.ZERO1, 6.0, 4 + 4 + 8 / 8),
        (Sharding.SHARD_GRAD_OP, 4.0, 4 + 4 / 8 + 8 / 8),
        (Sharding.FULL_SHARD, 8 / 8, 16 / 8),
    ],
)
def test_accelerates_figures_are_divided_where_they_are_sharded(
    rivals, sharding, mixed, fp32
) -> None:
    shards = 1 if sharding is Sharding.DDP else 8
    assert rivals.accelerate_sharded(WHOLE, sharding, shards) == mixed
    assert rivals.accelerate_sharded(FP32, sharding, shards) == fp32


@pytest.mark.parametrize(
    ("sharding", "expected"),
    [
        (Sharding.DDP, 20 * 1000),
        (Sharding.ZERO1, (8 + 12 / 8) * 1000),
        (Sharding.SHARD_GRAD_OP, 2 * 1000 + 18 * 1000 / 8),
        (Sharding.FULL_SHARD, 4 * 100 + 18 * 1000 / 8),
    ],
)
def test_deepspeeds_formulas(rivals, monkeypatch, sharding, expected) -> None:
    monkeypatch.setattr(rivals, "_counts", lambda model: (1000, 100))
    shards = 1 if sharding is Sharding.DDP else 8
    found = rivals.deepspeed_bytes(None, Settings(sharding=sharding), 1, shards)
    assert found == pytest.approx(expected)
