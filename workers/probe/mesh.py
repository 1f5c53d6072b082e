"""The mesh of ranks: replicas of nodes, shards within them, tensor parallelism innermost."""

from collections.abc import Mapping

import torch.distributed as dist
from accelerate.utils import ParallelismConfig
from torch.distributed.device_mesh import DeviceMesh

from workers.probe.spec import Spec

DATA_AXES = ("dp", "dp_shard", "dp_replicate")
"""Axes whose ranks see different data."""


def parallelism(spec: Spec) -> ParallelismConfig:
    """The sizes of the axes ``dp_replicate``, ``dp_shard`` and ``tp``, as accelerate names them.

    Raises:
        ValueError: ddp beside tensor parallelism: no axis would be left for the replicas. Or
            sharding over one rank of each node: accelerate makes no axis for that.
    """
    if spec.data_parallel_size > 1 and not spec.is_sharded:
        raise ValueError(
            f"ddp with tp_size {spec.settings.tp_size} and {spec.data_parallel_size} data-parallel"
            " ranks: DistributedDataParallel takes no DTensor parameters"
        )
    if spec.is_sharded and spec.shard_size == 1:
        raise ValueError(
            f"{spec.settings.sharding} with tp_size {spec.settings.tp_size} and"
            f" {spec.gpus_per_node} ranks in a node: no ranks are left to shard over"
        )
    return ParallelismConfig(
        dp_replicate_size=spec.replicate_size,
        dp_shard_size=spec.shard_size,
        tp_size=spec.settings.tp_size,
    )


def data_parallel_rank(spec: Spec, rank: int) -> int:
    """Which share of the global batch a rank computes; ``tp`` is the innermost axis."""
    return rank // spec.settings.tp_size


def axis_names(mesh: DeviceMesh | None) -> Mapping[str, str]:
    """Name of the mesh axis of each process group, by the group's name.

    The group of all ranks is ``dp`` unless an axis of the mesh spans it. accelerate shards
    over an axis joined from ``dp_shard`` and its context-parallel axis, which is not used
    here: the two names mean the same ranks.
    """
    names: dict[str, str] = {}
    if dist.group.WORLD is not None:
        names[dist.group.WORLD.group_name] = "dp"
    if mesh is not None:
        axes = mesh.mesh_dim_names or ()
        if "dp_shard" in axes:
            names[mesh["dp_shard_cp"].get_group().group_name] = "dp_shard"
        names |= {mesh.get_group(axis).group_name: axis for axis in axes}
    return names
