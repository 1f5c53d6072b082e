"""Rates that were measured on the devices of a cluster, in the place of the catalogue's.

They are of a kind of device, in one release of torch. Links are of groups as large as a node, or
of as many nodes. What is measured is in :mod:`tuner.cost.calibration`; rates are made of it in
:mod:`tuner.cost.calibration_fit`.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import median
from typing import Any

from tuner.catalog.gpus import gpu_kinds
from tuner.core.cluster import Cluster, Device, Link, on_machine
from tuner.core.configuration import Settings
from tuner.core.quantity import Quantity
from tuner.core.workload import Precision, Workload
from tuner.cost.constants import Costs
from tuner.model import read_model_config
from tuner.serialization import Plain

# Of a calibration that is kept, and of what is timed and how rates are made of it; one of another
# format is not read.
FORMAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeRates:
    """Rates of one device in one number format, measured with all others computing too."""

    flops_per_s: Quantity  # matrix products of many channels
    small_dim: float  # as in ``catalog/costs.toml``
    traffic_factor: float
    """Time of a layer's elementwise kernels over that of their counted bytes at copies' rate."""
    logit_traffic: float  # bytes of traffic per logit, at that rate
    layer_host_s: float  # host seconds to launch one layer, forward and backward
    update_factor: float  # seconds of AdamW's step over those of its counted traffic at that rate
    layers_error: float
    """Largest relative error of these figures on the layers that they were fitted to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRates:
    """One kind of link: within a node, or between nodes."""

    bytes_per_s: Quantity  # what one rank sends in a ring, in one direction
    latency_s: float  # seconds of one step of a ring, however little is sent
    factors: Mapping[str, float]
    """By operation, such as reduce_scatter: its seconds over those of its ring at these rates."""
    error: float  # median relative error of all these on the collectives that they were fitted to


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration(Plain):
    """Rates of one run of ``tuner calibrate``; the key of what is computed with them and kept."""

    form = FORMAT

    hardware: str  # which kind of device: :func:`hardware_key`
    cluster: str  # the short spelling of the cluster that was measured
    nodes: int  # its nodes
    gpus_per_node: int  # ranks of each
    at: str  # when, UTC in ISO 8601
    wall_s: float  # seconds that it took, with the start of the ranks
    versions: Mapping[str, str] = field(hash=False)  # of the packages that it was measured with
    memory_bytes_per_s: Quantity  # reading and writing one device's memory, both counted
    compute: Mapping[str, ComputeRates] = field(hash=False)  # by number format: bf16, fp32
    links: Mapping[str, LinkRates] = field(default_factory=dict, hash=False)
    """``intra`` and ``inter`` node, where there are several ranks."""
    disturbance: float
    """A typical call's seconds over those of its shortest: 1 where nothing else ran meanwhile."""
    overlap_cost: float | None = None
    """Part of the shorter of computing and communicating by which both at once take longer than
    the longer one; ``None`` when there is one rank."""
    readings: tuple[Mapping[str, Any], ...] = field(default=(), hash=False)
    """What was timed, as JSON."""

    @property
    def torch(self) -> str:
        return self.versions.get("torch", "").partition("+")[0]


def hardware_key(cluster: Cluster) -> str:
    """Names the kind of device of a cluster; the same in all clusters of that kind.

    A CPU rank has a share of a machine, so its kind is the processor with its cores, this machine's
    where they are not known, and how many ranks share them.
    """
    kind: dict[str, object] = {"device": str(cluster.gpu.device), "name": cluster.gpu.name}
    if cluster.gpu.device is Device.CPU:
        ranks = {"nodes": cluster.nodes, "ranks": cluster.gpus_per_node}
        gpu = on_machine(cluster).gpu
        kind |= {"processor": gpu.processor, "cores": gpu.cores, **ranks}
    return hashlib.sha256(json.dumps(kind, sort_keys=True).encode()).hexdigest()


# One study prices thousands of settings on one cluster by one calibration.
@lru_cache(maxsize=16)
def calibrated(
    calibration: Calibration, precision: Precision, cluster: Cluster, costs: Costs
) -> tuple[Cluster, Costs]:
    """The cluster and the constants with what was measured in the place of published peaks.

    Links are replaced where a group of the same size was measured. What an operation takes over its
    ring holds for the kind of link that it was measured on. Mixed precision computes in bf16, and
    updates in fp32.
    """
    time: dict[str, Any] = {}  # of the constants, those that are measured
    torch: dict[str, float] = {}
    gpu = replace(cluster.gpu, memory_bytes_per_s=calibration.memory_bytes_per_s.value)
    computes = "fp32" if precision is Precision.FP32 else "bf16"
    updates = "bf16" if precision is Precision.BF16 else "fp32"
    if rates := calibration.compute.get(computes):
        peak = rates.flops_per_s.value
        if computes == "fp32":
            gpu = replace(gpu, fp32_flops_per_s=peak)
        else:
            gpu = replace(gpu, dense_bf16_flops_per_s=peak)
        names = ("small_dim", "traffic_factor", "logit_traffic", "layer_host_s")
        torch |= {name: getattr(rates, name) for name in names}
    if rates := calibration.compute.get(updates):
        torch["update_factor"] = rates.update_factor
    if calibration.overlap_cost is not None:
        time["overlap_cost"] = calibration.overlap_cost
    links = _links(calibration, cluster)
    time |= {f"{name}_efficiency": 1.0 for name in links}
    is_cpu = cluster.gpu.device is Device.CPU
    widths = {
        "unfitted": costs.time.cpu if is_cpu else costs.time.unfitted,
        "torch_other": costs.time.torch_other,
    }
    for name, width in widths.items():  # alone, devices are as much faster
        time[name] = width._replace(low=width.low / calibration.disturbance)
    where = replace(
        cluster,
        gpu=gpu,
        intra_node=links.get("intra", cluster.intra_node),
        inter_node=links.get("inter", cluster.inter_node),
    )
    factors = {
        (name, op): factor
        for name in links
        for op, factor in calibration.links[name].factors.items()
    }
    costs = replace(costs, time=replace(costs.time, **time), torch=replace(costs.torch, **torch))
    return where, replace(costs, ring_factors=factors, calibrated=True)


