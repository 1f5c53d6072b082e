"""What wraps the layers does to memory: FSDP2, gradients as they are born, autocast's casts.

FSDP2 as in torch/distributed/fsdp/_fully_shard of torch 2.13, which holds some buffers longer than
it seems: the last all-gather's in forward, the last reduce-scatter's input in backward.
"""

from tuner.cluster import Cluster, Device
from tuner.cost.axes import axis_sizes
from tuner.cost.buckets import ddp_buckets, full_buckets_bytes
from tuner.cost.graph import Event, Kind
from tuner.cost.shards import (
    COMPUTE_BYTES,
    REDUCE_BYTES,
    WEIGHT_BYTES,
    Shards,
    autocasts,
    checkpointed,
    shards,
)
from tuner.cost.tape import (
    ACTIVATIONS,
    DDP_BUCKETS,
    GATHERED_PARAMETERS,
    GRADIENTS_SHARDED,
    GRADIENTS_UNSHARDED,
    TEMPORARIES,
    Tape,
)
from tuner.cost.units import Unit
from tuner.settings import Settings, Sharding
from tuner.workload import Workload


class Wrapping:
    """A tape, and what the wrapper writes on it.

    Args:
        workload: what is trained.
        settings: micro-batch size and accumulation are not read.
        accumulates: whether the step has more than one micro-batch.
        cluster: where.
    """

    def __init__(
        self, workload: Workload, settings: Settings, accumulates: bool, cluster: Cluster
    ) -> None:
        self.workload, self.settings, self.cluster = workload, settings, cluster
        self.model, self.tp = workload.model, settings.tp_size
        self.tape = Tape()
        self.parts: Shards = shards(workload, settings, cluster)
        self.c, self.w = COMPUTE_BYTES[workload.precision], WEIGHT_BYTES[workload.precision]
        assert workload.reduce_dtype is not None
        self.reduce = REDUCE_BYTES[workload.reduce_dtype]
        sizes = axis_sizes(settings, cluster)
        self.replicas, self.fsdp = sizes.dp, sizes.is_fsdp
        self.casts = autocasts(workload, settings, cluster)
        self.r = 4 if self.casts else self.c
        self.full = checkpointed(settings)
        self.reshards = self.fsdp and settings.sharding is not Sharding.SHARD_GRAD_OP
        self.hybrid = sizes.replicate > 1
        self.over_gloo = cluster.gpu.device is Device.CPU
        self.accumulates = accumulates
        self.whole_waits = accumulates and (not self.fsdp or not settings.sync_each_batch)
        self.on_device = not settings.cpu_offload
        self.tokens = workload.sequence_length
        self.stream = self.r * self.tokens * self.model.hidden_size / self.tp
        self.vocabulary = self.tokens * self.model.vocab_size / self.tp
        self.tied = not self.parts.embedding.whole
        self.gathered = 0.0  # the last all-gather's buffer, which FSDP2 frees late
        self.reducing = 0.0  # the last reduce-scatter's input, which it frees late
        self.embedded_held = 0.0
        self.cast_buckets = 0.0  # what DDP casts for its reductions, held to backward's end
        self.full_buckets = self._full_buckets()

    def _full_buckets(self) -> tuple[int, ...]:
        """Bytes of buckets to be cast, by the layers left; none where nothing is cast.

        The last item is for when all gradients are there.
        """
        ddp = self.settings.sharding is Sharding.DDP and self.settings.pp_size == 1
        if not ddp or self.replicas == 1 or self.reduce == self.w:
            return ()
        whole = sum(ddp_buckets(self.model, self.w))
        return (*full_buckets_bytes(self.model, self.w), whole)

    def cast_full_buckets(self, layers_left: int) -> None:
        """A bucket is cast once it is full, and its cast can live as long as backward does.

        The hook that reduces in another dtype casts (``_set_reduce_dtype`` in
        workers/probe/stack.py). Reductions that are fast free some casts before.

        Args:
            layers_left: layers that backward has still to do; -1 when all is done.
        """
        if self.full_buckets:
            held = self.reduce / self.w * self.full_buckets[layers_left]
            self.tape.fixed(DDP_BUCKETS, held - self.cast_buckets)
            self.cast_buckets = held

    def free_cast_buckets(self) -> None:
        """All is reduced."""
        self.tape.fixed(DDP_BUCKETS, -self.cast_buckets)
        self.cast_buckets = 0.0

    def gather(self, unit: Unit) -> None:
        """In forward: the buffer of the gathering stays until the next unit's copy is made."""
        if not self.fsdp:
            return
        size = self.c * unit.padded
        self.tape.fixed(GATHERED_PARAMETERS, size)
        self.tape.fixed(GATHERED_PARAMETERS, size)
        self.tape.fixed(GATHERED_PARAMETERS, -self.gathered)
        self.gathered = size

    def release(self, unit: Unit) -> None:
        """After a unit's forward; its parameters are gathered again for backward."""
        if self.reshards:
            self.tape.fixed(GATHERED_PARAMETERS, -self.c * unit.padded)

    def prefetch(self, unit: Unit) -> None:
        """In backward the next unit's gathering is started while this one computes."""
        if self.reshards:
            self.tape.fixed(GATHERED_PARAMETERS, self.c * unit.padded)

    def take_prefetched(self, unit: Unit) -> None:
        """The prefetched buffer is copied into parameters, and freed."""
        if self.reshards:
            self.tape.fixed(GATHERED_PARAMETERS, self.c * unit.padded)
            self.tape.fixed(GATHERED_PARAMETERS, -self.c * unit.padded)

    def reduce_unit(self, unit: Unit, *, one_weight: bool = False) -> None:
        """After a unit's backward: free its parameters, copy its gradients, reduce them."""
        if not self.fsdp:
            return
        tape = self.tape
        tape.fixed(GRADIENTS_UNSHARDED, self.c * unit.summed)
        tape.fixed(GRADIENTS_UNSHARDED, -self.c * unit.summed)
        tape.fixed(GATHERED_PARAMETERS, -self.c * unit.padded)
        tape.fixed(GRADIENTS_UNSHARDED, -self.reducing)
        self.reducing = self.reduce * unit.padded
        held = self.reduce if self.whole_waits else self.c
        if self.whole_waits and self.reduce != self.c:
            tape.fixed(GRADIENTS_UNSHARDED, -self.c * unit.whole)  # added to what waits
        tape.fixed(GRADIENTS_UNSHARDED, self.reducing)
        last = one_weight * held * unit.whole
        tape.fixed(GRADIENTS_UNSHARDED, last - held * unit.whole)
        self._keep_reduced(unit, last)

    @property
    def adds_up(self) -> bool:
        """Whether a reduced gradient is added to one that is there already."""
        return self.accumulates and not self.whole_waits

    @property
    def reduced_apart(self) -> bool:
        """Whether what is reduced is not itself the gradient that the optimizer takes."""
        return self.reduce != self.w or self.adds_up

    def _keep_reduced(self, unit: Unit, last: float) -> None:
        """The reduced shard; a loop's variable holds the unit's last gradient until then.

        Under hybrid sharding the all-reduce between replicas holds its buffer to the end.
        """
        tape, own, reduced = self.tape, self.w * unit.shard, self.reduce * unit.shard
        tape.fixed(GRADIENTS_SHARDED, reduced)
        if self.over_gloo:  # it scatters a copy of what it reduces
            tape.fixed(GRADIENTS_UNSHARDED, self.reducing)
            tape.fixed(GRADIENTS_UNSHARDED, -self.reducing)
        if self.reduce != self.w:
            tape.fixed(GRADIENTS_SHARDED, own)
        tape.fixed(GRADIENTS_UNSHARDED, -last)
        if self.reduced_apart and not self.hybrid:
            tape.fixed(GRADIENTS_SHARDED, -reduced)
        if self.reduce != self.w and (self.adds_up or not self.on_device):
            tape.fixed(GRADIENTS_SHARDED, -own)
        elif not self.on_device:
            tape.fixed(GRADIENTS_SHARDED, 0.0 if self.adds_up else -own)

    def weight_gradient(self, elements: float, *, cast: bool = True) -> None:
        """A gradient is born; where one waits already, it is added to that and dies."""
        tape = self.tape
        size = (self.c if self.fsdp else self.w) * elements
        cast = cast and self.casts
        if cast:
            tape.fixed(GRADIENTS_UNSHARDED, self.c * elements)
        tape.fixed(GRADIENTS_UNSHARDED, size)
        if cast:
            tape.fixed(GRADIENTS_UNSHARDED, -self.c * elements)
        if self.whole_waits and not (self.fsdp and self.reduce != self.c):
            tape.fixed(GRADIENTS_UNSHARDED, -size)

    def replay(self, events: tuple[Event, ...]) -> None:
        tape = self.tape
        for kind, amount in events:
            if kind is Kind.PASSING:
                tape.sequence(TEMPORARIES, amount)
            elif kind is Kind.KEPT:
                tape.sequence(ACTIVATIONS, amount)
            elif kind is Kind.CAST:
                tape.fixed(GATHERED_PARAMETERS, self.c * amount)
            else:
                self.weight_gradient(amount, cast=kind is Kind.GRADIENT)
