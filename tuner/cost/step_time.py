"""The predicted step time with its interval, or why it is unknown."""

from collections.abc import Iterator

from tuner.cluster import Cluster, Device
from tuner.cost.axes import axis_sizes
from tuner.cost.compute import peak_flops_per_s
from tuner.cost.constants import Costs, Width
from tuner.cost.links import Group, data_group, tensor_group, used_groups
from tuner.cost.pipeline_time import PipelineSeconds, pipeline_seconds, spans_nodes
from tuner.cost.sharded_time import host_bytes_per_s, sharded_step_s
from tuner.framework import FrameworkName
from tuner.quantity import UNKNOWN, Provenance, Quantity
from tuner.settings import Settings
from tuner.workload import Workload

FITTED_GPU = "h100-80gb"
"""The GPU of the runs that constants were fitted on; all of them are nanotron's."""
TOLD_FROM = 0.1
"""Stalls of this share of the step without them, or more, are told."""


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
    """What a reader should know of the step time: the stalls that it, or its interval, holds.

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
    """What would have to be known of the GPU, or of a link that is used; empty if nothing.

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
    """What would have to be known of a link that is used; empty if nothing."""
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
