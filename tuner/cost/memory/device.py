"""Adds up what a GPU holds beside tensors: what nvidia-smi shows, and torch's tensors do not.

Three terms are outside the allocated bytes, each with its own interval: the CUDA context, the
buffers of the communicators, and blocks that the caching allocator has reserved and no tensor uses.
The first two are in the way; the third is elastic, for the allocator gives free blocks back before
it fails. So settings fit if peak allocated + context + communicators stay within the limit. Two
count as allocated, and a step on tensors without memory does not see them: the workspaces of
cuBLAS, and what the allocator's blocks have beyond the tensors in them (:func:`unsplit_bytes`).

The constants and their sources are in ``catalog/costs.toml``, table ``device``. A rank on the CPU
has none of this.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from tuner.core.cluster import Cluster, Device, Gpu
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.framework import Framework
from tuner.core.measurement import Phase
from tuner.core.quantity import Quantity, predicted
from tuner.core.workload import Optimizer, Workload
from tuner.cost.constants import Costs, default_costs
from tuner.cost.memory.optimizers import state_bytes
from tuner.cost.memory.shards import COMPUTE_BYTES, WEIGHT_BYTES, axis_sizes, shard_elements
from tuner.cost.memory.step import step_memory
from tuner.cost.memory.tensors import model_tensors

# What they are called among the categories of memory at the peak.
WORKSPACES = "library_workspaces"
# cuBLAS's workspace of one thread before Hopper: 2 x 4096 + 8 x 16 KiB, torch's default for
# ``CUBLAS_WORKSPACE_CONFIG`` (PyTorch PR 83461, ``CublasHandlePool.cpp``).
WORKSPACE_BYTES = 8_519_680
# The same on Hopper (cuBLAS's ``cublasSetWorkspace``; PyTorch PR 120925).
HOPPER_WORKSPACE_BYTES = 32 * 2**20
# By the name of a GPU: of Hopper and Blackwell, and of AMD's (``parseChosenWorkspaceSize`` in
# torch's ``aten/src/ATen/cuda/CublasHandlePool.cpp``). What has none of these names counts as
# older.
_WORKSPACES: Mapping[re.Pattern[str], int] = {
    re.compile(r"\b(g?[hb]\d|rtx-?50[5-9]0|rtx-pro)"): HOPPER_WORKSPACE_BYTES,  # no RTX 5000
    re.compile(r"\bmi2"): 32 * 2**20,
    re.compile(r"\bmi3"): 128 * 2**20,
}
# With a handle and so a workspace of their own: forward's, and autograd's for backward. cuBLASLt
# uses cuBLAS's, unless ``TORCH_CUBLASLT_UNIFIED_WORKSPACE`` is off (the same file). Once used they
# stay, so every phase of a step holds both.
THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTerms:
    """Bytes of one rank's device, by what holds them."""

    context: Quantity
    """The CUDA context: the driver's own structures, and the kernels loaded so far."""
    communicators: Quantity  # buffers of the process groups in which the rank communicates
    reserved_free: Quantity
    """Reserved by the allocator at its peak, and not given out then. Elastic."""


def device_terms(
    settings: Settings,
    cluster: Cluster,
    allocated_bytes: float,
    *,
    framework: Framework | None = None,
    costs: Costs | None = None,
) -> DeviceTerms:
    """The terms for legal settings that peak at ``allocated_bytes``; 0 on a CPU.

    The value of ``reserved_free`` and its ends stay within what the device has left. It is in
    proportion to all that is allocated, as the runs that it is fitted to: with :func:`workspaces`.
    """
    if cluster.gpu.device is not Device.CUDA:
        return DeviceTerms(context=NOTHING, communicators=NOTHING, reserved_free=NOTHING)
    figures = (default_costs() if costs is None else costs).device
    context = predicted(*figures.context_bytes)
    each = predicted(*figures.communicator_bytes)
    communicators = each.scaled(communicator_count(settings, cluster))
    checkpointed = settings.activation_checkpointing in (Checkpointing.FULL, Checkpointing.OFFLOAD)
    fsdp = axis_sizes(settings, cluster).is_fsdp
    if fsdp and framework is not None and framework.fsdp_version == 1:
        reserved = figures.reserved_fsdp1
    elif cluster.world_size == 1:
        reserved = figures.reserved
    elif fsdp and axis_sizes(settings, cluster).tp == 1 and checkpointed:
        reserved = figures.reserved_checkpointed
    else:
        reserved = figures.reserved_several
    taken = allocated_bytes + (context.value or 0.0) + (communicators.value or 0.0)
    left = max(0.0, cluster.gpu.memory_bytes - taken)
    free = [min(left, (factor - 1) * allocated_bytes) for factor in reserved]
    return DeviceTerms(context=context, communicators=communicators, reserved_free=predicted(*free))


def workspaces(gpu: Gpu) -> Quantity:
    """Bytes that are allocated and that a dry run does not see: cuBLAS's, of :data:`THREADS`.

    The interval is from older defaults, to those of now with cuBLASLt's apart; 0 on a CPU.
    """
    if gpu.device is not Device.CUDA:
        return NOTHING
    known = (size for name, size in _WORKSPACES.items() if name.search(gpu.name.lower()))
    value = THREADS * next(known, WORKSPACE_BYTES)
    high = 2 * max(value, THREADS * HOPPER_WORKSPACE_BYTES)
    return predicted(value, min(value, THREADS * WORKSPACE_BYTES), high)


