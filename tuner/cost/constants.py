"""The cost model's constants, read from ``catalog/costs.toml``, which names the source of each.

What is called fitted was fitted to published runs, what is assumed is a usual value, and the rest
is counted; the file says to which runs, and why.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Width(NamedTuple):
    """The ends of an interval, as factors of the value."""

    low: float
    high: float


class Reserved(NamedTuple):
    """Reserved over allocated bytes: the value, and the ends of its interval."""

    factor: float
    low: float
    high: float


class Table(Mapping[str, float]):
    """Constants that are also known by their names, as fits go through them."""

    def __getitem__(self, name: str) -> float:
        if name not in self.__dataclass_fields__:  # type: ignore[attr-defined]
            raise KeyError(name)
        return float(getattr(self, name))

    def __iter__(self) -> Iterator[str]:
        return (constant.name for constant in fields(self))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(fields(self))  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class MemoryCosts(Table):
    """Bytes of nanotron's step, and how far predicted memory may be off."""

    weight_bytes: float
    """Bytes per parameter of nanotron's weights; counted."""
    accumulated_bytes: float
    """Bytes per parameter of the fp32 gradients that nanotron accumulates; counted."""
    master_bytes: float
    """Bytes per parameter of fp32 weights and moments; counted."""
    passing_bytes: float
    """Bytes per parameter of bf16 gradients, and of buffers of reductions; fitted."""
    activation_factor: float
    """Share of what a layer is counted to keep that it keeps; fitted."""
    tp_factor: float
    """The same more under tensor parallelism; fitted."""
    fragment_factor: float
    """The same freed late, under pipelines and tensor parallelism; fitted."""
    fragment_from_mb: float
    """10^6 bytes of a sharded hidden tensor at which half of that appears; fitted."""
    logit_bytes: float
    """Bytes per logit, with those of the loss and of gradients; fitted."""
    gathered_bytes: float
    """Bytes per hidden channel and token, gathered and freed late without pipelines; fitted."""
    in_flight_bytes: float
    """Bytes per hidden channel and token of a micro-batch in flight; fitted."""
    in_flight_sharded_bytes: float
    """The same, divided by the tensor-parallel size; fitted."""
    low: float
    """Lower end of nanotron's 80% interval, as a factor; from the fitted runs' quantiles."""
    high: float
    """Its upper end."""
    dry_run_low: float
    """Lower end of a dry run's interval, as a factor; assumed."""
    dry_run_high: float
    """Its upper end."""
    arithmetic_low: float
    """Lower end of arithmetic's interval, and of a dry run of other code, as a factor; assumed."""
    arithmetic_high: float
    """Its upper end."""

    @property
    def dry_run(self) -> Width:
        """Interval of a dry run."""
        return Width(self.dry_run_low, self.dry_run_high)

    @property
    def arithmetic(self) -> Width:
        """Interval of arithmetic, and of a dry run of other code."""
        return Width(self.arithmetic_low, self.arithmetic_high)


@dataclass(frozen=True, kw_only=True)
class DeviceCosts(Table):
    """Costs of what a GPU holds beside allocated tensors."""

    context_bytes: float
    """Bytes of the CUDA context; assumed, from published figures."""
    context_low_bytes: float
    """Lower end of its interval."""
    context_high_bytes: float
    """Upper end of its interval."""
    communicator_bytes: float
    """Bytes of the buffers of one process group; assumed, from published figures."""
    communicator_low_bytes: float
    """Lower end of its interval."""
    communicator_high_bytes: float
    """Upper end of its interval."""
    reserved_factor: float
    """Reserved over allocated bytes at their peaks; median of published runs of one rank."""
    reserved_low: float
    """Their 10% quantile."""
    reserved_high: float
    """Their 90% quantile."""
    reserved_fsdp1_factor: float
    """The same under FSDP1; median of published runs of it."""
    reserved_fsdp1_low: float
    """Their 10% quantile."""
    reserved_fsdp1_high: float
    """Their 90% quantile."""
    reserved_several_factor: float
    """The same of several ranks; median of what torch's allocator shows without a GPU."""
    reserved_several_low: float
    """Their 10% quantile."""
    reserved_several_high: float
    """Their 90% quantile."""
    reserved_checkpointed_factor: float
    """The same under FSDP2 with activation checkpointing."""
    reserved_checkpointed_low: float
    """Their 10% quantile."""
    reserved_checkpointed_high: float
    """Their 90% quantile."""

    @property
    def reserved(self) -> Reserved:
        """Reserved memory of one rank alone."""
        return Reserved(self.reserved_factor, self.reserved_low, self.reserved_high)

    @property
    def reserved_several(self) -> Reserved:
        """Reserved memory of several ranks, but for the two that follow."""
        return Reserved(
            self.reserved_several_factor, self.reserved_several_low, self.reserved_several_high
        )

    @property
    def reserved_checkpointed(self) -> Reserved:
        """Reserved memory of FSDP2 alone with activation checkpointing."""
        return Reserved(
            self.reserved_checkpointed_factor,
            self.reserved_checkpointed_low,
            self.reserved_checkpointed_high,
        )

    @property
    def reserved_fsdp1(self) -> Reserved:
        """Reserved memory of FSDP1."""
        return Reserved(
            self.reserved_fsdp1_factor, self.reserved_fsdp1_low, self.reserved_fsdp1_high
        )


