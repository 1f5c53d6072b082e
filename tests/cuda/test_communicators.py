"""Communicators: as many as predicted are there when memory is read, and made when ranks meet."""

import pytest

from tests.cuda.probing import LLAMA, probe_all, spec
from tuner.core.cluster import parse_cluster
from tuner.core.configuration import Settings
from tuner.cost.memory.device import communicator_count

CONTEXT_BYTES = 512 * 2**20
COMMUNICATOR_BYTES = 300 * 2**20
SMALL = {
    "model": LLAMA | {"hidden_size": 256, "num_hidden_layers": 2, "intermediate_size": 512},
    "sequence_length": 128,
}
OF_TWO = (
    {"sharding": "ddp"}, {"sharding": "full_shard"}, {"tp_size": 2},
)  # fmt: skip
OF_FOUR = (
    {"sharding": "hybrid_shard"}, {"sharding": "full_shard", "tp_size": 2},
)  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "cluster", "cases"), [(2, "2xh200", OF_TWO), (4, "2x2xh200", OF_FOUR)]
)
def test_overhead_is_of_the_context_and_of_the_communicators_that_are_predicted(
    gpus, tmp_path, ranks, cluster, cases
):
    gpus(ranks, nccl_mib=300)
    specs = [spec(ranks, **SMALL, **case) for case in cases]
    for values, probed in zip(specs, probe_all(specs, tmp_path), strict=True):
        found = probed.measurement
        assert found.outcome == "ok", found.detail
        assert found.memory
        count = communicator_count(Settings.from_dict(values["settings"]), parse_cluster(cluster))
        assert found.memory.overhead_bytes == CONTEXT_BYTES + count * COMMUNICATOR_BYTES


def test_nccl_that_cannot_begin_fails_at_the_start(gpus, tmp_path):
    gpus(2, mib=1000, nccl_mib=600)
    (probed,) = probe_all([spec(2, sharding="full_shard", **SMALL)], tmp_path)
    oom = probed.measurement.oom
    assert oom
    assert oom.phase == "start"
    assert oom.requested_bytes == 6291456
