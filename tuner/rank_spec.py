"""What ranks of the probe program are told of a workload, settings and a cluster."""

from typing import Any

from tuner.cluster import Cluster
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
    }
