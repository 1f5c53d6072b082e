"""Rates from what was timed: the cost model's own formulas, solved for their constants.

Each constant is fitted to the cases that show it: matrix rates to products of several widths,
bandwidth to copies that no cache holds, a layer's traffic to what layers take beyond their
matrices, latency and bandwidth of links to collectives of several sizes. What is smallest is the
sum of squared relative errors.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tuner.core.cluster import Cluster, Device, Link
from tuner.core.configuration import Settings
from tuner.core.quantity import Provenance, Quantity
from tuner.core.workload import Optimizer, Workload
from tuner.cost.calibration import (
    PRECISIONS,
    Calibration,
    ComputeRates,
    LinkRates,
    Reading,
    hardware_key,
    of_kind,
)
from tuner.cost.constants import Costs, default_costs
from tuner.cost.memory.optimizers import update_bytes
from tuner.cost.time.communication import Group, ring_s
from tuner.cost.time.compute import ends_compute_s, layer_compute_s

# Of one number.
BYTES = {"bf16": 2, "fp32": 4}


def fitted(
    readings: Sequence[Reading],
    cluster: Cluster,
    *,
    versions: Mapping[str, str],
    at: str,
    wall_s: float,
) -> Calibration:
    """The rates of a cluster, of the readings of all its ranks. Raises ValueError: no copies or no
    matrix products were timed."""
    if not (copies := of_kind(readings, "copy")):
        raise ValueError("no copies were timed")
    # the largest copies, in bytes read and written per second: small ones stay in caches
    sizes = [(2 * BYTES[r.case["dtype"]] * r.case["elements"], r) for r in copies]
    largest = max(size for size, _ in sizes)
    found = [(size, r) for size, r in sizes if size == largest]
    copied = _measured(
        median(size / r.seconds for size, r in found),
        min(size / r.high_s for size, r in found),
        max(size / r.low_s for size, r in found),
    )
    sent = of_kind(readings, "collective")
    dtypes = [dtype for dtype in BYTES if of_kind(readings, "matrix", dtype=dtype)]
    if not dtypes:
        raise ValueError("no matrix products were timed")
    slowed = []  # by how much of the shorter both at once are longer than the longer
    for dtype in BYTES:
        parts = {r.case["part"]: r.seconds for r in of_kind(readings, "both", dtype=dtype)}
        if len(parts) == 3:
            longer = max(parts["matrix"], parts["collective"])
            shorter = min(parts["matrix"], parts["collective"])
            slowed.append(min(1.0, max(0.0, (parts["both"] - longer) / shorter)))
    return Calibration(
        hardware=hardware_key(cluster),
        cluster=cluster.name,
        nodes=cluster.nodes,
        gpus_per_node=cluster.gpus_per_node,
        at=at,
        wall_s=wall_s,
        versions=dict(versions),
        memory_bytes_per_s=copied,
        compute={dtype: _compute(readings, dtype, cluster, copied) for dtype in dtypes},
        links={
            axis: _link(rows, axis, cluster)
            for axis in ("intra", "inter")
            if len(rows := of_kind(sent, "collective", axis=axis)) > 1
        },
        disturbance=median(r.median_s / r.low_s for r in readings),
        overlap_cost=median(slowed) if slowed else None,
        readings=tuple(reading.as_dict() for reading in readings),
    )


def _measured(value: float, low: float, high: float) -> Quantity:
    ends = min(low, value), max(high, value)
    return Quantity(value=value, low=ends[0], high=ends[1], provenance=Provenance.MEASURED)


# -- computing --------------------------------------------------------------------------------


def _compute(
    readings: Sequence[Reading], dtype: str, cluster: Cluster, copied: Quantity
) -> ComputeRates:
    """Matrices first, then what layers and the model's ends take beside them."""
    flops_per_s, small_dim = _matrix_rate(of_kind(readings, "matrix", dtype=dtype))
    gpu = replace(
        cluster.gpu,
        dense_bf16_flops_per_s=flops_per_s.value,
        fp32_flops_per_s=flops_per_s.value,
        memory_bytes_per_s=copied.value,
    )
    here = replace(cluster, gpu=gpu)
    timed = _layers(of_kind(readings, "layers", dtype=dtype))
    usual = default_costs().torch
    host_s = min((t.layer_s for t in timed), default=usual.layer_host_s)
    # a CPU launches and computes by turns; a GPU computes while the host launches
    beside = host_s if cluster.gpu.device is Device.CPU else 0.0
    busy = [t for t in timed if t.layer_s > HOST_BOUND * host_s]
    found: dict[str, float] = {}
    for name, of_layer in (("traffic_factor", True), ("logit_traffic", False)):
        rows = []  # seconds that one unit makes, those that are left for it, and all of them
        for t in busy:
            matrices_s = t.modelled_s(of_layer, here, _costs(small_dim))
            unit_s = t.modelled_s(of_layer, here, _costs(small_dim, **{name: 1.0})) - matrices_s
            whole_s = t.layer_s if of_layer else t.ends_s
            left_s = whole_s - matrices_s - (beside if of_layer else 0.0)
            rows.append((unit_s, left_s, max(whole_s, unit_s)))
        found[name] = _slope(rows) if rows else getattr(usual, name)
    costs = _costs(small_dim, **found)
    update_factor = 1.0
    if updates := of_kind(readings, "update", dtype=dtype):
        largest = max(updates, key=lambda r: r.case["elements"])  # its state is in no cache
        moved = update_bytes(Optimizer.ADAMW, PRECISIONS[dtype], largest.case["elements"])
        assert copied.value is not None
        update_factor = largest.seconds * copied.value / moved
    errors = [abs(t.modelled_s(True, here, costs) + beside - t.layer_s) / t.layer_s for t in busy]
    return ComputeRates(
        flops_per_s=flops_per_s,
        small_dim=small_dim,
        layer_host_s=host_s,
        update_factor=update_factor,
        layers_error=max(errors, default=0.0),
        **found,
    )


