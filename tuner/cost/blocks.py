"""Computes the memory that torch's CUDA caching allocator takes beyond what is requested.

A tensor gets a block of the size asked for, in steps of 512 bytes. A large block that would leave
1 MiB or less is not split: the tensor gets all of it. Memory that is new from the driver comes in
segments of 2 MiB steps from 10 MiB on, and of 20 MiB below, so what a tensor in new memory gets
follows from its size; blocks cut from what larger tensors have left fit exactly. Sources:
``kSmallSize``, ``kMinLargeAlloc``, ``kLargeBuffer``, ``kRoundLarge``, ``get_allocation_size`` and
``should_split`` in c10/cuda/CUDACachingAllocator.cpp. ``make bench-cuda-allocator`` holds this
against that allocator.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.measurement import Phase
from tuner.core.workload import Workload
from tuner.cost.memory import step_memory
from tuner.cost.shards import WEIGHT_BYTES, copies_whole, is_fsdp, shard_ranks, state_bytes
from tuner.cost.tensors import model_tensors
from tuner.model import ModelConfig

# What it is called among the categories of memory at the peak.
UNSPLIT = "unsplit_blocks"
MIB = 2**20
_STEP_BYTES = 2 * MIB
_SHARED_BYTES = 20 * MIB
_OWN_FROM_BYTES = 10 * MIB


def beyond(size: float) -> float:
    """Bytes that a tensor of ``size`` bytes gets beyond that in new memory, on average."""
    if size <= MIB:  # of the small pool, whose blocks are always split
        return 0.0
    fits = 1 if size >= _OWN_FROM_BYTES else _SHARED_BYTES // size
    left = -size % _STEP_BYTES if size >= _OWN_FROM_BYTES else _SHARED_BYTES - fits * size
    return left / fits if left <= MIB else 0.0


def unsplit_bytes(
    workload: Workload, settings: Settings, cluster: Cluster, by_phase: Mapping[str, float]
) -> dict[str, float]:
    """Bytes by phase that allocated blocks of parameters and what goes with them have beyond these.

    Parameters are in new memory. Gradients take what the forward of the first step has left, then
    new memory; states and the optimizer's copy what its backward has left, then new memory. The
    more activations there were, the less is lost in the optimizer's step. That much is not counted
    on: its figure is that of one sequence with checkpointing, so none falls as others grow.

    Args:
        workload: what is trained.
        settings: how.
        cluster: where; on CPUs there is nothing of this.
        by_phase: bytes of tensors at each phase's highest moment, in steady state.
    """
    if cluster.gpu.device is not Device.CUDA or settings.cpu_offload:
        return {}
    found = _of_class(workload, settings.settings_class, cluster)
    held, backward, _ = found.unsplit(by_phase)
    return {
        Phase.FORWARD: held,
        Phase.LOSS: held,
        Phase.BACKWARD: backward,
        Phase.OPTIMIZER: found.at_update,
    }


class _Kept(NamedTuple):
    """Holds the bytes that a rank keeps, and what it gets beyond that in new memory."""

    own: float
    """Parameters; gradients take as much."""
    own_more: float
    states: float
    states_more: float
    copies: float
    """What the optimizer's step takes for a time."""
    copies_more: float
    at_update: float = 0.0
    """Of all, in the optimizer's step, where activations leave least."""

    def unsplit(self, by_phase: Mapping[str, float]) -> tuple[float, float, float]:
        """In forward, in backward and in the optimizer's step, after phases of such peaks."""
        forward = max(by_phase.get(name, 0.0) for name in (Phase.FORWARD, Phase.LOSS))
        first = forward - self.states
        most = max(first, by_phase.get(Phase.BACKWARD, 0.0) - self.states)
        new = _share_new(self.states + self.copies, most - 2 * self.own)
        held = self.own_more + self.states_more * new
        backward = held + self.own_more * _share_new(self.own, first - self.own)
        return held, backward, backward + self.copies_more * new


@lru_cache(maxsize=1024)
def _of_class(workload: Workload, settings_class: Settings, cluster: Cluster) -> _Kept:
    weight = WEIGHT_BYTES[workload.precision]
    sharded = is_fsdp(settings_class, cluster)
    ranks = shard_ranks(settings_class, cluster) if sharded else 1
    elements = _elements(workload.model, settings_class.tp_size, ranks)
    own, own_more = _sums(elements, weight)
    moment, moment_more = _sums(elements, state_bytes(workload) / 2)
    copies = copies_whole(workload, cluster)
    kept = _Kept(own, own_more, 2 * moment, 2 * moment_more, copies * own, copies * own_more)
    least = replace(
        settings_class,
        activation_checkpointing=Checkpointing.FULL,
        tp_recompute_allgather=settings_class.tp_size > 1,
        sync_each_batch=True,
    )
    found = step_memory(workload, least, cluster).by_phase
    *_, at_update = kept.unsplit({str(phase): size for phase, size in found.items()})
    return kept._replace(at_update=at_update)


def _share_new(wanted: float, free: float) -> float:
    """The share of bytes wanted that is in new memory, where some are free."""
    return min(1.0, max(0.0, 1 - max(0.0, free) / wanted)) if wanted else 0.0


@lru_cache(maxsize=1024)
def _elements(model: ModelConfig, tp_size: int, ranks: int) -> tuple[int, ...]:
    """Elements of each parameter as one rank keeps it."""
    local = (tensor.local(tp_size) for tensor in model_tensors(model).all)
    return tuple(-(-one.rows // ranks) * one.columns for one in local)


def _sums(elements: Iterable[int], each: float) -> tuple[float, float]:
    """Bytes of tensors, and what they get beyond that in new memory."""
    sizes = [count * each for count in elements]
    return sum(sizes), sum(map(beyond, sizes))
