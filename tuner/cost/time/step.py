"""Seconds of a step of torch, accelerate and trainer: DDP or FSDP2, and tensor parallelism; and of
DeepSpeed's.

What is computed is arithmetic; the list of :func:`tuner.cost.time.collectives.step_collectives` is
priced by :mod:`tuner.cost.time.communication`. Experts are gathered or replicated, so there is no
all-to-all. Constants: ``catalog/costs.toml``.
"""

from dataclasses import replace
from math import inf

from tuner.catalog.gpus import gpu_kinds, has_matmul_share, matmul_share
from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import FSDP, Checkpointing, Settings, Sharding
from tuner.core.framework import FrameworkName
from tuner.core.quantity import UNKNOWN, Quantity, predicted
from tuner.core.workload import Optimizer, Precision, Workload
from tuner.cost.constants import Costs, Width
from tuner.cost.memory.attention import Backend
from tuner.cost.memory.optimizers import paged_bytes, update_bytes, update_flops
from tuner.cost.memory.shards import COMPUTE_BYTES, WEIGHT_BYTES, Axis, axis_sizes, host_inputs
from tuner.cost.memory.tensors import trained_elements
from tuner.cost.memory.zero import DEFAULTS, Zero, plain, stage_of
from tuner.cost.pipeline import pipeline_seconds, spans_nodes
from tuner.cost.time.collectives import (
    Op,
    all_reducing_passes,
    reducing_passes,
    step_collectives,
    zero_collectives,
)
from tuner.cost.time.communication import (
    Computing,
    LinkSeconds,
    data_group,
    link_seconds,
    passes_s,
    tensor_group,
    used_groups,
)
from tuner.cost.time.compute import (
    LAYER_KERNELS,
    TracedStep,
    computed_again,
    ends_compute_s,
    gpu_s,
    host_bytes_per_s,
    launched,
    layer_backends,
    layer_compute_s,
    logit_bytes,
    peak_flops_per_s,
)


def sharded_step_s(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    *each: Costs,
    alone: bool = False,
    traced: TracedStep | None = None,
    zero: Zero | None = None,
) -> list[float]:
    """Seconds of a step with each of some constants that differ in computing alone; rates of GPU
    and links must be known.

    What is computed, trained and sent is arithmetic, or what dry runs showed (``traced``).
    ``alone`` sends nothing: what is left is the computing of one GPU, as an emulated rank shows it.
    With ``zero`` they are of DeepSpeed's step.
    """
    costs = each[0]
    sizes = axis_sizes(settings, cluster)
    passes, synced = settings.gradient_accumulation_steps, reducing_passes(settings)
    joined = all_reducing_passes(settings)
    asked = workload
    if zero:  # the module is plain, in the format that is computed in
        workload, _ = plain(workload, settings)
    if traced is None:
        collectives = step_collectives(workload, settings, cluster)
        if zero:
            collectives = zero_collectives(asked, settings, cluster, zero)
        trained: float = trained_elements(workload.model, workload.adapter)
        split = sizes.dp if zero and stage_of(settings, cluster) else sizes.shard
        updated = trained / sizes.tp / split
    else:
        collectives = traced.collectives
        trained, updated = traced.trained_elements, traced.updated_elements
    links = LinkSeconds() if alone else link_seconds(collectives, sizes, cluster, costs)
    number, memory_rate = WEIGHT_BYTES[workload.precision], cluster.gpu.memory_bytes_per_s
    assert memory_rate is not None
    if settings.cpu_offload:  # shards come from the host before each gather, gradients go there
        rate = host_bytes_per_s(cluster)
        assert rate is not None
        once = number * updated / rate
        links = replace(
            links,
            gathers_forward=links.gathers_forward + passes * once,
            gathers_backward=links.gathers_backward + passes * once * (links.gathers_backward > 0),
            reductions=links.reductions + synced * once,
        )
    # what FSDP2 and DDP copy into and out of their buffers
    traffic = sum(
        (4 if item.op is Op.ALL_REDUCE else 2) * item.bytes
        for item in collectives
        if item.axis not in (Axis.TP, Axis.CP, Axis.DP_REPLICATE)
    )
    accumulated = 0.0  # shards are added, which is little
    if not (settings.sharding in FSDP and settings.sync_each_batch):
        # adding to the gradients of earlier micro-batches: two reads and a write
        accumulated = 3 * number * (trained / sizes.tp) * (passes - 1)
    update = update_bytes(workload.optimizer, asked.precision, updated)
    if settings.cpu_offload:  # ranks of a node share its memory
        update_s = update * cluster.gpus_per_node / costs.time.host_memory_bytes_per_s
    else:
        update_s = costs.torch.update_factor * update / memory_rate
    if work := update_flops(workload):  # in bf16, whatever the weights are in
        rate = cluster.gpu.dense_bf16_flops_per_s or peak_flops_per_s(workload, cluster)
        assert rate is not None
        share = 1.0 if costs.calibrated else matmul_share(cluster.gpu.name)
        update_s += work / (rate * share)
    if traced is None:
        computed = [_computing(workload, settings, cluster, one) for one in each]
    else:
        computed = [_traced_computing(traced, workload, settings, cluster, one) for one in each]
    return [
        passes_s(computing, links, passes=passes, synced=synced, joined=joined, costs=costs)
        + (traffic + accumulated) / memory_rate
        + update_s
        for computing in computed
    ]