# Layers that take less than so many times the host's share say little of the device.
HOST_BOUND = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    """A small model at two depths."""

    workload: Workload
    settings: Settings
    layer_s: float  # what one more layer takes, forward and backward
    ends_s: float  # what the model takes beside its layers: embedding, head, loss

    def modelled_s(self, of_layer: bool, cluster: Cluster, costs: Costs) -> float:
        """Seconds of a layer, or of the ends, by the cost model."""
        compute_s = layer_compute_s if of_layer else ends_compute_s
        return compute_s(self.workload, self.settings, cluster, costs)


def _layers(readings: Iterable[Reading]) -> list[_Timed]:
    by_shape: dict[str, dict[int, Reading]] = {}
    for reading in readings:
        model = {k: v for k, v in reading.case["model"].items() if k != "num_hidden_layers"}
        rest = {k: v for k, v in reading.case.items() if k not in ("model", "layers")}
        by_shape.setdefault(repr((model, rest)), {})[reading.case["layers"]] = reading
    found = []
    for depths in by_shape.values():
        if len(depths) < 2:
            continue
        few, many = min(depths), max(depths)
        layer_s = (depths[many].seconds - depths[few].seconds) / (many - few)
        ends_s = depths[few].seconds - few * layer_s
        workload, settings = depths[few].workload()
        if layer_s > 0:  # not so where something else ran meanwhile
            row = _Timed(workload=workload, settings=settings, layer_s=layer_s, ends_s=ends_s)
            found.append(row)
    return found


def _matrix_rate(products: Sequence[Reading]) -> tuple[Quantity, float]:
    """Rate of wide products, and ``small_dim``.

    Seconds of an operation are ``a + b (2 / width)``: ``1 / a`` is the rate, ``b / a`` the other.
    """
    rows = []
    for r in products:
        operations = 2 * r.case["rows"] * r.case["width"] ** 2
        rows.append((1.0, 2 / r.case["width"], r.seconds / operations))
    constant, by_width = _plane(rows)
    least = min(seconds for _, _, seconds in rows) / BEYOND
    if constant < least:  # a slow narrow product says little of wide ones
        constant = least
        by_width = _slope([(inverse, s - least, s) for _, inverse, s in rows])
    low = min(r.low_s / r.seconds for r in products)
    high = max(r.high_s / r.seconds for r in products)
    rate = 1 / constant
    return _measured(rate, rate / high, rate / low), by_width / constant


