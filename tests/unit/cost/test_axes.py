import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import FSDP, Sharding, parse_settings
from tuner.cost.memory.shards import Sizes, axis_sizes, is_fsdp, shard_ranks

CLUSTER = parse_cluster("4x8xh100-80gb")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("sharding=ddp", Sizes(tp=1, shard=1, replicate=1, dp=32)),
        ("sharding=zero1,tp_size=2,pp_size=4", Sizes(tp=2, shard=1, replicate=1, dp=4)),
        ("sharding=full_shard,tp_size=4", Sizes(tp=4, shard=8, replicate=1, dp=8)),
        ("sharding=hybrid_shard,tp_size=2", Sizes(tp=2, shard=4, replicate=4, dp=16)),
        ("sharding=full_shard,tp_size=32", Sizes(tp=32, shard=1, replicate=1, dp=1)),
    ],
)
def test_ranks_of_each_axis(text: str, sizes: Sizes) -> None:
    found = axis_sizes(parse_settings(text), CLUSTER)
    assert found == sizes
    assert is_fsdp(parse_settings(text), CLUSTER) is (sizes.shard > 1)


def test_the_optimizers_state_is_split_without_fsdp_too() -> None:
    ranks = {s: shard_ranks(parse_settings(f"sharding={s}"), CLUSTER) for s in Sharding}
    assert ranks == {
        "ddp": 1,
        "zero1": 32,
        "shard_grad_op": 32,
        "full_shard": 32,
        "hybrid_shard": 8,
    }
    assert {s for s in Sharding if is_fsdp(parse_settings(f"sharding={s}"), CLUSTER)} == set(FSDP)
