"""What ranks of the probe program are told of a workload, settings and a cluster."""

from typing import Any

from tuner.cluster import Cluster, Device
from tuner.cost.attention import attention_of
from tuner.cost.shards import COMPUTE_BYTES
from tuner.settings import Settings
from tuner.workload import Workload

FORMAT = 1
"""Of ``spec.json``; the probe program refuses another."""


def rank_spec(workload: Workload, settings: Settings, cluster: Cluster) -> dict[str, Any]:
    """The fields of ``spec.json`` that say what is trained, and by which ranks.

    How, and for how long, it is looked at is for who asks to add.
    """
    return {
        "format": FORMAT,
        "model": workload.model.as_config(),
        "settings": settings.as_dict(),
        "sequence_length": workload.sequence_length,
        "global_batch_size": workload.global_batch_size,
        "optimizer": str(workload.optimizer),
        "precision": str(workload.precision),
        "reduce_dtype": str(workload.reduce_dtype),
        "world_size": cluster.world_size,
        "gpus_per_node": cluster.gpus_per_node,
        "device": str(cluster.gpu.device),
        "attention_backends": attention_backends(workload, cluster),
    }


def attention_backends(workload: Workload, cluster: Cluster) -> dict[str, str]:
    """Calls of attention that are computed operator by operator, as the probe program is told."""
    if cluster.gpu.device is not Device.CUDA:
        return {}
    compute = COMPUTE_BYTES[workload.precision]
    return attention_of(workload.model, compute, cluster.gpu).by_operators()
