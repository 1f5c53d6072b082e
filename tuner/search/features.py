"""Settings and workloads as points: distance 1 is where what is learned of one fades in another.

Sizes count by their logarithm, for doubling one has much the same effect wherever it is. Length
scales are assumed, not fitted: a size means something else after five doublings, a choice
(sharding, checkpointing, ...) at once.
"""

from collections.abc import Iterable, Sequence
from math import log2

import numpy as np
import numpy.typing as npt

from tuner.cluster import Cluster
from tuner.model.fields import ARCHITECTURES
from tuner.settings import Settings, Sharding
from tuner.workload import Optimizer, ReduceDtype, Workload

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = npt.NDArray[np.intp]

DOUBLINGS = 2.5
"""Of a size of the settings within one length scale."""
CHOICES = 1.5
"""Choices of the settings, or of the workload, within one length scale."""
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
        *_one_hot(settings.sharding, Sharding),
    ]


def _one_hot(value: object, kinds: Iterable[object]) -> list[float]:
    """Any two kinds are as far apart as the two values of any other choice."""
    apart = 1 / CHOICES / 2**0.5
    return [apart * (value == kind) for kind in kinds]


def workload_features(workload: Workload, cluster: Cluster) -> Array:
    """One point, shape ``(features,)``, in length scales: how alike two studies are.

    The optimizer, the format of gradient reduction and the model's architecture are choices. They
    change what a step does, and what of it the cost model may be wrong about.
    """
    sizes = (
        cluster.world_size,
        workload.model.parameters,
        workload.sequence_length,
        workload.global_batch_size,
    )
    return np.array(
        [
            *(log2(size) / WORKLOAD_DOUBLINGS for size in sizes),
            *_one_hot(workload.optimizer, Optimizer),
            *_one_hot(workload.reduce_dtype, ReduceDtype),
            *_one_hot(workload.model.model_type, sorted(ARCHITECTURES)),
        ]
    )