@dataclass(frozen=True, kw_only=True)
class TimeCosts(Table):
    """Efficiencies, latencies, what is hidden, and how far predicted times may be off."""

    matmul_efficiency: float
    """Share of the peak matrix rate that large products reach; fitted."""
    small_dim: float
    """Channels of a product's narrowest side at which half of that is reached; fitted."""
    traffic_factor: float
    """Bytes of device memory read and written over bytes of activations kept; fitted."""
    logit_traffic: float
    """Bytes of device memory read and written per logit; fitted."""
    layer_host_s: float
    """Host seconds to launch a layer of nanotron's, forward and backward; fitted."""
    pipelined_host_s: float
    """More of them per tensor-parallel rank, with pipelines over nodes; fitted."""
    torch_host_s: float
    """Host seconds to launch a layer of transformers', forward and backward; assumed."""
    update_factor: float
    """Seconds of an optimizer's step over those of its traffic; 1, or calibrated."""
    overlap_cost: float
    """Share of a hidden collective's seconds by which computing is slowed; assumed."""
    collective_s: float
    """Seconds to start a collective; assumed."""
    host_memory_bytes_per_s: float
    """Bytes per second of one node's host memory; assumed."""
    tp_collectives: float
    """Gathers and scatters of a layer's forward and backward; counted."""
    tp_exposed: float
    """Share of tensor-parallel traffic within a node that is not hidden; fitted."""
    intra_efficiency: float
    """Share of the published rate of links within a node that is reached; assumed."""
    inter_efficiency: float
    """The same between nodes; fitted."""
    inter_step_s: float
    """Seconds of one step of a ring between nodes; fitted."""
    scale_exponent: float
    """Rings over n nodes reach the rate of two, divided by (n / 2) to this power; fitted."""
    data_exposed: float
    """Least share of nanotron's data-parallel traffic that is not hidden; fitted."""
    stall_s: float
    """Seconds of a stalled exchange between pipeline stages, per neighbor; fitted."""
    stall_ranks_log2: float
    """Logarithm to base 2 of the ranks at which half of the pipelines stall; fitted."""
    stall_memory: float
    """Share of the device's memory from which the allocator stalls; fitted."""
    stall_memory_error: float
    """Share by which memory may be more than predicted; assumed."""
    stall_replicated: float
    """How often ZeRO 0 pipelines over nodes with data parallelism stall, 0 to 1; fitted."""
    low: float
    """Lower end of a time's 80% interval, as a factor; from the fitted runs' quantiles."""
    high: float
    """Its upper end."""
    low_pipelined: float
    """The same for pipelines over nodes, of the time without stalls."""
    high_pipelined: float
    """Its upper end, of the time with stalls."""
    low_unfitted: float
    """The lower end for other stacks and GPUs; from errors on other published runs."""
    high_unfitted: float
    """Its upper end."""
    low_cpu: float
    """The lower end for calibrated CPU ranks; assumed."""
    high_cpu: float
    """Its upper end; from errors on probes of them."""

    @property
    def within_nodes(self) -> Width:
        """Interval of all but pipelines over nodes."""
        return Width(self.low, self.high)

    @property
    def pipelined(self) -> Width:
        """Interval of pipelines over nodes."""
        return Width(self.low_pipelined, self.high_pipelined)


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Constants by table.

    Raises:
        TypeError: a table as a mapping that lacks a constant, or has another.
    """

    memory: MemoryCosts
    """Of nanotron's memory, and of all memory's intervals."""
    device: DeviceCosts
    """Of what the device holds beside tensors."""
    time: TimeCosts
    """Of time."""
    calibrated: bool = False
    """Whether rates are those of the devices themselves, measured: see ``calibration.py``."""
    ring_factors: Mapping[tuple[str, str], float] = field(default_factory=dict, hash=False)
    """By link (``intra`` or ``inter`` node) and operation, such as reduce_scatter: its seconds over
    those of its ring there. Where it was not measured it takes the time of its ring."""

    def __post_init__(self) -> None:
        for name, kind in _TABLES.items():
            given = getattr(self, name)
            if not isinstance(given, kind):  # as read from the file, or as a fit changed it
                object.__setattr__(self, name, kind(**given))


_TABLES = {"memory": MemoryCosts, "device": DeviceCosts, "time": TimeCosts}


@cache
def default_costs() -> Costs:
    """The catalogue's constants. The file is read once."""
    text = files("tuner.catalog").joinpath("costs.toml").read_text(encoding="utf-8")
    return Costs(**tomllib.loads(text))
