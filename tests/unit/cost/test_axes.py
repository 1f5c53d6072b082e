from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.cost.memory.shards import Sizes, axis_sizes

CLUSTER = parse_cluster("4x8xh100-80gb")


def test_ranks_of_each_axis() -> None:
    for text, sizes in [
        ("sharding=ddp", Sizes(tp=1, shard=1, replicate=1, dp=32)),
        ("sharding=zero1,tp_size=2,pp_size=4", Sizes(tp=2, shard=1, replicate=1, dp=4)),
        ("sharding=full_shard,tp_size=4", Sizes(tp=4, shard=8, replicate=1, dp=8)),
        ("sharding=hybrid_shard,tp_size=2", Sizes(tp=2, shard=4, replicate=4, dp=16)),
        ("sharding=full_shard,tp_size=32", Sizes(tp=32, shard=1, replicate=1, dp=1)),
    ]:
        found = axis_sizes(parse_settings(text), CLUSTER)
        assert found == sizes
        assert sizes.is_fsdp is (sizes.shard > 1)
