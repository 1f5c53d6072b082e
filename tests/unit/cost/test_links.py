import pytest

from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.cost.constants import default_costs
from tuner.cost.memory.shards import Axis, Sizes, axis_sizes
from tuner.cost.time.communication import Group, axis_group, ring_s, used_groups

CLUSTER, COSTS = parse_cluster("4x8xh100-80gb"), default_costs()
ONE, NODE = Group(ranks=1, ranks_per_node=1), Group(ranks=8, ranks_per_node=8)
ALL, REPLICAS = Group(ranks=32, ranks_per_node=8), Group(ranks=4, ranks_per_node=1)


def ring(size_bytes, group, count=1, *, twice=False):
    return ring_s(size_bytes, count, group, CLUSTER, COSTS, twice=twice)


def test_bytes_and_latencies_of_rings():
    assert ring(1e9, ONE) == ring(1e9, NODE, count=0) == 0
    once = ring(1e9, NODE)
    assert ring(1e9, NODE, twice=True) == pytest.approx(2 * once - COSTS.time.collective_s)
    ideal = 1e9 * 7 / 8 / 450e9
    assert ideal < ring(1e9, NODE) < 1.5 * ideal
    assert ring(0, NODE, count=3) == pytest.approx(3 * (7 * 3.4e-6 + COSTS.time.collective_s))
    between = 28 * 3.4e-6 + 3 * 14e-6 + COSTS.time.collective_s
    assert ring(0, ALL) == pytest.approx(between)


def test_a_group_over_nodes_has_the_ports_of_its_ranks():
    """A rank alone on its node has one port; eight of a node share eight."""
    assert ring(1e9, NODE) < ring(1e9, ALL) < ring(1e9, REPLICAS)


def test_who_is_on_an_axis():
    for text, axis, group in [
        ("tp_size=8,sharding=full_shard", Axis.TP, NODE),
        ("tp_size=8,sharding=full_shard", Axis.DP_SHARD, REPLICAS),
        ("sharding=hybrid_shard", Axis.DP_SHARD, NODE),
        ("sharding=hybrid_shard", Axis.DP_REPLICATE, REPLICAS),
        ("sharding=ddp", Axis.DP, ALL),
    ]:
        sizes = axis_sizes(parse_settings(text), CLUSTER)
        assert axis_group(axis, sizes, CLUSTER) == group
        assert group in used_groups(sizes, CLUSTER)
        assert all(found.ranks > 1 for found in used_groups(sizes, CLUSTER))


def test_ranks_of_each_axis():
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