def communicator_count(settings: Settings, cluster: Cluster) -> int:
    """Process groups of more than one rank in which a rank communicates.

    A group that spans all ranks is the world's own. Without one, the world's is there beside the
    others: for barriers, and for what all ranks must agree on. NCCL makes a communicator when a
    group first communicates, and each has its own buffers (NCCL issues 964 and 986).
    """
    sizes = axis_sizes(settings, cluster)
    data = (sizes.shard, sizes.replicate) if sizes.is_fsdp else (sizes.dp,)
    ring = sizes.cp if sizes.cp < sizes.shard else 1  # else FSDP's own group
    groups = [size for size in (*data, sizes.tp, ring, settings.pp_size) if size > 1]
    return len(groups) + (cluster.world_size > 1 and cluster.world_size not in groups)


NOTHING = predicted(0.0, 0.0, 0.0)


# Blocks of torch's CUDA caching allocator. A tensor gets a block of the size asked for, in steps of
# 512 bytes. A large block that would leave 1 MiB or less is not split: the tensor gets all of it.
# Memory that is new from the driver comes in segments of 2 MiB steps from 10 MiB on, and of 20 MiB
# below, so what a tensor in new memory gets follows from its size; blocks cut from what larger
# tensors have left fit exactly. Sources: ``kSmallSize``, ``kMinLargeAlloc``, ``kLargeBuffer``,
# ``kRoundLarge``, ``get_allocation_size``, ``should_split`` in c10/cuda/CUDACachingAllocator.cpp.
# ``make bench-cuda-allocator`` holds this against that allocator.

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

    ``by_phase`` is of tensors at each phase's highest moment, in steady state. On CPUs there is
    nothing of this.
    """
    if cluster.gpu.device is not Device.CUDA or settings.cpu_offload:
        return {}
    found = _of_class(workload, settings.layout, cluster)
    held, backward, _ = found.unsplit(by_phase)
    return {
        Phase.FORWARD: held,
        Phase.LOSS: held,
        Phase.BACKWARD: backward,
        Phase.OPTIMIZER: found.at_update,
    }


class _Kept(NamedTuple):
    """Holds the bytes that a rank keeps, and what it gets beyond that in new memory."""

    own: float  # parameters
    own_more: float
    gradients: float
    gradients_more: float
    states: float
    states_more: float
    copies: float  # what the optimizer's step takes for a time
    copies_more: float
    at_update: float = 0.0  # of all, in the optimizer's step, where activations leave least

    def unsplit(self, by_phase: Mapping[str, float]) -> tuple[float, float, float]:
        """In forward, in backward and in the optimizer's step, after phases of such peaks."""
        forward = max(by_phase.get(name, 0.0) for name in (Phase.FORWARD, Phase.LOSS))
        first = forward - self.states
        most = max(first, by_phase.get(Phase.BACKWARD, 0.0) - self.states)

        def share_new(wanted: float, free: float) -> float:
            """The share of bytes wanted that is in new memory, where some are free."""
            return min(1.0, max(0.0, 1 - max(0.0, free) / wanted)) if wanted else 0.0

        new = share_new(self.states + self.copies, most - self.own - self.gradients)
        held = self.own_more + self.states_more * new
        backward = held + self.gradients_more * share_new(self.gradients, first - self.own)
        return held, backward, backward + self.copies_more * new


@lru_cache(maxsize=1024)
def _of_class(workload: Workload, layout: Settings, cluster: Cluster) -> _Kept:
    sizes = axis_sizes(layout, cluster)
    tp, ranks = sizes.tp, sizes.shard
    narrow = COMPUTE_BYTES[workload.precision]  # of what is frozen
    tensors = model_tensors(workload.model, workload.adapter, narrow)
    local = [tensor.local(tp) for tensor in tensors.all]

    def sums(each: float, *, trained: bool = True) -> tuple[float, float]:
        """Bytes of tensors, and what they get beyond that in new memory."""
        sizes = [shard_elements(one, ranks) * each for one in local if one.trained is trained]
        return sum(sizes), sum(map(beyond, sizes))

    own, own_more = sums(WEIGHT_BYTES[workload.precision])
    frozen, frozen_more = sums(narrow, trained=False)
    moment, moment_more = sums(state_bytes(workload, cluster) / 2)
    # on CUDA torch's AdamW, unless fused, works on all parameters at once, through one copy
    copies = workload.optimizer is Optimizer.ADAMW and cluster.gpu.device is Device.CUDA
    kept = _Kept(
        own=own + frozen,
        own_more=own_more + frozen_more,
        gradients=own,
        gradients_more=own_more,
        states=2 * moment,
        states_more=2 * moment_more,
        copies=copies * own,
        copies_more=copies * own_more,
    )
    least = replace(
        layout,
        activation_checkpointing=Checkpointing.FULL,
        tp_recompute_allgather=tp > 1,
        sync_each_batch=True,
    )
    found = step_memory(workload, least, cluster).by_phase
    *_, at_update = kept.unsplit({str(phase): size for phase, size in found.items()})
    return kept._replace(at_update=at_update)
