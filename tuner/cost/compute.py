"""Seconds that one GPU computes: matrices at an efficiency that depends on shapes, and traffic."""

from tuner.cluster import Cluster
from tuner.cost.constants import Costs
from tuner.cost.stages import Stage, counts
from tuner.settings import Checkpointing, Settings
from tuner.workload import Precision, Workload


def peak_flops_per_s(workload: Workload, cluster: Cluster) -> float | None:
    """The matrix rate of the precision; ``None`` when the GPU's is not known."""
    if workload.precision is Precision.FP32:
        return cluster.gpu.fp32_flops_per_s
    return cluster.gpu.dense_bf16_flops_per_s


def stage_compute_s(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs, stage: Stage
) -> float:
    """Forward and backward of one micro-batch on one rank, without communication.

    FLOPs: 6 per parameter and token, 6 x sequence x channels for causal attention; a third more
    where forward is computed again.
    """
    model, tp = workload.model, settings.tp_size
    found, t = counts(model), costs.time
    tokens = settings.micro_batch_size * workload.sequence_length / tp
    peak, rate = peak_flops_per_s(workload, cluster), cluster.gpu.memory_bytes_per_s
    assert peak is not None
    assert rate is not None
    again = 4 / 3 if settings.activation_checkpointing is Checkpointing.FULL else 1.0
    attention = 6 * workload.sequence_length * found.attention
    layer = (6 * found.active + attention) * tokens * again
    narrowest = min(model.hidden_size, found.mlp) / tp
    efficiency = t["matmul_efficiency"] * narrowest / (narrowest + t["small_dim"])
    traffic = t["traffic_factor"] * 2 * found.kept * tokens * again
    layer_s = layer / (peak * efficiency) + traffic / rate
    logits = tokens * model.vocab_size
    head_s = 6 * model.hidden_size * logits / (peak * t["matmul_efficiency"])
    head_s += t["logit_traffic"] * logits / rate
    return stage.layers * layer_s + stage.head * head_s
