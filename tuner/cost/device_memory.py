"""What a GPU holds beside allocated tensors: what nvidia-smi shows, and torch does not.

Three terms, each with its own interval: the CUDA context, the buffers of the communicators, and
blocks that the caching allocator has reserved and no tensor uses. The first two are in the way;
the third is elastic, for the allocator gives free blocks back before it fails. So settings fit if
peak allocated + context + communicators stay within the limit. The workspaces of cuBLAS go through
the allocator and count as allocated; a step on tensors without memory does not see them.

The constants and their sources are in ``catalog/costs.toml``, table ``device``. A rank on the CPU
has none of this.
"""

from dataclasses import dataclass

from tuner.cluster import Cluster, Device
from tuner.cost.axes import axis_sizes, is_fsdp
from tuner.cost.constants import Costs, default_costs
from tuner.framework import Framework, FrameworkName
from tuner.quantity import Provenance, Quantity
from tuner.settings import Settings

WORKSPACE_BYTES = 8_519_680
"""cuBLAS's workspace of one thread before Hopper: 2 x 4096 + 8 x 16 KiB, torch's default for
``CUBLAS_WORKSPACE_CONFIG`` (PyTorch PR 83461, ``CublasHandlePool.cpp``)."""
HOPPER_WORKSPACE_BYTES = 32 * 2**20
"""The same on Hopper (cuBLAS's ``cublasSetWorkspace``; PyTorch PR 120925)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTerms:
    """Bytes of one rank's device, by what holds them."""

    context: Quantity
    """The CUDA context: the driver's own structures, and the kernels loaded so far."""
    communicators: Quantity
    """Buffers of the process groups in which the rank communicates."""
    reserved_free: Quantity
    """Reserved by the allocator at its peak, and used by no tensor then. Elastic."""
    workspaces: Quantity
    """Part of what is allocated that a dry run does not see: cuBLAS's, of two threads."""


def device_terms(
    settings: Settings,
    cluster: Cluster,
    allocated_bytes: float,
    *,
    framework: Framework | FrameworkName = FrameworkName.TORCH,
    costs: Costs | None = None,
) -> DeviceTerms:
    """The terms for legal settings whose tensors peak at ``allocated_bytes``; 0 on a CPU.

    The value of ``reserved_free`` and its ends stay within what the device has left.
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
    fsdp1 = _uses_fsdp1(settings, cluster, framework)
    reserved = figures.reserved_fsdp1 if fsdp1 else figures.reserved
    taken = allocated_bytes + (context.value or 0.0) + (communicators.value or 0.0)
    left = max(0.0, cluster.gpu.memory_bytes - taken)
    free = [min(left, (factor - 1) * allocated_bytes) for factor in reserved]
    return DeviceTerms(
        context=context,
        communicators=communicators,
        reserved_free=_quantity(*free),
        workspaces=_quantity(2 * WORKSPACE_BYTES, 2 * WORKSPACE_BYTES, 4 * HOPPER_WORKSPACE_BYTES),
    )


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


def _uses_fsdp1(settings: Settings, cluster: Cluster, framework: Framework | FrameworkName) -> bool:
    old = isinstance(framework, Framework) and framework.fsdp_version == 1
    return old and is_fsdp(settings, cluster)


def _quantity(value: float, low: float, high: float) -> Quantity:
    return Quantity(value=value, low=low, high=high, provenance=Provenance.PREDICTED)


_NONE = _quantity(0.0, 0.0, 0.0)
_ON_CPU = DeviceTerms(context=_NONE, communicators=_NONE, reserved_free=_NONE, workspaces=_NONE)
