"""Finds what this machine can do: for a question, be its cluster or one device of it; and at all.

What looks at the machine does so when it is called; a driver that does not answer, or GPUs that
differ, raise ``UsageError``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tuner import machine
from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Cluster, Device, local_cluster, processor_of
from tuner.core.framework import not_installed
from tuner.core.measurement import Fidelity
from tuner.core.study import Question, missing_beside
from tuner.cost.calibration import Calibration, calibrated
from tuner.cost.constants import default_costs
from tuner.cost.time.step import missing_link
from tuner.errors import UsageError
from tuner.machine import Machine
from tuner.space import enumerate_space

# Relative difference between two readings of one GPU's memory: driver releases differ by it.
SAME_MEMORY = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Capability:
    """One way to try settings."""

    name: Fidelity
    possible: bool
    """Whether it can be gone here."""
    why: str


def capabilities(
    here: Cluster | None, missing: Sequence[str], unusable: str = ""
) -> Iterator[Capability]:
    """Lists what can be done on a machine, the weakest first."""
    without = f"{', '.join(missing)} is not installed" if missing else ""
    predicted = f"by arithmetic alone: {without}" if missing else "dry runs, for any cluster"
    yield Capability(name=Fidelity.PREDICTED, possible=True, why=predicted)
    why = without or _why_no_rehearsal()
    alone = "memory of rank 0 of any cluster of NVIDIA's GPUs, by torch's own allocator"
    yield Capability(name=Fidelity.REHEARSED, possible=not why, why=why or alone)
    if missing or here is None or unusable:
        why = without or unusable or "no device is known"
        for name in (Fidelity.EMULATED, Fidelity.MEASURED):
            yield Capability(name=name, possible=False, why=why)
        return
    is_gpu = here.gpu.device is Device.CUDA
    one = here.gpu.name if is_gpu else "CPU process"
    plays = f"one {one} plays rank 0 of any number"
    capped = f", or of GPUs with no more than {here.gpu.memory_bytes / 2**30:.0f} GiB"
    emulated = plays + (
        capped if is_gpu else ", where links' rates are calibrated or in a cluster file"
    )
    yield Capability(name=Fidelity.EMULATED, possible=True, why=emulated)
    what = f"{here.world_size} x {here.gpu.name}" if is_gpu else "CPU processes, such as cpu:2"
    yield Capability(name=Fidelity.MEASURED, possible=True, why=f"on {what}")


def why_not_measured(cluster: Cluster, there: Machine | None = None) -> str:
    """Why this machine is not the cluster; empty if it is, or has more of the same GPUs."""
    if there is not None and there.others:
        return _why_not_nodes(cluster, there.nodes)
    it = _name(there)
    if cluster.gpu.device is Device.CPU:
        if why := _why_other_processor(cluster, there):
            return why
        there_is = _memory_bytes(there)
        if cluster.gpu.memory_bytes * cluster.world_size <= there_is:
            return ""
        return (
            f"{cluster.world_size} ranks with {cluster.gpu.memory_bytes / 2**30:.1f} GiB each do"
            f" not fit: {it} has {there_is / 2**30:.1f} GiB for all of them"
        )
    here = local_cluster(there)
    if cluster.nodes > 1:
        return f"it is {cluster.nodes} nodes, and {it} is {here.name}"
    if here.gpu.device is not Device.CUDA:
        return f"nvidia-smi shows no GPU {_where(there)}, so {it} is {here.name}"
    if cluster.gpus_per_node > here.gpus_per_node or not _is_of_kind(cluster, here):
        return f"{it} is {here.name}"
    return ""


def _why_not_nodes(cluster: Cluster, nodes: Sequence[Machine]) -> str:
    """Why machines are not the nodes of a cluster, of which the first are taken."""
    if cluster.nodes > len(nodes):
        names = ", ".join(node.name for node in nodes)
        return f"it is {cluster.nodes} nodes, and there are {len(nodes)} ({names})"
    node = replace(cluster, nodes=1)
    return next(filter(None, (why_not_measured(node, one) for one in nodes[: cluster.nodes])), "")


def has_one(cluster: Cluster, there: Machine | None = None) -> bool:
    """Says if this machine, or the one that is named, has one device of the cluster's kind."""
    if cluster.gpu.device is Device.CPU:
        is_other = _why_other_processor(cluster, there)
        return not is_other and cluster.gpu.memory_bytes <= _memory_bytes(there)
    return _is_of_kind(cluster, local_cluster(there))