def _computing(workload: Workload, settings: Settings, cluster: Cluster, costs: Costs) -> Computing:
    """Layers take the longer of the GPU's path and the host's, which launches kernels.

    A CPU does both itself, one after the other.
    """
    passes, layers = settings.gradient_accumulation_steps, workload.model.layers
    gpu = layer_compute_s(workload, settings, cluster, costs)
    products, share = computed_again(settings, layers)
    # backward makes gradients of activations and of weights, beside adapters of activations alone
    backward = 2 if workload.adapter is None else 1
    again = share  # of forward's time
    if products != share:  # what it makes a layer longer by
        plain = replace(settings, activation_checkpointing=Checkpointing.NONE)
        once = layer_compute_s(workload, plain, cluster, costs)
        again = (1 + backward) * (gpu / once - 1)
    gpu /= 1 + backward + again
    host = launched(workload, settings, cluster) * costs.torch.layer_host_s / 3
    by_turns = cluster.gpu.device is Device.CPU

    def part(on_gpu: float, on_host: float) -> float:
        return passes * layers * (on_gpu + on_host if by_turns else max(on_gpu, on_host))

    ends = passes * ends_compute_s(workload, settings, cluster, costs) / (1 + backward)
    forward = part(gpu, host)
    recomputed = part(again * gpu, share * host)
    # Layers' inputs go to the host and come back on the stream that computes.
    copied = passes * sum(host_inputs(workload, settings, cluster))
    copies = copied / (host_bytes_per_s(cluster) or inf)
    return Computing(
        forward=forward + ends + copies,
        backward=part(backward * gpu, 2 * host) + recomputed + backward * ends + copies,
    )


def _traced_computing(
    step: TracedStep, workload: Workload, settings: Settings, cluster: Cluster, costs: Costs
) -> Computing:
    """The same of what dry runs saw operators do, where no arithmetic knows the model."""
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


# The GPUs of the runs that constants were fitted on: nanotron's, and FSDP's.
FITTED_GPU, FITTED_TORCH_GPU = "h100-80gb", "a100-80gb"
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
    traced: TracedStep | None = None,
    zero: Zero = DEFAULTS,
) -> tuple[Quantity, str]:
    """Seconds of one optimizer step, and the reason where they are unknown.

    Intervals hold 80% of the runs that constants were fitted on; for other GPUs, and knobs that
    none of those runs had, they are wider, by the errors on others (``catalog/costs.toml``).

    ``traced`` is of the dry runs of a model that no arithmetic knows: nothing was fitted on such.

    The low end supposes attention at the rate of its kernel's paper, which is above what published
    steps show. The high end of paged state supposes that all of it is evicted in each step, the
    value that none is.

    Published runs of nanotron stall at times, unexplained. Where they may, the interval reaches
    from no stall to the expected one, and beyond both; the value holds the expected stall on the
    GPU of those runs, none on others. The time of what cannot run at all (``fits``) has no stall.
    """
    piped = framework is FrameworkName.NANOTRON
    workload = workload.part(settings.cp_size)
    if workload.is_traced and traced is None:
        return UNKNOWN, "time is unknown: its dry runs counted no operators"
    if workload.is_traced and workload.optimizer is Optimizer.MUON:
        return UNKNOWN, "time is unknown: its dry runs counted no products of Muon's"
    if missing := missing_rate(
        workload, settings, cluster, piped=piped, calibrated=costs.calibrated
    ):
        return UNKNOWN, f"time is unknown: {missing}"
    t, fitted = costs.time, cluster.gpu.name == FITTED_GPU
    if piped:
        found = pipeline_seconds(workload, settings, cluster, costs)
        least = found.unstalled_s
        seconds = found.expected_s if fitted and fits else least
        most = found.most_s if fits else least
        width = t.pipelined if spans_nodes(settings, cluster) else t.within_nodes
        if not fitted:
            width = Width(min(width.low, t.unfitted.low), max(width.high, t.unfitted.high))
    else:
        own = zero if framework is FrameworkName.DEEPSPEED else None
        seconds, least = sharded_step_s(
            workload, settings, cluster, costs, costs.quickest, traced=traced, zero=own
        )
        most = seconds
        known = has_matmul_share(cluster.gpu.name) or costs.calibrated
        unlike = own is not None or settings.cp_size > 1 or traced is not None
        if cluster.gpu.device is Device.CPU or not known or unlike:
            width = t.unfitted
        elif _is_as_fitted(workload, settings, cluster) and not costs.calibrated:
            width = t.torch
        else:
            width = t.torch_other
    low, high = width.low * least, width.high * most + paging_s(workload, settings, cluster)
    return predicted(seconds, low, high), ""


