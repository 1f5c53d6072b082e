import pytest

from tests.unit.cost.test_prediction import predicted
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import parse_settings
from tuner.core.framework import Framework, FrameworkName
from tuner.cost.memory.device import (
    MIB,
    UNSPLIT,
    beyond,
    communicator_count,
    device_terms,
    workspaces,
)

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
        low, value, high = ends(workspaces(cluster.gpu))
        assert value == 2 * mib * 2**20
        assert low <= 2 * 8.125 * 2**20 <= high or not mib
        assert high >= 2 * value


TORCH = Framework(name=FrameworkName.TORCH)


def test_what_a_tensor_in_new_memory_gets_beyond_its_size():
    for mib, more in [
        (0.5, 0),  # the small pool splits every block
        (1, 0),
        (4, 0),  # five in 20 MiB
        (9.5, 0.5),  # two, and 1 MiB is left, which the second keeps
        (9.0, 0),  # two, and 2 MiB are left, which are given to others
        (43, 1),  # in a segment of 44
        (62.5, 0),  # in one of 64, of which 1.5 MiB are split off
        (125.25, 0.75),
        (126, 0),
    ]:
        assert beyond(mib * MIB) == more * MIB


CODELLAMA = [
    # seen: torch's allocator, 2.13.0, rank 0 alone (benchmarks/results/cuda-allocator.json)
    ("sharding=full_shard,activation_checkpointing=full", 42_720_865_792, 485),
    ("tp_size=8,tp_recompute_allgather=true,activation_checkpointing=full", 43_009_295_872, 720),
]


def test_tensors_of_odd_mebibytes_cost_what_the_allocator_shows():
    """Three matrices of each of 48 layers are 43 MiB on a rank: 720 with what goes with them."""
    for text, seen, more_mib in CODELLAMA:
        found = predicted(text, "8xh200", TORCH, "codellama-34b")
        assert found.allocated_bytes.value == pytest.approx(seen, rel=0.0025)
        assert found.breakdown[UNSPLIT] / MIB == pytest.approx(more_mib, rel=0.1)
        assert sum(found.breakdown.values()) == pytest.approx(max(found.by_phase.values()))
