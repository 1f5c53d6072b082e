"""The cost model's constants, read from ``catalog/costs.toml``.

That file says of each what it means, its unit, and its source; a constant is in both or in neither.

What is called fitted was fitted to published runs, what is assumed is a usual value, and the rest
is counted; the file says to which runs, and why.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib.resources import files
from typing import Any, NamedTuple

from tuner.core.framework import FrameworkName


class Width(NamedTuple):
    """The ends of an interval, as factors of the value."""

    low: float
    high: float


class Range(NamedTuple):
    """A constant that is not known well, with the ends of its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class MemoryCosts:
    """Bytes of nanotron's step, and how far predicted memory may be off."""

    weight_bytes: float
    accumulated_bytes: float
    master_bytes: float
    passing_bytes: float
    activation_factor: float
    tp_factor: float
    fragment_factor: float
    fragment_from_mb: float
    logit_bytes: float
    gathered_bytes: float
    in_flight_bytes: float
    in_flight_sharded_bytes: float
    nanotron: Width  # interval of its step
    dry_run: Width  # interval of a dry run
    arithmetic: Width  # interval of arithmetic, and of a dry run of other code
    zero: Width  # interval of arithmetic of DeepSpeed's step


@dataclass(frozen=True, kw_only=True)
class DeviceCosts:
    """Costs of what a GPU holds beside allocated tensors."""

    context_bytes: Range
    communicator_bytes: Range
    reserved: Range
    reserved_fsdp1: Range
    reserved_several: Range
    reserved_checkpointed: Range


@dataclass(frozen=True, kw_only=True)
class TimeCosts:
    """Efficiencies, latencies, what is hidden, and how far predicted times may be off."""

    matmul_efficiency: float
    small_dim: float
    traffic_factor: float
    logit_traffic: float
    layer_host_s: float
    pipelined_host_s: float
    overlap_cost: float
    collective_s: float
    host_memory_bytes_per_s: float
    tp_collectives: float
    tp_exposed: float
    intra_efficiency: float
    inter_efficiency: float
    inter_step_s: float
    scale_exponent: float
    data_exposed: float
    stall_s: float
    stall_ranks_log2: float
    stall_memory: float
    stall_memory_error: float
    stall_replicated: float
    within_nodes: Width  # interval of all but pipelines over nodes
    pipelined: Width  # interval of pipelines over nodes
    torch: Width  # interval of torch, accelerate and trainer where fitted runs were alike
    torch_other: Width  # the same elsewhere, on GPUs whose matrix rates were measured
    unfitted: Width  # interval of stacks and GPUs that nothing was measured of
    cpu: Width  # interval of calibrated CPU ranks


@dataclass(frozen=True, kw_only=True)
class TorchCosts:
    """Efficiencies and traffic of one GPU's kernels under torch, accelerate and trainer."""

    small_dim: float
    unaligned_flops_per_s: float
    attention_forward: float
    attention_backward: float
    attention_quicker: float
    attention_dim: float
    traffic_factor: float
    logit_traffic: float
    layer_host_s: float
    update_factor: float


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Constants by table. Raises TypeError: a table as a mapping that lacks a constant, or has
    another."""

    memory: MemoryCosts  # of nanotron's memory, and of all memory's intervals
    device: DeviceCosts  # of what the device holds beside tensors
    time: TimeCosts  # of nanotron's time, of links, and of all times' intervals
    torch: TorchCosts  # of what one GPU computes under torch, accelerate and trainer
    calibrated: bool = False
    """Whether rates are those of the devices themselves, measured: see ``calibration.py``."""
    ring_factors: Mapping[tuple[str, str], float] = field(default_factory=dict, hash=False)
    """By link (``intra`` or ``inter`` node) and operation, such as reduce_scatter: its seconds over
    those of its ring there. Where it was not measured it takes the time of its ring."""

    @cached_property
    def quickest(self) -> "Costs":
        """These with attention as fast as the paper of torch's kernel has it."""
        by, torch = self.torch.attention_quicker, self.torch
        forward, backward = by * torch.attention_forward, by * torch.attention_backward
        quick = replace(torch, attention_forward=forward, attention_backward=backward)
        return replace(self, torch=quick)

    def __post_init__(self) -> None:
        for name, kind in _TABLES.items():
            given = getattr(self, name)
            if not isinstance(given, kind):  # as read from the file, or as a fit changed it
                sizes = {2: Width, 3: Range}
                row = {n: sizes[len(v)](*v) if isinstance(v, list) else v for n, v in given.items()}
                object.__setattr__(self, name, kind(**row))


_TABLES = {"memory": MemoryCosts, "device": DeviceCosts, "time": TimeCosts, "torch": TorchCosts}


@cache
def default_costs() -> Costs:
    """The catalogue's constants. The file is read once."""
    return Costs(**{name: _catalogue()[name] for name in _TABLES})


@cache
def _catalogue() -> Mapping[str, Any]:
    text = files("tuner.catalog").joinpath("costs.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


# Constants of what is sent between nodes; the others of time are of what a node does by itself.
BETWEEN_NODES = (
    "inter_efficiency", "inter_step_s", "scale_exponent", "data_exposed", "stall_s",
)  # fmt: skip


@cache
def experts_of(framework: FrameworkName) -> tuple[Costs, ...]:
    """The constants that a search weighs by what its probes take; the catalogue's own come first.

    Others than nanotron's steps were not fitted to anything that could be doubted so.
    """
    if framework is not FrameworkName.NANOTRON:
        return (default_costs(),)
    whole = default_costs()
    return crossed(whole, replace(whole, time=replace(whole.time, **_catalogue()["elsewhere"])))


def crossed(one: Costs, other: Costs) -> tuple[Costs, ...]:
    """Both, and between them each with the other's network between nodes: what is known of nodes
    may hold where what is known of their network does not."""

    def with_network(nodes: Costs, network: Costs) -> Costs:
        taken: dict[str, Any] = {name: getattr(network.time, name) for name in BETWEEN_NODES}
        return replace(nodes, time=replace(nodes.time, **taken))

    return one, with_network(one, other), with_network(other, one), other
