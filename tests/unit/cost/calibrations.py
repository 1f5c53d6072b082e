"""Readings as a machine of known rates would give them."""

from dataclasses import replace

from tuner.core.cluster import Cluster, Link
from tuner.core.workload import Optimizer
from tuner.cost.calibration import PRECISIONS, Reading
from tuner.cost.calibration_fit import BYTES, _costs, fitted
from tuner.cost.constants import default_costs
from tuner.cost.memory.optimizers import update_bytes
from tuner.cost.time.communication import Group, ring_s
from tuner.cost.time.compute import ends_compute_s, layer_compute_s

FLOPS_PER_S, SMALL_DIM, COPY_BYTES_PER_S = 4e14, 200.0, 2e12
TRAFFIC, LOGIT, HOST_S, UPDATE = 12.0, 40.0, 5e-4, 1.25
LINK_BYTES_PER_S, LATENCY_S, LOST = 3e11, 5e-6, 0.2
VERSIONS = {"torch": "2.13.0"}


def seconds_of(case, cluster):
    """What a case would take there."""
    kind = case["kind"]
    if kind == "copy":
        return 2 * BYTES[case["dtype"]] * case["elements"] / COPY_BYTES_PER_S
    if kind == "matrix":
        return product_s(case)
    if kind == "layers":
        return model_s(case, cluster)
    if kind == "update":
        precision = PRECISIONS[case["dtype"]]
        return (
            UPDATE * update_bytes(Optimizer.ADAMW, precision, case["elements"]) / COPY_BYTES_PER_S
        )
    if kind == "collective":
        return ring(case, cluster)
    parts = case["products"] * product_s(case), 0.004
    both = max(parts) + LOST * min(parts)
    return {"matrix": parts[0], "collective": parts[1], "both": both}[str(case["part"])]


def product_s(case):
    """Matrices at an efficiency that depends on their width."""
    longer = 1 + SMALL_DIM * 2 / case["width"]
    return float(2 * case["rows"] * case["width"] ** 2 * longer / FLOPS_PER_S)


def model_s(case, cluster):
    """Layers and ends, as the cost model has them; the tiniest layers wait for the host."""
    workload, settings = Reading(
        case=case, seconds=1.0, median_s=1.0, low_s=1.0, high_s=1.0
    ).workload()
    gpu = {
        "dense_bf16_flops_per_s": FLOPS_PER_S,
        "fp32_flops_per_s": FLOPS_PER_S,
        "memory_bytes_per_s": COPY_BYTES_PER_S,
    }
    values = cluster.as_dict()
    where = Cluster.from_dict({**values, "gpu": {**values["gpu"], **gpu}})
    costs = _costs(SMALL_DIM, traffic_factor=TRAFFIC, logit_traffic=LOGIT)
    layer = layer_compute_s(workload, settings, where, costs)
    ends = ends_compute_s(workload, settings, where, costs)
    layer = layer + HOST_S if str(cluster.gpu.device) == "cpu" else max(layer, HOST_S)
    return float(case["layers"] * layer + ends)


def ring(case, cluster):
    """A collective on links of known rates."""
    intra = case["axis"] == "intra"
    ranks = cluster.gpus_per_node if intra else cluster.nodes
    link = Link(bytes_per_s=LINK_BYTES_PER_S, latency_s=LATENCY_S)
    values = {**cluster.as_dict(), "intra_node": {}, "inter_node": {}}
    where = Cluster.from_dict(values)
    object.__setattr__(where, "intra_node", link)
    object.__setattr__(where, "inter_node", link)
    usual = default_costs()
    costs = replace(usual, time=replace(usual.time, intra_efficiency=1.0, inter_efficiency=1.0))
    group = Group(ranks=ranks, ranks_per_node=ranks if intra else 1)
    size = BYTES[case["dtype"]] * case["elements"]
    return ring_s(size, 1, group, where, costs, twice=case["op"] == "all_reduce")


def readings_of(cases, cluster):
    """One for each case, with a tenth of spread to both sides."""
    times = [(case, seconds_of(case, cluster)) for case in cases]
    return [Reading(case=c, seconds=s, median_s=s, low_s=0.9 * s, high_s=1.1 * s) for c, s in times]


def calibration_of(cases, cluster, **fields):
    """The rates that are found in these cases."""
    known = {"versions": VERSIONS, "at": "2026-11-21T10:00:00+00:00", "wall_s": 60.0}
    return fitted(readings_of(cases, cluster), cluster, **{**known, **fields})
