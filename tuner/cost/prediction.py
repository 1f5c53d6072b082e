"""What settings would need and take, predicted: memory, step time, and whether they fit."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.cluster import Cluster
from tuner.cost.compute import peak_flops_per_s
from tuner.cost.constants import Costs, default_costs
from tuner.cost.memory import memory_bound
from tuner.cost.pipeline_memory import refused, stage_memory
from tuner.cost.pipeline_time import pipeline_step_s, spans_nodes
from tuner.cost.sharded_time import sharded_step_s
from tuner.framework import Framework, FrameworkName
from tuner.quantity import UNKNOWN, Provenance, Quantity
from tuner.settings import Settings
from tuner.workload import Workload

HEADROOM = 0.05
"""Share of the device's memory that is left free, unless the caller says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One settings' cost on the rank that needs most."""

    breakdown: Mapping[str, float]
    """Bytes by category at the peak; they add up to the value of ``allocated_bytes``."""
    allocated_bytes: Quantity
    """Peak of what tensors take."""
    reserved_bytes: Quantity
    """Peak of what the allocator takes."""
    device_bytes: Quantity
    """What nvidia-smi would show: reserved, CUDA context, communicators' buffers."""
    limit_bytes: float
    """What may be used: the device's memory less the headroom."""
    fits: bool
    """Whether it is expected to run within the limit."""
    why: str
    """Why not, or why a quantity is unknown; empty otherwise."""
    step_time_s: Quantity
    """Seconds of one optimizer step."""
    tokens_per_s_per_gpu: Quantity
    """Tokens of the global batch per second and rank."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "breakdown": dict(self.breakdown),
            "allocated_bytes": self.allocated_bytes.as_dict(),
            "reserved_bytes": self.reserved_bytes.as_dict(),
            "device_bytes": self.device_bytes.as_dict(),
            "limit_bytes": self.limit_bytes,
            "fits": self.fits,
            "why": self.why,
            "step_time_s": self.step_time_s.as_dict(),
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu.as_dict(),
        }


def predict(
    workload: Workload,
    cluster: Cluster,
    framework: Framework | FrameworkName,
    settings: Settings,
    *,
    headroom: float = HEADROOM,
    costs: Costs | None = None,
) -> Prediction:
    """The cost of legal settings; what :mod:`tuner.space` refuses is not checked again.

    Tokens per second count the settings' own batch, so a batch that differs from the workload's is
    priced as it would run.
    """
    costs = default_costs() if costs is None else costs
    name = framework if isinstance(framework, FrameworkName) else framework.name
    piped = name is FrameworkName.NANOTRON
    if piped:
        breakdown, late = _pipeline_bytes(workload, settings, cluster, costs)
    else:
        breakdown = _sharded_bytes(workload, settings, cluster)
        late = (costs.device["reserved_factor"] - 1) * sum(breakdown.values())
    allocated = sum(breakdown.values())
    outside = costs.device["context_bytes"]
    outside += costs.device["communicator_bytes"] * _communicators(settings, cluster)
    limit = cluster.gpu.memory_bytes * (1 - headroom)
    seconds, unknown = _seconds(workload, settings, cluster, costs, piped=piped)
    why = refused(workload, settings) if piped else ""
    # What nanotron frees late cannot be used for anything else; elsewhere reserved memory can.
    needed = allocated + outside + piped * late
    if not why and needed > limit:
        why = f"needs {needed / 2**30:.1f} GiB of {limit / 2**30:.1f} GiB"
    low, high = costs.memory["low"], costs.memory["high"]
    return Prediction(
        breakdown=breakdown,
        allocated_bytes=_quantity(allocated, low, high),
        reserved_bytes=_quantity(allocated + late, low, high),
        device_bytes=_quantity(allocated + late + outside, low, high),
        limit_bytes=limit,
        fits=not why,
        why=why or unknown,
        step_time_s=seconds,
        tokens_per_s_per_gpu=_rate(workload, settings, cluster, seconds),
    )


def _pipeline_bytes(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> tuple[dict[str, float], float]:
    """Bytes by category on the stage that needs most, and those freed late."""
    ranks = cluster.world_size
    stages = {0, settings.pp_size - 1, max(0, settings.pp_size - 2)}
    each = [stage_memory(workload, settings, ranks, costs, index) for index in sorted(stages)]
    most = max(each, key=lambda stage: stage.reserved_bytes)
    breakdown = {
        "parameters": most.parameters_bytes,
        "gradients": most.gradients_bytes,
        "optimizer": most.optimizer_bytes,
        "activations": most.activations_bytes,
        "logits": most.logits_bytes,
    }
    return breakdown, most.late_bytes


def _sharded_bytes(workload: Workload, settings: Settings, cluster: Cluster) -> dict[str, float]:
    """Bytes by category at the larger of the peaks of backward and of the optimizer's step."""
    bound = memory_bound(workload, settings, cluster)
    held = {"parameters": bound.parameters_bytes, "optimizer": bound.optimizer_bytes}
    backward = {
        "gathered": bound.gathered_bytes,
        "activations": bound.activations_bytes,
        "logits": bound.logits_bytes,
    }
    rest = bound.total_bytes - sum(held.values())
    if bound.total_bytes > bound.update_bytes:
        return {**held, "gradients": rest - sum(backward.values()), **backward}
    gradients = min(bound.parameters_bytes, rest)
    return {**held, "gradients": gradients, "temporaries": rest - gradients}


def _communicators(settings: Settings, cluster: Cluster) -> int:
    """Groups of more than one rank that a rank is in."""
    dp = settings.data_parallel_size(cluster.world_size)
    return sum(size > 1 for size in (dp, settings.tp_size, settings.pp_size, cluster.world_size))


def _seconds(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs, *, piped: bool
) -> tuple[Quantity, str]:
    """The step's time, and why it is unknown if it is."""
    missing = _missing(workload, cluster)
    if missing:
        return UNKNOWN, f"time is unknown: {missing} of {cluster.gpu.name} is not known"
    if not piped:
        seconds = sharded_step_s(workload, settings, cluster, costs)
        return _quantity(seconds, costs.time["low"], costs.time["high"]), ""
    seconds = pipeline_step_s(workload, settings, cluster, costs)
    kind = "_pipelined" if spans_nodes(settings, cluster) else ""
    return _quantity(seconds, costs.time[f"low{kind}"], costs.time[f"high{kind}"]), ""


def _missing(workload: Workload, cluster: Cluster) -> str:
    if peak_flops_per_s(workload, cluster) is None:
        return "the matrix rate"
    if cluster.gpu.memory_bytes_per_s is None:
        return "the memory's bandwidth"
    if cluster.gpus_per_node > 1 and cluster.intra_node.bytes_per_s is None:
        return "the link within a node"
    if cluster.nodes > 1 and cluster.inter_node.bytes_per_s is None:
        return "the link between nodes"
    return ""


def _rate(workload: Workload, settings: Settings, cluster: Cluster, seconds: Quantity) -> Quantity:
    if seconds.value is None or seconds.low is None or seconds.high is None:
        return UNKNOWN
    sequences = settings.micro_batch_size * settings.gradient_accumulation_steps
    sequences *= settings.data_parallel_size(cluster.world_size)
    tokens = sequences * workload.sequence_length / cluster.world_size
    return Quantity(
        value=tokens / seconds.value,
        low=tokens / seconds.high,
        high=tokens / seconds.low,
        provenance=seconds.provenance,
    )


def _quantity(value: float, low: float, high: float) -> Quantity:
    return Quantity(
        value=value, low=low * value, high=high * value, provenance=Provenance.PREDICTED
    )
