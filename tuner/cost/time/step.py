"""Seconds of a step of torch, accelerate and trainer: DDP or FSDP2, and tensor parallelism.

What is computed is arithmetic; the list of :func:`tuner.cost.time.collectives.step_collectives` is
priced by :mod:`tuner.cost.time.communication`. Experts are gathered or replicated, so there is no
all-to-all. Constants: ``catalog/costs.toml``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import FSDP, Checkpointing, Settings
from tuner.core.framework import FrameworkName
from tuner.core.quantity import UNKNOWN, Provenance, Quantity
from tuner.core.workload import Optimizer, Precision, Workload
from tuner.cost.constants import Costs, Width
from tuner.cost.memory.pipeline import Stage
from tuner.cost.memory.shards import WEIGHT_BYTES, Axis, Sizes, axis_sizes
from tuner.cost.time.collectives import (
    Op,
    StepCollective,
    reducing_passes,
    step_collectives,
)
from tuner.cost.time.communication import (
    Computing,
    Group,
    LinkSeconds,
    data_group,
    link_seconds,
    passes_s,
    tensor_group,
    used_groups,
)
from tuner.cost.time.compute import attended_keys, peak_flops_per_s, stage_compute_s
from tuner.cost.time.pipeline import PipelineSeconds, pipeline_seconds, spans_nodes
from tuner.model import ModelConfig

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


# Traffic of an update per parameter: numbers in the weights' precision, and bytes beside them.
#
# AdamW of torch is ``foreach`` (``_multi_tensor_adam`` in torch/optim/adam.py): decay 2, first
# moment 3, second 2 + 3, root 2, division 2, epsilon 2, update 4. torchao's 8-bit AdamW is one
# kernel: it reads the gradient, reads and writes the weight and two moments of a byte. SGD is one
# kernel.
UPDATE_PASSES = {Optimizer.ADAMW: (20, 0), Optimizer.ADAMW_8BIT: (3, 4), Optimizer.SGD: (3, 0)}


def _update_s(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> float:
    """The optimizer's step: its traffic, on the device or in the host's memory."""
    parameters = _shard_parameters(workload, settings, axis_sizes(settings, cluster))
    traffic = update_bytes(workload.optimizer, workload.precision, parameters)
    if settings.cpu_offload:  # ranks of a node share its memory
        return traffic * cluster.gpus_per_node / costs.time.host_memory_bytes_per_s
    assert cluster.gpu.memory_bytes_per_s is not None
    return costs.time.update_factor * traffic / cluster.gpu.memory_bytes_per_s


def update_bytes(optimizer: Optimizer, precision: Precision, parameters: float) -> float:
    """Bytes of the device's memory that an optimizer's step reads and writes."""
    numbers, more = UPDATE_PASSES[optimizer]
    return parameters * (numbers * WEIGHT_BYTES[precision] + more)


# The GPU of the runs that constants were fitted on; all of them are nanotron's.
FITTED_GPU = "h100-80gb"
# Stalls of this share of the step without them, or more, are told.
TOLD_FROM = 0.1


def step_time(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    framework: FrameworkName,
    costs: Costs,
    *,
    fits: bool = True,
) -> tuple[Quantity, str]:
    """Seconds of one optimizer step, and the reason where they are unknown.

    Intervals hold 80% of the runs that constants were fitted on; for other frameworks and GPUs they
    are wider, by the errors on runs that nothing was fitted on (``catalog/costs.toml``).

    Published runs of nanotron stall at times, unexplained. Where they may, the interval reaches
    from no stall to the expected one, and beyond both; the value holds the expected stall on the
    GPU of those runs, none on others.

    Args:
        workload: what is trained.
        settings: legal ones.
        cluster: where.
        framework: with which stack.
        costs: constants.
        fits: whether they could run at all; the time of what cannot has no stall.
    """
    piped = framework is FrameworkName.NANOTRON
    if missing := missing_rate(
        workload, settings, cluster, piped=piped, calibrated=costs.calibrated
    ):
        return UNKNOWN, f"time is unknown: {missing}"
    least, seconds, most = _modes_s(workload, settings, cluster, costs, piped=piped, fits=fits)
    low, high = _interval(settings, cluster, costs, piped=piped)
    value = Quantity(
        value=seconds, low=low * least, high=high * most, provenance=Provenance.PREDICTED
    )
    return value, ""


def step_notes(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    framework: FrameworkName,
    costs: Costs,
    *,
    fits: bool = True,
) -> tuple[str, ...]:
    """Lists what a reader should know of the step time: the stalls that it, or its interval, holds.

    The arguments are those of :func:`step_time`. Empty where stalls are under a tenth of the step,
    and where the time is unknown.
    """
    piped = framework is FrameworkName.NANOTRON
    if not piped or not fits or missing_rate(workload, settings, cluster, piped=True):
        return ()
    found = pipeline_seconds(workload, settings, cluster, costs)
    if found.most_stall_s < TOLD_FROM * found.unstalled_s:
        return ()
    return (_stall_note(found, fitted=cluster.gpu.name == FITTED_GPU),)


def _stall_note(found: PipelineSeconds, *, fitted: bool) -> str:
    rather_exchanges = found.exchange_stall_s >= found.most_stall_s / 2
    what = "pipelines over nodes" if rather_exchanges else "settings near the memory limit"
    runs = f"published nanotron runs of {what} stall for unexplained reasons"
    stall = found.expected_s - found.unstalled_s
    if fitted and stall >= TOLD_FROM * found.unstalled_s:
        return f"{runs}; {stall:.3g} s of this step is that, and the interval reaches down to none"
    return f"{runs}; the interval reaches up to {found.most_stall_s:.3g} s of it"


def _modes_s(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    costs: Costs,
    *,
    piped: bool,
    fits: bool,
) -> tuple[float, float, float]:
    """Seconds without any stall, as predicted, and with the most that is expected."""
    if not piped:
        seconds = sharded_step_s(workload, settings, cluster, costs)
        return seconds, seconds, seconds
    found = pipeline_seconds(workload, settings, cluster, costs)
    if not fits:
        return found.unstalled_s, found.unstalled_s, found.unstalled_s
    fitted = cluster.gpu.name == FITTED_GPU
    likely = found.expected_s if fitted else found.unstalled_s
    return found.unstalled_s, likely, found.most_s


def missing_rate(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    *,
    piped: bool,
    calibrated: bool = False,
) -> str:
    """Names the missing rate of the GPU, or of a link that is used; empty if none is missing.

    The catalogue's constants are of GPUs; of CPU ranks only a calibration knows the speed.
    """
    if cluster.gpu.device is Device.CPU and not calibrated:
        return (
            f"the speed of CPU ranks is not known before tuner calibrate --cluster {cluster.name}"
        )
    unknown = f"of {cluster.gpu.name} is not known"
    if peak_flops_per_s(workload, cluster) is None:
        return f"the matrix rate {unknown}"
    if cluster.gpu.memory_bytes_per_s is None:
        return f"the memory's bandwidth {unknown}"
    if missing := missing_link(settings, cluster, piped=piped):
        return missing
    if settings.cpu_offload and host_bytes_per_s(cluster) is None:
        return f"the link to the host's memory {unknown}"
    return ""


def missing_link(settings: Settings, cluster: Cluster, *, piped: bool = False) -> str:
    """Names the missing rate of a link that is used; empty if none is missing."""
    if None not in (cluster.intra_node.bytes_per_s, cluster.inter_node.bytes_per_s):
        return ""
    groups = list(_groups(settings, cluster, piped=piped))
    if cluster.intra_node.bytes_per_s is None and any(g.ranks_per_node > 1 for g in groups):
        return "the bandwidth of the link within a node is not known"
    over = any(g.nodes > 1 for g in groups) or (piped and spans_nodes(settings, cluster))
    if cluster.inter_node.bytes_per_s is None and over:
        return "the bandwidth of the link between nodes is not known"
    return ""


def _groups(settings: Settings, cluster: Cluster, *, piped: bool) -> Iterator[Group]:
    if not piped:
        yield from used_groups(axis_sizes(settings, cluster), cluster)
        return
    dp = settings.data_parallel_size(cluster.world_size)
    found = (tensor_group(cluster, settings.tp_size), data_group(cluster, settings.tp_size, dp))
    yield from (group for group in found if group.ranks > 1)


def _interval(settings: Settings, cluster: Cluster, costs: Costs, *, piped: bool) -> Width:
    t = costs.time
    width = t.pipelined if piped and spans_nodes(settings, cluster) else t.within_nodes
    if piped and cluster.gpu.name == FITTED_GPU:
        return width
    return Width(min(width.low, t.low_unfitted), max(width.high, t.high_unfitted))