def why_not_emulated(cluster: Cluster, there: Machine | None = None) -> str:
    """Why no device of this machine can play one of the cluster's; empty if one can.

    A GPU of another kind can, if it has as much memory: what it may allocate is capped.
    """
    if has_one(cluster, there):
        return ""
    if cluster.gpu.device is Device.CPU:
        return _why_other_processor(cluster, there) or (
            f"a rank of {cluster.name} has {cluster.gpu.memory_bytes / 2**30:.1f} GiB;"
            f" {_name(there)} has {_memory_bytes(there) / 2**30:.1f} GiB"
        )
    here = local_cluster(there)
    if here.gpu.device is not Device.CUDA:
        return f"one GPU plays rank 0 of {cluster.name}; nvidia-smi shows none {_where(there)}"
    if not _is_roomy(cluster, here):
        return (
            f"a GPU of {cluster.name} has {cluster.gpu.memory_bytes / 2**30:.1f} GiB; one"
            f" {_where(there)} ({here.gpu.name}) has {here.gpu.memory_bytes / 2**30:.1f} GiB"
        )
    return ""


def why_not_rehearsed(cluster: Cluster) -> str:
    """Why no rank of a cluster can be rehearsed here; empty if one can."""
    kind = gpu_kinds().get(cluster.gpu.name)
    if cluster.gpu.device is not Device.CUDA or (kind and not kind.compute_capability):
        return f"{cluster.name} has no GPUs of NVIDIA's: it is CUDA that a rehearsal stands in for"
    return _why_no_rehearsal()


def _why_no_rehearsal() -> str:
    if machine.shows_gpu():
        return (
            "this machine has a GPU, and a rehearsal is for one without: CUDA_VISIBLE_DEVICES="
            " (set to nothing) hides it"
        )
    return machine.why_no_standin()


def best_fidelity(
    question: Question,
    rates: Callable[[], Calibration | None] = lambda: None,
    there: Machine | None = None,
    versions: Mapping[str, str] | None = None,
) -> tuple[Fidelity, str]:
    """The strongest fidelity that this machine has for a question, and why it is that one.

    Measured where the machine is the cluster, else emulated where it has one device of its kind,
    else predicted.
    """
    cluster, it = question.cluster, _name(there)
    where = _where(there)
    if unprobed := question.unprobed:
        return Fidelity.PREDICTED, f"{unprobed} are not probed {where}"
    for package, version, found in not_installed(question.framework, versions):
        why = f"{package} {version} is asked about, and {found or 'none'} is {where}"
        return Fidelity.PREDICTED, why
    if missing := missing_beside(question, versions):
        return Fidelity.PREDICTED, f"{missing} is needed, and not installed {where}"
    try:
        whole, one = not why_not_measured(cluster, there), has_one(cluster, there)
    except UsageError as error:
        return Fidelity.PREDICTED, str(error)
    if whole:
        return Fidelity.MEASURED, f"{it} has all of {cluster.name}"
    if not one:
        return Fidelity.PREDICTED, f"{it} has no device of {cluster.name}"
    if why := why_unpriced(question, rates):
        return Fidelity.PREDICTED, why
    return Fidelity.EMULATED, f"{it} has one device of {cluster.name}"


def why_unpriced(question: Question, rates: Callable[[], Calibration | None] = lambda: None) -> str:
    """Why the communication of none of the settings has a price; empty if that of some has."""
    why = _missing_links(question, question.cluster)
    if why and (found := rates()):
        precision = question.workload.precision
        cluster, _ = calibrated(found, precision, question.cluster, default_costs())
        return _missing_links(question, cluster)
    return why


def _missing_links(question: Question, cluster: Cluster) -> str:
    whys = [missing_link(settings, cluster) for settings in enumerate_space(question).legal]
    return "" if "" in whys else whys[0]


def _why_other_processor(cluster: Cluster, there: Machine | None) -> str:
    """Why CPU ranks are not a machine's; empty if they are, or it is not known of which."""
    asked, (processor, cores) = cluster.gpu, processor_of(there)
    if not (asked.processor and processor) or (asked.processor, asked.cores) == (processor, cores):
        return ""
    return (
        f"the ranks are of {asked.cores} cores of {asked.processor}; {_name(there)} has {cores} of"
        f" {processor}"
    )


def _name(there: Machine | None) -> str:
    return "this machine" if there is None else there.name


def _memory_bytes(there: Machine | None) -> int:
    return machine.memory_bytes() if there is None else there.memory_bytes


def _where(there: Machine | None) -> str:
    return "here" if there is None else f"on {there.name}"


def _is_of_kind(cluster: Cluster, here: Cluster) -> bool:
    same = here.gpu.device is Device.CUDA and here.gpu.name == cluster.gpu.name
    return same and _is_roomy(cluster, here)


def _is_roomy(cluster: Cluster, here: Cluster) -> bool:
    return here.gpu.memory_bytes * (1 + SAME_MEMORY) >= cluster.gpu.memory_bytes
