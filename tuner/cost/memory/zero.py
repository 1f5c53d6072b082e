"""Memory of one optimizer step under DeepSpeed by arithmetic: ZeRO 0 to 3, on the rank that needs
most.

Formulas and constants are read from DeepSpeed 0.19.8, where not said otherwise of
``runtime/zero/stage_1_and_2.py`` and ``runtime/zero/stage3.py``; ``benchmarks/zero.py`` holds them
against its peaks on two CPU ranks. The layers are those of a plain module in the number format that
is computed in, for DeepSpeed casts the model itself and there is no autocast.
"""

from dataclasses import dataclass, replace
from math import ceil

from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.measurement import Phase
from tuner.core.workload import Precision, ReduceDtype, Workload
from tuner.cost.memory.optimizers import state_bytes, step_bytes
from tuner.cost.memory.shards import REDUCE_BYTES, WEIGHT_BYTES, Span, Unit
from tuner.cost.memory.step import Step, StepMemory, followed
from tuner.cost.memory.tensors import model_tensors
from tuner.cost.memory.wrapping import (
    ACTIVATIONS,
    DDP_BUCKETS,
    GATHERED_PARAMETERS,
    GRADIENTS_SHARDED,
    GRADIENTS_UNSHARDED,
    OPTIMIZER_STATE,
    PARAMETERS,
    TEMPORARIES,
    Moment,
)

# ZeRO's stage of a sharding over several ranks.
STAGES = {
    Sharding.DDP: 0,
    Sharding.ZERO1: 1,
    Sharding.SHARD_GRAD_OP: 2,
    Sharding.FULL_SHARD: 3,
    Sharding.HYBRID_SHARD: 3,  # with secondary shards within a node (``zero_hpz_partition_size``)
}
# Elements of a reduction without ZeRO (``MEMORY_OPT_ALLREDUCE_SIZE`` in runtime/engine.py).
ALL_REDUCE_ELEMENTS = 500_000_000
# Elements to which partitions of stages 1 and 2 are aligned (``nccl_start_alignment_factor``).
ALIGNED = 2
# Bytes of an element of the copy that a gradient's norm is taken of (``get_norm_dtype`` in
# runtime/zero/utils.py: fp64).
NORM_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Zero:
    """What ``zero_optimization`` says, in elements; the defaults of ``runtime/zero/config.py``."""

    reduce_bucket_size: int = 500_000_000
    prefetch_bucket_size: int = 50_000_000  # ``stage3_prefetch_bucket_size``
    param_persistence_threshold: int = 100_000  # ``stage3_param_persistence_threshold``
    max_live_parameters: int = 1_000_000_000  # ``stage3_max_live_parameters``
    max_reuse_distance: int = 1_000_000_000  # ``stage3_max_reuse_distance``
    sub_group_size: int = 1_000_000_000
    overlap_comm: bool | None = None  # by default in stage 3 alone

    def overlaps(self, stage: int) -> bool:
        """Says if gradients are reduced beside backward."""
        return stage == 3 if self.overlap_comm is None else self.overlap_comm


DEFAULTS = Zero()


def stage_of(settings: Settings, cluster: Cluster) -> int:
    """The stage that splits the settings' state; 0 where ranks see the same data."""
    ranks = settings.data_parallel_size(cluster.world_size)
    return STAGES[settings.sharding] if ranks > 1 else 0


def plain(workload: Workload, settings: Settings) -> tuple[Workload, Settings]:
    """What DeepSpeed's engine calls: an unsharded module, whose parameters are cast beforehand."""
    wide = workload.precision is Precision.FP32
    as_computed = replace(
        workload,
        precision=Precision.FP32 if wide else Precision.BF16,
        reduce_dtype=ReduceDtype.FP32 if wide else ReduceDtype.BF16,
    )
    return as_computed, replace(settings, sharding=Sharding.DDP, cpu_offload=False)


def zero_memory(
    workload: Workload, settings: Settings, cluster: Cluster, zero: Zero = DEFAULTS
) -> StepMemory:
    """The memory of a configuration. Raises ZeroDivisionError: settings of more ranks than the
    cluster has."""
    return followed(_ZeroStep, workload, settings, cluster, zero)


