"""Seconds of a step of torch, accelerate and trainer: DDP or FSDP2, and tensor parallelism.

What is computed is arithmetic; the list of :func:`tuner.cost.collectives.step_collectives` is
priced by :mod:`tuner.cost.communication`. Experts are gathered or replicated, so there is no
all-to-all. Constants: ``catalog/costs.toml``.
"""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from tuner.catalog.gpus import gpu_kinds
from tuner.cluster import Cluster, Device
from tuner.cost.axes import Axis, Sizes, axis_sizes
from tuner.cost.collectives import (
    Op,
    StepCollective,
    reducing_passes,
    step_collectives,
)
from tuner.cost.communication import Computing, LinkSeconds, link_seconds, passes_s
from tuner.cost.compute import attended_keys, stage_compute_s
from tuner.cost.constants import Costs
from tuner.cost.memory import WEIGHT_BYTES
from tuner.cost.stages import Stage
from tuner.model import ModelConfig
from tuner.settings import FSDP, Checkpointing, Settings
from tuner.workload import Optimizer, Precision, Workload

_LAYER = Stage(layers=1, embedding=False, head=False, blocks=1)
_ENDS = Stage(layers=0, embedding=True, head=True, blocks=2)


def sharded_step_s(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    costs: Costs,
    *,
    alone: bool = False,
) -> float:
    """Seconds of an optimizer step; rates of GPU and links must be known.

    Args:
        workload: what is trained.
        settings: legal ones.
        cluster: where.
        costs: constants.
        alone: whether nothing is sent: what is left is the computing of one GPU, as an emulated
            rank shows it.
    """
    sizes = axis_sizes(settings, cluster)
    collectives = step_collectives(workload, settings, cluster)
    links = LinkSeconds() if alone else link_seconds(collectives, sizes, cluster, costs)
    if settings.cpu_offload:
        links = _with_offload(links, workload, settings, sizes, cluster)
    passed = passes_s(
        _computing(workload, settings, cluster, costs),
        links,
        passes=settings.gradient_accumulation_steps,
        synced=reducing_passes(settings),
        costs=costs,
    )
    assert cluster.gpu.memory_bytes_per_s is not None
    traffic = _copied_bytes(collectives) + _accumulated_bytes(workload, settings)
    update = _update_s(workload, settings, cluster, costs)
    return passed + traffic / cluster.gpu.memory_bytes_per_s + update


def _copied_bytes(collectives: Iterable[StepCollective]) -> float:
    """Bytes that FSDP2 and DDP copy into and out of their buffers."""
    return sum(
        (4 if item.op is Op.ALL_REDUCE else 2) * item.bytes
        for item in collectives
        if item.axis not in (Axis.TP, Axis.DP_REPLICATE)
    )


def _computing(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> Computing:
    """Layers take the longer of the GPU's path and the host's, which launches kernels.

    A CPU does both itself, one after the other.
    """
    again = settings.activation_checkpointing is Checkpointing.FULL
    passes, layers = settings.gradient_accumulation_steps, workload.model.layers
    keys = attended_keys(workload, cluster)
    gpu = stage_compute_s(workload, settings, cluster, costs, _LAYER, keys=keys)
    gpu /= 4 if again else 3
    host = costs.time.torch_host_s / 3
    by_turns = cluster.gpu.device is Device.CPU
    part = passes * layers * (gpu + host if by_turns else max(gpu, host))
    ends = passes * stage_compute_s(workload, settings, cluster, costs, _ENDS) / 3
    return Computing(forward=part + ends, backward=(2 + again) * part + 2 * ends)


@lru_cache(maxsize=64)
def _parameters(model: ModelConfig) -> int:
    return model.parameters


def _shard_parameters(workload: Workload, settings: Settings, sizes: Sizes) -> float:
    """Parameters that a rank updates."""
    return _parameters(workload.model) / sizes.tp / sizes.shard


def host_bytes_per_s(cluster: Cluster) -> float | None:
    """The GPU's link to the host's memory, in one direction; ``None`` outside the catalogue."""
    kind = gpu_kinds().get(cluster.gpu.name)
    return None if kind is None else kind.host_bytes_per_s


def _with_offload(
    links: LinkSeconds, workload: Workload, settings: Settings, sizes: Sizes, cluster: Cluster
) -> LinkSeconds:
    """Shards come from the host before each gather, reduced gradients go there."""
    rate = host_bytes_per_s(cluster)
    assert rate is not None
    shard = WEIGHT_BYTES[workload.precision] * _shard_parameters(workload, settings, sizes)
    once, passes = shard / rate, settings.gradient_accumulation_steps
    return replace(
        links,
        gathers_forward=links.gathers_forward + passes * once,
        gathers_backward=links.gathers_backward + passes * once * (links.gathers_backward > 0),
        reductions=links.reductions + reducing_passes(settings) * once,
    )


def _accumulated_bytes(workload: Workload, settings: Settings) -> float:
    """Adding gradients to those of earlier micro-batches: two reads and a write."""
    parameters = _parameters(workload.model) / settings.tp_size
    if settings.sharding in FSDP and settings.sync_each_batch:
        return 0.0  # shards are added, which is little
    number = WEIGHT_BYTES[workload.precision]
    return 3 * number * parameters * (settings.gradient_accumulation_steps - 1)


UPDATE_PASSES = {Optimizer.ADAMW: (20, 0), Optimizer.ADAMW_8BIT: (3, 4), Optimizer.SGD: (3, 0)}
"""Traffic of an update per parameter: numbers in the weights' precision, and bytes beside them.

AdamW of torch is ``foreach`` (``_multi_tensor_adam`` in torch/optim/adam.py): decay 2, first moment
3, second 2 + 3, root 2, division 2, epsilon 2, update 4. torchao's 8-bit AdamW is one kernel: it
reads the gradient, reads and writes the weight and two moments of a byte. SGD is one kernel.
"""


def _update_s(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> float:
    """The optimizer's step: its traffic, on the device or in the host's memory."""
    parameters = _shard_parameters(workload, settings, axis_sizes(settings, cluster))
    traffic = update_bytes(workload.optimizer, workload.precision, parameters)
    if settings.cpu_offload:  # ranks of a node share its memory
        return traffic * cluster.gpus_per_node / costs.time.host_memory_bytes_per_s
    assert cluster.gpu.memory_bytes_per_s is not None
    return costs.time.update_factor * traffic / cluster.gpu.memory_bytes_per_s


def update_bytes(optimizer: Optimizer, precision: Precision, parameters: float) -> float:
    """What an optimizer's step reads and writes of the device's memory."""
    numbers, more = UPDATE_PASSES[optimizer]
    return parameters * (numbers * WEIGHT_BYTES[precision] + more)