# Rate of the widest products over the fastest that was timed, at most.
BEYOND = 1.1


def _costs(small_dim: float, **torch: float) -> Costs:
    usual = default_costs()
    nothing = {"traffic_factor": 0.0, "logit_traffic": 0.0}
    changed = replace(usual.torch, **{"small_dim": small_dim, **nothing, **torch})
    return replace(usual, torch=changed, calibrated=True)


def _slope(rows: Sequence[tuple[float, float, float]]) -> float:
    """The factor of the first that comes nearest to the second, relative to the third."""
    over = sum(unit * left / whole**2 for unit, left, whole in rows)
    return max(0.0, over / sum((unit / whole) ** 2 for unit, _, whole in rows))


# -- communicating ----------------------------------------------------------------------------


def _link(readings: Sequence[Reading], axis: str, cluster: Cluster) -> LinkRates:
    ranks = cluster.gpus_per_node if axis == "intra" else cluster.nodes
    group = Group(ranks=ranks, ranks_per_node=ranks if axis == "intra" else 1)
    usual = default_costs()
    whole = replace(usual.time, intra_efficiency=1.0, inter_efficiency=1.0)
    ideal = replace(usual, time=whole)
    rows = []  # steps of latency, bytes sent, and the seconds that are theirs
    for reading in readings:
        size = BYTES[reading.case["dtype"]] * reading.case["elements"]
        twice = reading.case["op"] == "all_reduce"
        start_s, steps, sent_bytes = (
            ring_s(
                sent, 1, group,
                replace(cluster, intra_node=link, inter_node=link), ideal, twice=twice,
            )
            for sent, link in (
                (0.0, Link(bytes_per_s=1.0, latency_s=0.0)),
                (0.0, Link(bytes_per_s=1.0, latency_s=1.0)),
                (size, Link(bytes_per_s=1.0, latency_s=0.0)),
            )
        )  # fmt: skip
        # a start is counted beside the link's own latency, but no more of it than was seen
        left_s = max(reading.seconds - start_s, reading.seconds / 2)
        rows.append((steps - start_s, sent_bytes - start_s, left_s))
    latency_s, per_byte_s = _plane(rows)
    if per_byte_s <= 0:  # only latency was seen
        per_byte_s = min(left / unit for _, unit, left in rows)
    fits = [one * latency_s + unit * per_byte_s for one, unit, _ in rows]
    factors = {}  # all sizes of an operation together: the largest count
    for op in dict.fromkeys(r.case["op"] for r in readings):
        own = [i for i, r in enumerate(readings) if r.case["op"] == op]
        factors[op] = sum(rows[i][2] for i in own) / sum(fits[i] for i in own)
    errors = [
        abs(factors[reading.case["op"]] * fit_s - left_s) / left_s
        for reading, fit_s, (*_, left_s) in zip(readings, fits, rows, strict=True)
    ]
    low = median(r.low_s / r.seconds for r in readings)
    high = median(r.high_s / r.seconds for r in readings)
    rate = 1 / per_byte_s
    return LinkRates(
        bytes_per_s=_measured(rate, rate / high, rate / low),
        latency_s=latency_s,
        factors=factors,
        error=median(errors),
    )


def _plane(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """``x, y >= 0`` for which ``a x + b y`` comes nearest to ``c``, relative to it.

    There is at least one row ``a, b, c``.
    """
    scaled = [(a / c, b / c) for a, b, c in rows]
    aa, ab = sum(a * a for a, _ in scaled), sum(a * b for a, b in scaled)
    bb, a1, b1 = sum(b * b for _, b in scaled), sum(a for a, _ in scaled), sum(b for _, b in scaled)
    determinant = aa * bb - ab * ab
    if determinant > RANK_DEFICIENT * aa * bb:
        x, y = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
        if x >= 0 and y >= 0:
            return x, y
    only_x, only_y = a1 / aa if aa else 0.0, b1 / bb if bb else 0.0
    # the better of the two ends
    return (only_x, 0.0) if a1 * only_x >= b1 * only_y else (0.0, only_y)


# Of the normal equations' determinant, relative to what it is of independent columns.
RANK_DEFICIENT = 1e-9