class _ZeroStep(Step):
    """One micro-batch and the optimizer of a plain module, with what ZeRO's hooks add."""

    def __init__(
        self,
        workload: Workload,
        settings: Settings,
        accumulates: bool,
        cluster: Cluster,
        zero: Zero,
    ) -> None:
        super().__init__(*plain(workload, settings), accumulates, cluster)
        self.zero, self.stage = zero, stage_of(settings, cluster)
        self.asked, self.offloads = workload, settings.cpu_offload
        tensors = [tensor.elements for tensor in model_tensors(workload.model).all]
        self.elements, self.widest = sum(tensors), max(tensors)
        # ``communication_data_type``
        self.sent = REDUCE_BYTES[workload.reduced_in(sharded=True)]
        self.master = WEIGHT_BYTES[workload.precision]  # of a partition's copy for the optimizer
        self.whole_waits = accumulates and self.stage < 2
        ranks = self.replicas
        self.part = ceil(self.elements / (ALIGNED * ranks)) * ALIGNED if self.stage else 0
        persistent = 0
        if self.stage == 3:  # each parameter is cut by itself
            self.part = sum(ceil(size / ranks) for size in tensors)
            small = zero.param_persistence_threshold
            persistent = sum(size for size in tensors if size <= small)
        self.persistent = persistent
        within = settings.sharding is Sharding.HYBRID_SHARD and self.stage == 3
        # shards within a node beside those over all ranks (``_partition_param_sec``)
        self.secondary = ceil(self.elements / cluster.gpus_per_node) if within else 0
        # what one reduction takes: a bucket's, or a gradient's that is larger than buckets
        bucket = zero.reduce_bucket_size if self.stage else ALL_REDUCE_ELEMENTS
        self.bucket = bucket
        self.reduced_at_once = min(
            self.elements, max(bucket, self.widest if self.widest > bucket else 0)
        )
        self.filled, self.has_part = 0.0, False

    # ------------------------------------------------------------------ what is there all the time

    def run(self) -> tuple[Moment, ...]:
        tape, stage, on_device = self.tape, self.stage, not self.offloads
        if stage == 3:
            tape.fixed(
                PARAMETERS,
                self.c * (on_device * self.part + self.persistent),
                self.c * self.secondary,
            )
            # ``grad_partitions_flat_buffer``, and the bucket of ``_setup_for_real_optimizer``
            tape.fixed(GRADIENTS_SHARDED, on_device * self.c * self.part)
            tape.fixed(DDP_BUCKETS, self.sent * self.zero.reduce_bucket_size)
        else:
            tape.fixed(PARAMETERS, self.c * self.elements)
        tape.fixed(OPTIMIZER_STATE, on_device * self._kept)
        if stage in (1, 2) and self.offloads:  # ``temp_grad_buffer_for_gpu_offload``
            tape.fixed(DDP_BUCKETS, self.c * self.widest)
        if self.whole_waits:
            tape.fixed(GRADIENTS_UNSHARDED, self.c * self.elements)
            # buffers of stage 1 are there until the last micro-batch's epilogue
            tape.fixed(DDP_BUCKETS, self._buffers)
        elif self.accumulates and stage == 2:
            tape.fixed(GRADIENTS_SHARDED, on_device * self.c * self.part)
        tape.enter(Phase.OPTIMIZER)
        tape.enter(Phase.FORWARD)
        gathered = self.c * self._gathered
        tape.fixed(GATHERED_PARAMETERS, gathered)
        self._forward()
        tape.enter(Phase.LOSS)
        self._loss()
        tape.enter(Phase.BACKWARD)
        self._loss_backward()
        if not self.whole_waits:
            tape.fixed(DDP_BUCKETS, self._buffers)
        self._backward()
        tape.fixed(GATHERED_PARAMETERS, -gathered)
        tape.enter(Phase.OPTIMIZER)
        if on_device:
            self._update()
        return tape.moments()

    @property
    def _kept(self) -> float:
        state = state_bytes(self.asked, self.cluster)
        if self.stage:
            return (self.master + state) * self.part
        copy = self.master if self.asked.precision is Precision.BF16_MIXED else 0
        return (copy + state) * self.elements

    @property
    def _buffers(self) -> float:
        """Bytes of the buckets of stages 1 and 2 (``setup_buckets``): two where they overlap."""
        if self.stage not in (1, 2):
            return 0.0
        both = 1 + self.zero.overlaps(self.stage)
        return float(both * self.c * self.zero.reduce_bucket_size)

    @property
    def _gathered(self) -> float:
        """Elements of parameters that are whole at a time, with the buffer of a gathering.

        Each module's hook gathers a bucket more ahead until ``max_live_parameters`` are there, and
        what comes again within ``max_reuse_distance`` stays: in forward the last of the layers,
        which backward comes to (``fetch_sub_module`` and ``__params_to_release`` in
        runtime/zero/partitioned_param_coordinator.py). A coalesced gathering is copied out of its
        buffer (``AllGatherCoalescedHandle.wait`` in partition_parameters.py).
        """
        if self.stage != 3:
            return 0.0
        zero, cut = self.zero, self.elements - self.persistent
        prefetches = zero.prefetch_bucket_size > 0
        # backward passes each layer once, or twice where it computes it again
        times = 2 if self.settings.activation_checkpointing is Checkpointing.NONE else 3
        stays = zero.max_reuse_distance / times
        live = max(zero.max_live_parameters * prefetches, stays) + self.widest
        return min(cut, live) + min(cut, zero.prefetch_bucket_size)

    # ------------------------------------------------------------------ gradients

    def weight_gradient(self, elements: float, *, cast: bool = True) -> None:
        self.tape.fixed(GRADIENTS_UNSHARDED, self.c * elements)
        if self.stage >= 2 or self.whole_waits:  # copied into a bucket, or added to what waits
            self.tape.fixed(GRADIENTS_UNSHARDED, -self.c * elements)

    def reduce_unit(self, unit: Unit, *, one_weight: bool = False) -> None:
        self.filled += unit.trained.whole
        if self.stage >= 2 and self.filled >= self.bucket:
            self._reduce()
            self.filled %= self.bucket

    def reduce_between(self, span: Span) -> None:
        if self.stage < 2:
            waits = 0.0 if self.whole_waits else self.c * span.trained_whole
            self.tape.fixed(GRADIENTS_UNSHARDED, waits)
            return
        whole = self.filled + span.trained_whole
        if whole >= self.bucket:  # while later layers' activations are still there
            left = 1 - max(0.0, self.bucket - self.filled) / span.trained_whole
            self.tape.sequence(ACTIVATIONS, left * span.kept_bytes)
            self._reduce()
            self.tape.sequence(ACTIVATIONS, -left * span.kept_bytes)
        self.filled = whole % self.bucket

    def _reduce(self) -> None:
        """A bucket is copied to lie by ranks, sent, and this rank's part of it is kept."""
        tape, size = self.tape, self.reduced_at_once
        taken = self.c * size + (self.sent * size if self.sent != self.c else 0)
        if self.stage == 3 and self.sent != self.c:
            taken += self.sent * size  # all gradients are cast, and then put in ranks' order
        tape.fixed(TEMPORARIES, taken, -taken)
        if self.stage == 2 and not self.has_part and not self.offloads:
            self.has_part = True  # ``grads_in_partition``
            tape.fixed(GRADIENTS_SHARDED, self.c * self.part)

    def _end_reductions(self) -> None:
        """What is left in the buckets; without ZeRO and in stage 1 all, of a step's last backward.

        Gradients of stage 1 become views of a bucket one by one.
        """
        tape, size = self.tape, self.reduced_at_once
        if self.stage >= 2:
            self._reduce()
        else:
            tape.fixed(
                TEMPORARIES,
                self.sent * size if self.stage else self.c * size,
                -(self.sent * size if self.stage else self.c * size),
            )
        if self.stage == 1:
            tape.fixed(GRADIENTS_UNSHARDED, -self.c * self.elements)
            tape.fixed(GRADIENTS_SHARDED, not self.offloads and self.c * self.part)
        tape.fixed(DDP_BUCKETS, -self._buffers)
        if self.stage == 2 and self.accumulates:  # added to what was there
            tape.fixed(GRADIENTS_SHARDED, -self.c * self.part * (not self.offloads))

    # ------------------------------------------------------------------ optimizer

    def _update(self) -> None:
        """Gradients as one flat tensor in the optimizer's format, and its step on that.

        Without ZeRO each parameter has a copy of its own, and all have gradients in that format
        too (``FP16_UnfusedOptimizer.step`` in runtime/fp16/unfused_optimizer.py).
        """
        tape, asked, on_cuda = self.tape, self.asked, self.cluster.gpu.device is Device.CUDA
        if not self.stage:
            own, largest = self.elements, self.widest
            if asked.precision is Precision.BF16_MIXED:
                tape.fixed(GRADIENTS_UNSHARDED, self.master * own)
        else:
            # stage 3 goes through its partition in parts of whole parameters
            own = self.part
            if self.stage == 3:
                own = min(own, self.zero.sub_group_size + ceil(self.widest / self.replicas))
            largest = own
            norm = NORM_BYTES * (self.widest if self.stage < 3 else self.widest / self.replicas)
            tape.fixed(TEMPORARIES, norm if on_cuda else 0.0, -norm if on_cuda else 0.0)
            tape.fixed(TEMPORARIES, self.c * own)  # flat
            tape.fixed(
                TEMPORARIES,
                self.master * own if self.master != self.c else 0.0,
                -self.c * own if self.master != self.c else 0.0,
            )
            if self.stage < 3:  # their source is not needed any more
                tape.fixed(GRADIENTS_SHARDED, -self.c * self.part)
        tape.fixed(TEMPORARIES, step_bytes(asked, self.cluster, own, largest))
