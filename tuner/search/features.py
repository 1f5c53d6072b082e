"""Settings and workloads as points: distance 1 is where what is learned of one fades in another.

Sizes count by their logarithm, for doubling one has much the same effect wherever it is. Length
scales are assumed, not fitted: a size means something else after five doublings, a choice
(sharding, checkpointing, ...) at once.
"""

from collections.abc import Sequence
from math import log2

import numpy as np
import numpy.typing as npt

from tuner.cluster import Cluster
from tuner.settings import Settings
from tuner.workload import Workload

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

DOUBLINGS = 2.5
"""Of a size of the settings within one length scale."""
CHOICES = 1.5
"""Choices of the settings within one length scale."""
WORKLOAD_DOUBLINGS = 2.0
"""Of a size of the workload within one length scale."""


def settings_features(settings: Sequence[Settings], cluster: Cluster) -> Array:
    """One row for each settings, shape ``(len(settings), features)``, in length scales.

    Args:
        settings: any.
        cluster: where they run; whether a group of ranks spans nodes is a choice of its own.
    """
    rows = [_row(one, cluster) for one in settings]
    return np.array(rows, dtype=float).reshape(len(rows), len(_row(Settings(), cluster)))


def _row(settings: Settings, cluster: Cluster) -> list[float]:
    tp, pp = settings.tp_size, settings.pp_size
    dp = settings.data_parallel_size(cluster.world_size)
    sizes = (tp, pp, settings.micro_batch_size, settings.gradient_accumulation_steps, max(dp, 1))
    choices = (
        tp > 1,
        pp > 1,
        tp > cluster.gpus_per_node,
        settings.tp_recompute_allgather,
        settings.sync_each_batch,
        settings.activation_checkpointing.value != "none",
        settings.cpu_offload,
    )
    return [
        *(log2(size) / DOUBLINGS for size in sizes),
        *(choice / CHOICES for choice in choices),
        *_one_hot(settings),
    ]


def _one_hot(settings: Settings) -> list[float]:
    """Two shardings are as far apart as the two values of any other choice."""
    apart = 1 / CHOICES / 2**0.5
    return [apart * (settings.sharding is kind) for kind in type(settings.sharding)]


def workload_features(workload: Workload, cluster: Cluster) -> Array:
    """One point, shape ``(features,)``, in length scales: how alike two studies are."""
    sizes = (
        cluster.world_size,
        workload.model.parameters,
        workload.sequence_length,
        workload.global_batch_size,
    )
    return np.array([log2(size) / WORKLOAD_DOUBLINGS for size in sizes])
