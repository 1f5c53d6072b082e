"""What sharding pads of packed experts, in a sentence: it can be most of what a step needs."""

from math import ceil

from tuner.cluster import Cluster
from tuner.cost.axes import is_fsdp, shard_ranks
from tuner.cost.shards import COMPUTE_BYTES, WEIGHT_BYTES, shards, state_bytes
from tuner.settings import Settings
from tuner.sizes import size_text
from tuner.workload import Workload

TOLD_FROM = 0.01
"""Padding of this share of the device's memory, or more, is told."""


def padding_words(workload: Workload, cluster: Cluster, settings: Settings) -> str:
    """That experts are padded, and what this takes; empty where it is nothing, or next to nothing.

    FSDP2 cuts dimension 0 of each parameter, and packed experts have the expert there: every rank
    holds room for whole ones.
    """
    if not workload.model.experts or not is_fsdp(settings, cluster):
        return ""
    held, gathered = padding_bytes(workload, cluster, settings)
    if held + gathered < TOLD_FROM * cluster.gpu.memory_bytes:
        return ""
    experts, ranks = workload.model.experts, shard_ranks(settings, cluster)
    each = ceil(experts / ranks)
    times = each * ranks / experts
    return (
        f"FSDP2 splits packed experts by whole experts, so each of the {ranks} ranks that shard has"
        f" room for {each} of {experts}, which is {times:.3g} times their size in all:"
        f" {size_text(held)} of padding in parameters, gradients and optimizer state, and"
        f" {size_text(gathered)} in each layer that is gathered"
    )


def padding_bytes(workload: Workload, cluster: Cluster, settings: Settings) -> tuple[float, float]:
    """Bytes of padding that one rank holds through a step, and in its largest gathered layer."""
    units = [layer.unit for layer in shards(workload, settings, cluster).layers]
    padding = [unit.padded - unit.whole for unit in units]
    weight = WEIGHT_BYTES[workload.precision]
    held = 0.0
    if not settings.cpu_offload:  # which holds all of it in host memory
        held = sum(padding) / shard_ranks(settings, cluster) * (2 * weight + state_bytes(workload))
    return held, max(padding) * COMPUTE_BYTES[workload.precision]
