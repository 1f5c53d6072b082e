"""Ranks of each mesh axis: how settings split a cluster."""

from enum import StrEnum
from typing import NamedTuple

from tuner.cluster import Cluster
from tuner.settings import FSDP, Settings, Sharding


class Axis(StrEnum):
    """Mesh axes."""

    DP = "dp"  # DDP's replicas
    DP_SHARD = "dp_shard"  # ranks that FSDP shards over
    DP_REPLICATE = "dp_replicate"  # ranks that hold equal shards (hybrid_shard)
    TP = "tp"


class Sizes(NamedTuple):
    """Ranks on each axis."""

    tp: int
    shard: int
    """Ranks that FSDP shards over; 1 without it."""
    replicate: int
    """Ranks that hold equal shards; 1 unless FSDP shards within nodes."""
    dp: int
    """Ranks that see different data, with FSDP or without."""

    @property
    def is_fsdp(self) -> bool:
        """Whether FSDP wraps the model."""
        return self.shard * self.replicate > 1


def axis_sizes(settings: Settings, cluster: Cluster) -> Sizes:
    """Ranks on each axis; ``hybrid_shard`` shards within a node and replicates between nodes."""
    dp = settings.data_parallel_size(cluster.world_size)
    sharded = settings.sharding in FSDP and dp > 1
    replicate = cluster.nodes if sharded and settings.sharding is Sharding.HYBRID_SHARD else 1
    shard = dp // replicate if sharded else 1
    return Sizes(tp=settings.tp_size, shard=shard, replicate=replicate, dp=dp)


def is_fsdp(settings: Settings, cluster: Cluster) -> bool:
    """Whether FSDP wraps the model."""
    return axis_sizes(settings, cluster).is_fsdp


def shard_ranks(settings: Settings, cluster: Cluster) -> int:
    """Ranks that split the optimizer's state among themselves."""
    sizes = axis_sizes(settings, cluster)
    return sizes.dp if settings.sharding is Sharding.ZERO1 else sizes.shard
