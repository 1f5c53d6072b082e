"""Seconds of a step from what dry runs saw its operators do, where no arithmetic knows the model.

Rates, efficiencies and links are those of :mod:`tuner.cost.time.compute` and its neighbours: what
arithmetic counts of a model's shape is counted here of its operators.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf

from tuner.catalog.gpus import matmul_share
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Settings
from tuner.core.workload import Workload
from tuner.cost.constants import Costs
from tuner.cost.memory.shards import COMPUTE_BYTES
from tuner.cost.time.collectives import StepCollective
from tuner.cost.time.communication import Computing
from tuner.cost.time.compute import (
    LAYER_KERNELS,
    host_bytes_per_s,
    logit_bytes,
    peak_flops_per_s,
    unaligned_more,
)

# A phase, forward with the loss or backward, and a part: layers, or the ends around them.
Place = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """What the operators of a micro-batch do, as ``workers/probe/dry/work.py`` counts it."""

    product_flops: float  # of matrix products
    unaligned_flops: float  # of those, whose weights are not aligned
    product_sides: float  # 2 x tokens x (k + n) of those with weights of k x n
    attention_flops: float  # of fused attention's forward, less the keys that a causal one skips
    attention_scores: float  # the same over the channels of a head
    attention_backward_flops: float
    attention_backward_scores: float
    weight_bytes: float  # that products read of weights, or write of their gradients
    moved_bytes: float  # that all other kernels read and write
    kernels: float  # that are launched
    host_bytes: float  # of layers' inputs that go to the host, or come back


AMOUNTS = tuple(one.name for one in fields(Amounts))


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedStep:
    """Holds what dry runs show of an optimizer step's time."""

    amounts: Mapping[Place, Amounts]  # of one micro-batch
    trained_elements: float  # parameters that have gradients
    updated_elements: float  # those that this rank's optimizer updates
    collectives: tuple[StepCollective, ...]  # of the optimizer step


def traced_computing(
    step: TracedStep, workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> Computing:
    """Layers take the longer of the GPU's path and the host's, as in arithmetic."""
    passes, t = settings.gradient_accumulation_steps, costs.torch
    by_turns = cluster.gpu.device is Device.CPU
    host_rate = host_bytes_per_s(cluster) or inf
    compute, peak = COMPUTE_BYTES[workload.precision], peak_flops_per_s(workload, cluster)
    assert peak is not None
    seconds = dict.fromkeys(("forward", "backward"), 0.0)
    for (phase, part), done in step.amounts.items():
        if part == "layers":
            on_gpu = gpu_s(done, peak, cluster, costs, t.traffic_factor)
            host = done.kernels / LAYER_KERNELS * t.layer_host_s
            taken = on_gpu + host if by_turns else max(on_gpu, host)
            taken += done.host_bytes / host_rate
        else:  # nearly all of it is logits
            factor = t.logit_traffic / logit_bytes(compute, 4)
            taken = gpu_s(done, peak, cluster, costs, factor)
        seconds[phase] += passes * taken
    return Computing(forward=seconds["forward"], backward=seconds["backward"])


def gpu_s(
    done: Amounts, peak: float, cluster: Cluster, costs: Costs, traffic_factor: float
) -> float:
    """Seconds of one GPU, whose memory's rate must be known, with matrices at this peak rate."""
    memory_rate = cluster.gpu.memory_bytes_per_s
    assert memory_rate is not None
    t = costs.torch
    work = done.product_flops + t.small_dim * done.product_sides
    if cluster.gpu.device is Device.CPU:  # nothing is known of its kernels beside its products
        work += done.attention_flops + done.attention_backward_flops
    else:
        forward = done.attention_flops + t.attention_dim * done.attention_scores
        backward = done.attention_backward_flops + t.attention_dim * done.attention_backward_scores
        work += forward / t.attention_forward + backward / t.attention_backward
    rate = peak if costs.calibrated else peak * matmul_share(cluster.gpu.name)
    if done.unaligned_flops:
        work += done.unaligned_flops * unaligned_more(rate, costs)
    moved = traffic_factor * done.moved_bytes + done.weight_bytes
    return work / rate + moved / memory_rate
