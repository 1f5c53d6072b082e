from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import Framework, FrameworkName
from tuner.cost.memory.device import communicator_count, device_terms, workspace_bytes, workspaces

GIB = 2**30
FULL_SHARD = parse_settings("sharding=full_shard")
A100S = parse_cluster("8xa100-80gb")


def stack(accelerate, torch):
    versions = {"accelerate": accelerate, "torch": torch}
    return Framework(name=FrameworkName.ACCELERATE, versions=versions)


def ends(quantity):
    assert quantity.value is not None
    assert quantity.low is not None
    assert quantity.high is not None
    return quantity.low, quantity.value, quantity.high


def test_groups_of_more_than_one_rank_are_counted_once():
    for cluster, settings, count in [
        ("1xh100-80gb", "sharding=ddp", 0),
        ("8xh100-80gb", "sharding=full_shard", 1),
        ("8xh100-80gb", "sharding=ddp,tp_size=8", 1),
        ("8xh100-80gb", "sharding=full_shard,tp_size=2", 3),
        ("2x8xh100-80gb", "sharding=full_shard", 1),
        ("2x8xh100-80gb", "sharding=hybrid_shard", 3),
        ("2x8xh100-80gb", "sharding=hybrid_shard,tp_size=8", 3),
        ("4x8xh100-80gb", "sharding=zero1,tp_size=2,pp_size=4", 4),
    ]:
        assert communicator_count(parse_settings(settings), parse_cluster(cluster)) == count


def test_reserved_memory_ends_where_the_device_does():
    for allocated in (60 * GIB, 78.5 * GIB, 90 * GIB):
        terms = device_terms(FULL_SHARD, A100S, allocated, framework=stack("0.27.0", "2.2.0"))
        outside = ends(terms.context)[1] + ends(terms.communicators)[1]
        most = max(A100S.gpu.memory_bytes, allocated + outside)
        assert allocated + outside + ends(terms.reserved_free)[2] <= most
    assert ends(terms.reserved_free) == (0, 0, 0)


def test_a_workspace_is_as_large_as_torch_has_it_by_default():
    for gpu, mib in [
        *(("1xa100-80gb", 8.125), ("1xv100-32gb", 8.125), ("1xrtx-4090", 8.125)),
        *(("1xh100-80gb", 32), ("1xh200", 32), ("1xgh200", 32), ("1xb200", 32), ("1xrtx-5090", 32)),
        *(("1xmi250x", 32), ("1xmi300x", 128), ("cpu:1", 0)),
    ]:
        cluster = parse_cluster(gpu)
        assert workspace_bytes(cluster.gpu) == mib * 2**20
        low, value, high = ends(workspaces(cluster.gpu))
        assert value == 2 * mib * 2**20
        assert low <= 2 * 8.125 * 2**20 <= high or not mib
        assert high >= 2 * value
