"""Seconds of a step of torch, accelerate and trainer: DDP or FSDP2, and tensor parallelism.

It prices the list of :func:`tuner.cost.collectives.step_collectives`. What is hidden: FSDP gathers
a layer's parameters while the one before computes, and reduces its gradients while backward goes
on, so each pass takes the longer of computing and communicating; the first gather and the last
reduction stand alone. DDP reduces all but its last bucket beside backward. Tensor-parallel
collectives are waited for. A GPU computes more slowly while it communicates. Experts are gathered
or replicated, so there is no all-to-all. Constants: ``catalog/costs.toml``.
"""

from dataclasses import dataclass
from functools import lru_cache

from tuner.catalog.gpus import gpu_kinds
from tuner.cluster import Cluster
from tuner.cost.axes import Axis, Sizes, axis_sizes
from tuner.cost.categories import Phase
from tuner.cost.collectives import (
    Op,
    Overlap,
    StepCollective,
    reducing_passes,
    step_collectives,
)
from tuner.cost.compute import attended_keys, stage_compute_s
from tuner.cost.constants import Costs
from tuner.cost.links import axis_group, ring_s
from tuner.cost.memory import WEIGHT_BYTES
from tuner.cost.stages import Stage
from tuner.model import ModelConfig
from tuner.settings import FSDP, Checkpointing, Settings
from tuner.workload import Optimizer, Workload

_LAYER = Stage(layers=1, embedding=False, head=False, blocks=1)
_ENDS = Stage(layers=0, embedding=True, head=True, blocks=2)


@dataclass(slots=True, kw_only=True)
class StepSeconds:
    """Seconds of one optimizer step on the GPU, and on its links."""

    forward: float = 0.0
    """Computing, over all passes."""
    backward: float = 0.0
    """The same, with forward again where activations are checkpointed."""
    tensor_forward: float = 0.0
    """Tensor-parallel collectives of forward and loss."""
    tensor_backward: float = 0.0
    """The same of backward."""
    exposed: float = 0.0
    """First gathers, last reductions."""
    gathers_forward: float = 0.0
    """Gathers behind forward."""
    gathers_backward: float = 0.0
    """Gathers behind backward."""
    reductions: float = 0.0
    """Reductions behind those backward passes that synchronize."""
    replicas: float = 0.0
    """The same between nodes under hybrid sharding: on other links."""
    copied: float = 0.0
    """Bytes that FSDP2 and DDP copy into and out of their buffers."""


def sharded_step_s(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> float:
    """Seconds of an optimizer step; rates of GPU and links must be known."""
    s = _step_seconds(workload, settings, cluster, costs)
    passes, synced = settings.gradient_accumulation_steps, reducing_passes(settings)
    busy = costs.time.overlap_cost
    forward = _beside(s.forward + s.tensor_forward, s.gathers_forward, busy)
    each, gather = (s.backward + s.tensor_backward) / passes, s.gathers_backward / passes
    backward = (passes - synced) * _beside(each, gather, busy)
    links = max(gather + s.reductions / synced, s.replicas / synced)
    backward += synced * _beside(each, links, busy)
    assert cluster.gpu.memory_bytes_per_s is not None
    traffic = s.copied + _accumulated_bytes(workload, settings)
    update = _update_s(workload, settings, cluster, costs)
    return forward + backward + s.exposed + traffic / cluster.gpu.memory_bytes_per_s + update


def _beside(computing: float, communicating: float, busy: float) -> float:
    """Both at once: the longer, and what the one loses to the other while both go on."""
    return max(computing, communicating) + busy * min(computing, communicating)


def _step_seconds(
    workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> StepSeconds:
    """The step's collectives, each priced on its links, beside what is computed."""
    sizes = axis_sizes(settings, cluster)
    found = StepSeconds()
    _compute(found, workload, settings, cluster, costs)
    for item in step_collectives(workload, settings, cluster):
        seconds = _collective_s(item, sizes, cluster, costs)
        if item.axis is Axis.TP:
            if item.phase is Phase.BACKWARD:
                found.tensor_backward += seconds
            else:
                found.tensor_forward += seconds
            continue
        if item.axis is not Axis.DP_REPLICATE:
            found.copied += (4 if item.op is Op.ALL_REDUCE else 2) * item.bytes
        if item.overlap is Overlap.EXPOSED:
            found.exposed += seconds
        elif item.axis is Axis.DP_REPLICATE:
            found.replicas += seconds
        elif item.op is not Op.ALL_GATHER:
            found.reductions += seconds
        elif item.phase is Phase.BACKWARD:
            found.gathers_backward += seconds
        else:
            found.gathers_forward += seconds
    if settings.cpu_offload:
        _offload(found, workload, settings, sizes, cluster)
    return found


def _collective_s(item: StepCollective, sizes: Sizes, cluster: Cluster, costs: Costs) -> float:
    group = axis_group(item.axis, sizes, cluster)
    twice = item.op is Op.ALL_REDUCE
    return ring_s(item.bytes, item.count, group, cluster, costs, twice=twice)


def _compute(
    found: StepSeconds, workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> None:
    """Layers take the longer of the GPU's path and the host's, which launches kernels."""
    again = settings.activation_checkpointing is Checkpointing.FULL
    passes, layers = settings.gradient_accumulation_steps, workload.model.layers
    keys = attended_keys(workload)
    gpu = stage_compute_s(workload, settings, cluster, costs, _LAYER, keys=keys)
    gpu /= 4 if again else 3
    host = costs.time.torch_host_s / 3
    part = passes * layers * max(gpu, host)
    ends = passes * stage_compute_s(workload, settings, cluster, costs, _ENDS) / 3
    found.forward, found.backward = part + ends, (2 + again) * part + 2 * ends


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


def _offload(
    found: StepSeconds, workload: Workload, settings: Settings, sizes: Sizes, cluster: Cluster
) -> None:
    """Shards come from the host before each gather, reduced gradients go there."""
    rate = host_bytes_per_s(cluster)
    assert rate is not None
    shard = WEIGHT_BYTES[workload.precision] * _shard_parameters(workload, settings, sizes)
    once, passes = shard / rate, settings.gradient_accumulation_steps
    found.gathers_forward += passes * once
    found.gathers_backward += passes * once * (found.gathers_backward > 0)
    found.reductions += reducing_passes(settings) * once


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
    numbers, more = UPDATE_PASSES[workload.optimizer]
    traffic = parameters * (numbers * WEIGHT_BYTES[workload.precision] + more)
    if settings.cpu_offload:  # ranks of a node share its memory
        return traffic * cluster.gpus_per_node / costs.time.host_memory_bytes_per_s
    assert cluster.gpu.memory_bytes_per_s is not None
    return traffic / cluster.gpu.memory_bytes_per_s
