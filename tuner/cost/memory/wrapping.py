"""Memory as it rises and falls through a step, with what it is for."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.core.cluster import Cluster, Device
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.measurement import Category, Phase
from tuner.core.workload import Workload
from tuner.cost.memory.graph import Event, EventKind
from tuner.cost.memory.shards import (
    COMPUTE_BYTES,
    REDUCE_BYTES,
    WEIGHT_BYTES,
    Shards,
    Span,
    Unit,
    autocasts,
    axis_sizes,
    ddp_buckets,
    full_buckets_bytes,
    logit_ranks,
    reduced_in,
    shards,
)
from tuner.cost.memory.tensors import rotated_channels

CATEGORIES = tuple(Category)
(
    PARAMETERS, GRADIENTS_SHARDED, GRADIENTS_UNSHARDED, OPTIMIZER_STATE, ACTIVATIONS,
    GATHERED_PARAMETERS, LOGITS_AND_LOSS, DDP_BUCKETS, TEMPORARIES,
) = range(len(CATEGORIES))  # fmt: skip

# Sizes at which the highest moment of each phase is looked for. Between them another moment may be
# a little higher, where the highest of two neighbors cross.
MICRO_BATCHES = (1, 2, 4, 16, 256)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """Bytes held at one moment: a straight line in the micro-batch size."""

    phase: Phase  # when
    fixed_bytes: tuple[float, ...]  # bytes by category whatever the micro-batch size
    sequence_bytes: tuple[float, ...]  # bytes by category for each sequence of the micro-batch
    fixed: float  # sum of ``fixed_bytes``
    per_sequence: float  # sum of ``sequence_bytes``

    def total(self, micro_batch_size: int) -> float:
        return self.fixed + self.per_sequence * micro_batch_size

    def breakdown(self, micro_batch_size: int) -> Mapping[str, float]:
        """Bytes by category; those that hold nothing are left out."""
        pairs = zip(CATEGORIES, self.fixed_bytes, self.sequence_bytes, strict=True)
        held = {str(name): f + s * micro_batch_size for name, f, s in pairs}
        return {name: size for name, size in held.items() if size > 0.5}


class Tape:
    """Goes through a step, and remembers its highest moments."""

    def __init__(self) -> None:
        self.phase = Phase.FORWARD
        self._fixed = [0.0] * len(CATEGORIES)
        self._sequence = [0.0] * len(CATEGORIES)
        self._total, self._slope, self._rising = 0.0, 0.0, True
        self._best: dict[tuple[Phase, int], tuple[float, Moment]] = {}

    def fixed(self, category: int, *sizes: float) -> None:
        """Bytes that do not depend on the micro-batch, one after another; negative where they are
        freed."""
        for size in sizes:
            self._step(size)
            self._fixed[category] += size
            self._total += size

    def sequence(self, category: int, *sizes: float) -> None:
        """The same for each sequence of the micro-batch."""
        for size in sizes:
            self._step(size)
            self._sequence[category] += size
            self._slope += size

    def _step(self, size: float) -> None:
        if size < 0:
            self.note()
        elif size:
            self._rising = True

    def enter(self, phase: Phase) -> None:
        """Another phase begins; what is held now is in both."""
        self.note()
        self.phase, self._rising = phase, True
        self.note()

    def note(self) -> None:
        """Memory is about to fall: remember this moment if it is among the highest."""
        if not self._rising:
            return
        self._rising = False
        fixed, slope, best = self._total, self._slope, self._best
        moment = None
        for size in MICRO_BATCHES:
            total, key = fixed + slope * size, (self.phase, size)
            known = best.get(key)
            if known is None or total > known[0]:
                moment = moment or Moment(
                    phase=self.phase,
                    fixed_bytes=tuple(self._fixed),
                    sequence_bytes=tuple(self._sequence),
                    fixed=fixed,
                    per_sequence=slope,
                )
                best[key] = (total, moment)

    def moments(self) -> tuple[Moment, ...]:
        """The highest of each phase, each once."""
        self.note()
        return tuple({id(moment): moment for _, moment in self._best.values()}.values())


class Wrapping:
    """A tape, and what the wrapper writes on it.

    Of the settings micro-batch size and accumulation are not read; ``accumulates`` says whether
    the step has more than one micro-batch.
    """

    def __init__(
        self,
        workload: Workload,
        settings: Settings,
        accumulates: bool,
        cluster: Cluster,
        selects_every: int = 1,
    ) -> None:
        self.workload, self.settings, self.cluster = workload, settings, cluster
        sizes = axis_sizes(settings, cluster)
        self.model, self.tp = workload.model, sizes.tp
        # ranks that share the tokens between the blocks, and those that share the loss's logits
        self.cut = sizes.tp if workload.splits_sequence else 1
        self.logit_ranks = logit_ranks(workload, settings)
        self.tape = Tape()
        self.parts: Shards = shards(workload, settings, cluster, selects_every)
        self.c, self.w = COMPUTE_BYTES[workload.precision], WEIGHT_BYTES[workload.precision]
        self.reduce = REDUCE_BYTES[reduced_in(workload, sizes)]
        self.replicas, self.fsdp = sizes.dp, sizes.is_fsdp
        self.frozen = workload.adapter is not None  # all but the adapters
        self.casts_gradients = autocasts(workload, settings, cluster)
        self.casts = self.casts_gradients and not self.frozen  # the model's own weights
        self.r = 4 if self.casts else self.c
        self.checkpoints = settings.activation_checkpointing is not Checkpointing.NONE
        self.reshards = self.fsdp and settings.sharding is not Sharding.SHARD_GRAD_OP
        self.hybrid = sizes.replicate > 1
        self.over_gloo = cluster.gpu.device is Device.CPU
        self.accumulates = accumulates
        self.whole_waits = accumulates and (not self.fsdp or not settings.sync_each_batch)
        self.on_device = not settings.cpu_offload
        # sums of reduced gradients wait apart for the all-reduce, in the reduction's own format
        # (``_partial_reduce_output`` in torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py)
        self.part_waits = accumulates and settings.defer_all_reduce
        # a reduced gradient is added to one that is there already
        self.adds_up = accumulates and not self.whole_waits and not self.part_waits
        # what is reduced is not itself the gradient that the optimizer takes
        self.reduced_apart = self.reduce != self.w or self.adds_up
        # bytes of an element of a weight's gradient as autograd makes it
        self.w_gradient = self.c if self.fsdp else self.w
        self.tokens = workload.sequence_length
        self.stream = self.r * self.tokens * self.model.hidden_size / self.cut
        # cosines and sines of rotary positions, which all layers share
        self.turns = 2 * self.r * self.tokens * sum(rotated_channels(self.model))
        self.vocabulary = self.tokens * self.model.vocab_size / self.logit_ranks
        self.tied = not self.parts.embedding.whole
        self.gathered = 0.0  # the last all-gather's buffer, which FSDP2 frees late
        self.reducing = 0.0  # the last reduce-scatter's input, which it frees late
        self.embedded_held = 0.0
        self.cast_buckets = 0.0  # what DDP casts for its reductions, held to backward's end
        # bytes of buckets to be cast, by the layers left; the last is for when no gradient misses
        self.full_buckets: tuple[int, ...] = ()
        ddp = settings.sharding is Sharding.DDP and settings.pp_size == 1
        if ddp and self.replicas > 1 and self.reduce != self.w:
            of = self.model, self.w, workload.adapter
            self.full_buckets = (*full_buckets_bytes(*of), sum(ddp_buckets(*of)))

    def cast_full_buckets(self, layers_left: int) -> None:
        """A bucket is cast once it is full, and its cast can live as long as backward does.

        The hook that reduces in another dtype casts (``_set_reduce_dtype`` in
        workers/probe/stack.py). Reductions that are fast free some casts before.
        Nothing is left to do where ``layers_left`` is -1.
        """
        if self.full_buckets:
            held = self.reduce / self.w * self.full_buckets[layers_left]
            self.tape.fixed(DDP_BUCKETS, held - self.cast_buckets)
            self.cast_buckets = held

    def gather(self, unit: Unit) -> None:
        """In forward: the buffer of the gathering stays until the next unit's copy is made."""
        if not self.fsdp:
            return
        size = self.c * unit.padded
        self.tape.fixed(GATHERED_PARAMETERS, size, size, -self.gathered)
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
            self.tape.fixed(GATHERED_PARAMETERS, self.c * unit.padded, -self.c * unit.padded)

    def reduce_unit(self, unit: Unit, *, one_weight: bool = False) -> None:
        """After a unit's backward: free its parameters, copy its gradients, reduce them."""
        if not self.fsdp:
            return
        tape = self.tape
        tape.fixed(GRADIENTS_UNSHARDED, self.c * unit.summed, -self.c * unit.summed)
        tape.fixed(GATHERED_PARAMETERS, -self.c * unit.padded)
        tape.fixed(GRADIENTS_UNSHARDED, -self.reducing)
        if not unit.trained.whole:
            self.reducing = 0.0
            return
        self.reducing = self.reduce * unit.trained.padded
        held = self.reduce if self.whole_waits else self.c
        if self.whole_waits and self.reduce != self.c:
            tape.fixed(GRADIENTS_UNSHARDED, -self.c * unit.trained.whole)  # added to what waits
        tape.fixed(GRADIENTS_UNSHARDED, self.reducing)
        last = one_weight * held * unit.trained.whole
        tape.fixed(GRADIENTS_UNSHARDED, last - held * unit.trained.whole)
        # a loop's variable holds the unit's last gradient until the reduced shard is there; under
        # hybrid sharding the all-reduce between replicas holds its buffer to the end
        own, reduced = self.w * unit.trained.shard, self.reduce * unit.trained.shard
        tape.fixed(GRADIENTS_SHARDED, reduced)
        if self.over_gloo:  # it scatters a copy of what it reduces
            tape.fixed(GRADIENTS_UNSHARDED, self.reducing, -self.reducing)
        if self.reduce != self.w:
            tape.fixed(GRADIENTS_SHARDED, own)
        tape.fixed(GRADIENTS_UNSHARDED, -last)
        if self.reduced_apart and not self.hybrid:
            tape.fixed(GRADIENTS_SHARDED, -reduced)
        if self.reduce != self.w and (self.adds_up or not self.on_device):
            tape.fixed(GRADIENTS_SHARDED, -own)
        elif not self.on_device:
            tape.fixed(GRADIENTS_SHARDED, 0.0 if self.adds_up else -own)
        if self.part_waits:  # it was added before the all-reduce, and goes when that has returned
            tape.fixed(GRADIENTS_SHARDED, -reduced)

    def reduce_between(self, span: Span) -> None:
        """Layers that are passed in one go in backward."""
        tape = self.tape
        if not self.fsdp:
            waits = 0.0 if self.whole_waits else self.w * span.trained_whole
            tape.fixed(GRADIENTS_UNSHARDED, waits)
            return
        if not self.reshards:
            tape.fixed(GATHERED_PARAMETERS, -self.c * span.padded)
        if self.whole_waits:
            tape.fixed(GRADIENTS_UNSHARDED, -self.reduce * span.trained_whole)
        if self.on_device and not self.adds_up:
            tape.fixed(GRADIENTS_SHARDED, self.w * span.trained_shard)
        if self.hybrid and self.reduced_apart:
            tape.fixed(GRADIENTS_SHARDED, self.reduce * span.trained_shard)
        if self.part_waits:
            tape.fixed(GRADIENTS_SHARDED, -self.reduce * span.trained_shard)

    def weight_gradient(self, elements: float, *, cast: bool = True) -> None:
        """A gradient is born; where one waits already, it is added to that and dies."""
        tape = self.tape
        size = self.w_gradient * elements
        cast = cast and self.casts_gradients
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
            if kind is EventKind.PASSING:
                tape.sequence(TEMPORARIES, amount)
            elif kind is EventKind.KEPT:
                tape.sequence(ACTIVATIONS, amount)
            elif kind is EventKind.CAST:
                tape.fixed(GATHERED_PARAMETERS, self.c * amount)
            else:
                self.weight_gradient(amount, cast=kind is EventKind.GRADIENT)