def _links(calibration: Calibration, cluster: Cluster) -> dict[str, Link]:
    """Selects the links that hold for the cluster too; rates that a user states stay."""
    kind = gpu_kinds().get(cluster.gpu.name)
    same = {
        "intra": calibration.gpus_per_node == cluster.gpus_per_node,
        "inter": calibration.nodes == cluster.nodes,
    }
    found = {}
    for name, rates in calibration.links.items():
        rate = getattr(cluster, f"{name}_node").bytes_per_s
        published = None if kind is None else getattr(kind, f"{name}_node").bytes_per_s
        if same[name] and rate in (None, published):
            found[name] = Link(bytes_per_s=rates.bytes_per_s.value, latency_s=rates.latency_s)
    return found


@lru_cache(maxsize=16)
def calibrated_text(calibration: Calibration, cluster: Cluster) -> str:
    """Says for people which rates of a cluster are measured, when and with what."""
    what = ["computing", "copying", *(_LINKS[name] for name in _links(calibration, cluster))]
    where = "" if calibration.cluster == cluster.name else f" on {calibration.cluster}"
    return (
        f"{', '.join(what[:-1])} and {what[-1]} are priced at calibrated rates, measured{where} on"
        f" {calibration.at[:10]} with torch {calibration.torch or 'unknown'}"
    )


_LINKS = {"intra": "links within a node", "inter": "links between nodes"}


# Number formats that cases are timed in.
PRECISIONS: Mapping[str, Precision] = {"bf16": Precision.BF16, "fp32": Precision.FP32}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading(Plain):
    """One case, and what a call of it took where it took longest."""

    case: Mapping[str, Any]  # ``kind``, ``dtype`` and sizes, as they were asked for
    seconds: float
    """Of the slowest rank, for the others would wait for it: what a quarter of its batches took at
    most. The median would be of the machine's other work, where there is any."""
    median_s: float  # the median of that rank
    low_s: float  # the shortest batch of any rank
    high_s: float  # the longest

    @property
    def kind(self) -> str:
        """matrix, copy, layers, update, collective or both."""
        return str(self.case["kind"])

    def workload(self) -> tuple[Workload, Settings]:
        """The workload that a case of layers trained, on one rank alone."""
        case = self.case
        workload = Workload(
            model=read_model_config(case["model"], name="calibration"),
            sequence_length=case["sequence_length"],
            global_batch_size=case["micro_batch_size"],
            precision=PRECISIONS[case["dtype"]],
        )
        return workload, Settings(micro_batch_size=case["micro_batch_size"])


def merged(cases: Sequence[Mapping[str, Any]], ranks: Iterable[Any]) -> tuple[Reading, ...]:
    """The readings of all ranks, case by case; they may have had no time for the last cases.

    A rank has written for each the case and ``seconds`` of its batches. Raises ValueError: a rank
    timed something else, or not what the others did, or its seconds are none.
    """
    rows = [list(rank) for rank in ranks]
    if len({len(row) for row in rows}) != 1 or len(rows[0]) > len(cases):
        raise ValueError(f"ranks timed {[len(row) for row in rows]} of {len(cases)} cases")
    found = []
    for case, *together in zip(cases, *rows, strict=False):
        each = []
        for row in together:
            if {name: value for name, value in row.items() if name != "seconds"} != dict(case):
                raise ValueError(f"a rank timed {row}, not {dict(case)}")
            seconds = sorted(float(value) for value in row["seconds"])
            if not seconds or not all(0 < value < math.inf for value in seconds):
                raise ValueError(f"seconds {seconds} of {dict(case)}")
            each.append(seconds)
        reading = Reading(
            case=dict(case),
            seconds=max(one[(len(one) - 1) // 4] for one in each),
            median_s=max(map(median, each)),
            low_s=min(map(min, each)),
            high_s=max(map(max, each)),
        )
        found.append(reading)
    return tuple(found)


def of_kind(readings: Iterable[Reading], kind: str, **sizes: object) -> tuple[Reading, ...]:
    """Selects readings of one kind, and with these values in their case."""
    return tuple(
        reading
        for reading in readings
        if reading.kind == kind and all(reading.case.get(k) == v for k, v in sizes.items())
    )