def paging_s(workload: Workload, settings: Settings, cluster: Cluster) -> float:
    """Seconds that paged optimizer state takes if all of it goes to the host and back in each step,
    at half of the link's rate, the most that bitsandbytes found (docs/source/explanations/
    optimizers.mdx)."""
    rate = host_bytes_per_s(cluster)
    return 2 * paged_bytes(workload, cluster) / (rate / 2) if rate else 0.0


def _is_as_fitted(workload: Workload, settings: Settings, cluster: Cluster) -> bool:
    """Tells whether runs of this kind are among those that torch's times were fitted on."""
    kind = gpu_kinds().get(cluster.gpu.name)
    if kind is None or kind.name != FITTED_TORCH_GPU:
        return False
    network, usual = cluster.inter_node.bytes_per_s, kind.inter_node.bytes_per_s
    return (
        workload.precision is Precision.BF16_MIXED
        and workload.model.experts == 0
        and not {Backend.EAGER, Backend.MATH} & set(layer_backends(workload, cluster))
        and settings.model_parallel_size == 1
        and (settings.sharding is Sharding.FULL_SHARD or cluster.world_size == 1)
        and settings.activation_checkpointing in (Checkpointing.NONE, Checkpointing.FULL)
        and not (settings.cpu_offload or settings.fused_loss or workload.adapter)
        and (cluster.nodes == 1 or (network or 0.0) >= 0.9 * usual)
    )


def step_notes(
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    framework: FrameworkName,
    costs: Costs,
    *,
    fits: bool = True,
) -> tuple[str, ...]:
    """Lists what a reader should know of the step time: the stalls that it, or its interval, holds,
    and paged state.

    The arguments are those of :func:`step_time`. No stalls are told under a tenth of the step, and
    where the time is unknown.
    """
    piped = framework is FrameworkName.NANOTRON
    if paged := paged_bytes(workload, cluster):
        told = f"{paged / 2**30:.3g} GiB of optimizer state are paged, and not counted: where the"
        told += " GPU has no room for them they wait on the host, and come back in each step"
        seconds = paging_s(workload, settings, cluster)
        return (told + (f", all of it in {seconds:.2g} s at best" if seconds else ""),)
    if not piped or not fits or missing_rate(workload, settings, cluster, piped=True):
        return ()
    found = pipeline_seconds(workload, settings, cluster, costs)
    told_from = TOLD_FROM * found.unstalled_s
    if found.most_stall_s < told_from:
        return ()
    rather_exchanges = found.exchange_stall_s >= found.most_stall_s / 2
    what = "pipelines over nodes" if rather_exchanges else "settings near the memory limit"
    runs = f"published nanotron runs of {what} stall for unexplained reasons"
    stall = found.expected_s - found.unstalled_s
    if cluster.gpu.name == FITTED_GPU and stall >= told_from:
        told = f"{stall:.3g} s of this step is that, and the interval reaches down to none"
    else:
        told = f"the interval reaches up to {found.most_stall_s:.3g} s of it"
    return (f"{runs}; {told}",)


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
    offloads = settings.activation_checkpointing is Checkpointing.OFFLOAD
    if (settings.cpu_offload or offloads) and host_bytes_per_s(cluster) is None:
        return f"the link to the host's memory {unknown}"
    return ""


def missing_link(settings: Settings, cluster: Cluster, *, piped: bool = False) -> str:
    """Names the missing rate of a link that is used; empty if none is missing."""
    if None not in (cluster.intra_node.bytes_per_s, cluster.inter_node.bytes_per_s):
        return ""
    if piped:
        sizes = axis_sizes(settings, cluster)
        tp, dp = sizes.tp, sizes.dp
        both = (tensor_group(cluster, tp), data_group(cluster, tp, dp))
        groups = [group for group in both if group.ranks > 1]
    else:
        groups = used_groups(axis_sizes(settings, cluster), cluster)
    if cluster.intra_node.bytes_per_s is None and any(g.ranks_per_node > 1 for g in groups):
        return "the bandwidth of the link within a node is not known"
    over = any(g.nodes > 1 for g in groups) or (piped and spans_nodes(settings, cluster))
    if cluster.inter_node.bytes_per_s is None and over:
        return "the bandwidth of the link between nodes is not known"
    return ""
