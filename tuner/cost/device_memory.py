"""Adds up what a GPU holds beside allocated tensors: what nvidia-smi shows, and torch does not.

Three terms, each with its own interval: the CUDA context, the buffers of the communicators, and
blocks that the caching allocator has reserved and no tensor uses. The first two are in the way;
the third is elastic, for the allocator gives free blocks back before it fails. So settings fit if
peak allocated + context + communicators stay within the limit. The workspaces of cuBLAS go through
the allocator and count as allocated; a step on tensors without memory does not see them.

The constants and their sources are in ``catalog/costs.toml``, table ``device``. A rank on the CPU
has none of this.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tuner.core.cluster import Cluster, Device, Gpu
from tuner.core.configuration import Checkpointing, Settings
from tuner.core.framework import Framework, FrameworkName
from tuner.core.quantity import Provenance, Quantity
from tuner.cost.constants import Costs, DeviceCosts, Reserved, default_costs
from tuner.cost.shards import axis_sizes, is_fsdp

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
    re.compile(r"\b(g?[hb]\d|rtx-?50[5-9]0)"): HOPPER_WORKSPACE_BYTES,  # no RTX 5000
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
    communicators: Quantity
    """Buffers of the process groups in which the rank communicates."""
    reserved_free: Quantity
    """Reserved by the allocator at its peak, and not given out then. Elastic."""


def device_terms(
    settings: Settings,
    cluster: Cluster,
    allocated_bytes: float,
    *,
    framework: Framework | FrameworkName = FrameworkName.TORCH,
    costs: Costs | None = None,
) -> DeviceTerms:
    """The terms for legal settings that peak at ``allocated_bytes``; 0 on a CPU.

    The value of ``reserved_free`` and its ends stay within what the device has left. It is in
    proportion to all that is allocated, as the runs that it is fitted to: with :func:`workspaces`.
    """
    if cluster.gpu.device is not Device.CUDA:
        return _ON_CPU
    figures = (default_costs() if costs is None else costs).device
    context = _quantity(
        figures.context_bytes, figures.context_low_bytes, figures.context_high_bytes
    )
    each = _quantity(
        figures.communicator_bytes,
        figures.communicator_low_bytes,
        figures.communicator_high_bytes,
    )
    communicators = each.scaled(communicator_count(settings, cluster))
    reserved = _reserved(settings, cluster, framework, figures)
    taken = allocated_bytes + (context.value or 0.0) + (communicators.value or 0.0)
    left = max(0.0, cluster.gpu.memory_bytes - taken)
    free = [min(left, (factor - 1) * allocated_bytes) for factor in reserved]
    return DeviceTerms(
        context=context,
        communicators=communicators,
        reserved_free=_quantity(*free),
    )


def workspace_bytes(gpu: Gpu) -> int:
    """Bytes of cuBLAS's workspace of one thread on a GPU, by torch's default; 0 on a CPU."""
    if gpu.device is not Device.CUDA:
        return 0
    known = (size for name, size in _WORKSPACES.items() if name.search(gpu.name.lower()))
    return next(known, WORKSPACE_BYTES)


def workspaces(gpu: Gpu) -> Quantity:
    """Bytes that are allocated and that a dry run does not see: cuBLAS's, of :data:`THREADS`.

    The interval is from older defaults, to those of now with cuBLASLt's apart; 0 on a CPU.
    """
    if gpu.device is not Device.CUDA:
        return _NONE
    value = THREADS * workspace_bytes(gpu)
    high = 2 * max(value, THREADS * HOPPER_WORKSPACE_BYTES)
    return _quantity(value, min(value, THREADS * WORKSPACE_BYTES), high)


def communicator_count(settings: Settings, cluster: Cluster) -> int:
    """Process groups of more than one rank in which a rank communicates.

    A group that spans all ranks is the world's own. Without one, the world's is there beside the
    others: for barriers, and for what all ranks must agree on. NCCL makes a communicator when a
    group first communicates, and each has its own buffers (NCCL issues 964 and 986).
    """
    sizes = axis_sizes(settings, cluster)
    data = (sizes.shard, sizes.replicate) if sizes.is_fsdp else (sizes.dp,)
    groups = [size for size in (*data, sizes.tp, settings.pp_size) if size > 1]
    return len(groups) + (cluster.world_size > 1 and cluster.world_size not in groups)


def _reserved(
    settings: Settings,
    cluster: Cluster,
    framework: Framework | FrameworkName,
    figures: DeviceCosts,
) -> Reserved:
    """Reserved over allocated bytes, of settings like these."""
    if _uses_fsdp1(settings, cluster, framework):
        return figures.reserved_fsdp1
    if cluster.world_size == 1:
        return figures.reserved
    checkpointed = settings.activation_checkpointing is Checkpointing.FULL
    if is_fsdp(settings, cluster) and settings.tp_size == 1 and checkpointed:
        return figures.reserved_checkpointed
    return figures.reserved_several


def _uses_fsdp1(settings: Settings, cluster: Cluster, framework: Framework | FrameworkName) -> bool:
    old = isinstance(framework, Framework) and framework.fsdp_version == 1
    return old and is_fsdp(settings, cluster)


def _quantity(value: float, low: float, high: float) -> Quantity:
    return Quantity(value=value, low=low, high=high, provenance=Provenance.PREDICTED)


_NONE = _quantity(0.0, 0.0, 0.0)
_ON_CPU = DeviceTerms(context=_NONE, communicators=_NONE, reserved_free=_NONE)
