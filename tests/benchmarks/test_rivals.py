import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings, Sharding

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
    ("sharding", "per_parameter"),
    [
        (Sharding.DDP, 16.0),
        (Sharding.ZERO1, 4 + 12 / 8),
        (Sharding.SHARD_GRAD_OP, 2 + 14 / 8),
        (Sharding.FULL_SHARD, 16 / 8),
    ],
)
def test_the_papers_stages_shard_one_more_part_each(rivals, sharding, per_parameter) -> None:
    shards = 1 if sharding is Sharding.DDP else 8
    assert rivals.states_bytes(1000, sharding, shards) == 1000 * per_parameter


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


def test_ranks_that_share(rivals) -> None:
    cluster = parse_cluster("2x8xh100-80gb")
    shards = {s: rivals.shard_size(Settings(sharding=s), cluster) for s in Sharding}
    assert shards == {
        Sharding.DDP: 1,
        Sharding.ZERO1: 16,
        Sharding.SHARD_GRAD_OP: 16,
        Sharding.FULL_SHARD: 16,
        Sharding.HYBRID_SHARD: 8,
    }
    tp = Settings(sharding=Sharding.FULL_SHARD, tp_size=4)
    assert rivals.shard_size(tp, cluster) == 4
