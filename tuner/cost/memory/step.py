"""Memory of one optimizer step of torch, accelerate and trainer by arithmetic: what is held when.

The step's last micro-batch is followed from event to event: FSDP2's gathers, copies and reductions
(:mod:`tuner.cost.memory.wrapping`; as accelerate 1.15 wraps, the embedding, each decoder layer, and
the last norm with the head are units), autograd through the layers
(:mod:`tuner.cost.memory.layers`), the loss of transformers 5, and the optimizer. Layers between the
first two and the last two are passed in one go, for memory in between is a straight line. Sources
beside that code: Rajbhandari et al. 2020, "ZeRO" (https://arxiv.org/abs/1910.02054) for what data
parallelism shards, Korthikanti et al. 2022 (https://arxiv.org/abs/2205.05198) for sequence
parallelism.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tuner.core.cluster import Cluster
from tuner.core.configuration import Checkpointing, Settings, Sharding
from tuner.core.measurement import Phase
from tuner.core.workload import Workload
from tuner.cost.memory.layers import WIDE_NORMS, dropout_mask
from tuner.cost.memory.optimizers import state_bytes, step_bytes
from tuner.cost.memory.shards import (
    NEAR_ENDS,
    REDUCE_BYTES,
    WEIGHT_BYTES,
    Layer,
    axis_sizes,
    is_block_diagonal,
    layer_variants,
    loss_width,
    parameter_bytes,
    reduced_in,
    shards,
)
from tuner.cost.memory.tensors import buffer_bytes, scales_bytes
from tuner.cost.memory.wrapping import (
    ACTIVATIONS,
    DDP_BUCKETS,
    GATHERED_PARAMETERS,
    GRADIENTS_SHARDED,
    GRADIENTS_UNSHARDED,
    LOGITS_AND_LOSS,
    OPTIMIZER_STATE,
    PARAMETERS,
    TEMPORARIES,
    Moment,
    Wrapping,
)
from tuner.model.fields import ARCHITECTURES

# Parts of a micro-batch's tokens whose logits are made one after the other under ``fused_loss``.
LOSS_PARTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Memory of one optimizer step on the rank that needs most."""

    moments: Mapping[Phase, Moment]  # the highest moment of each phase
    micro_batch_size: int  # sequences at once

    @property
    def total_bytes(self) -> float:
        return max(self.by_phase.values())

    @property
    def by_phase(self) -> dict[Phase, float]:
        return {phase: one.total(self.micro_batch_size) for phase, one in self.moments.items()}

    def breakdown(self, phase: Phase) -> Mapping[str, float]:
        return self.moments[phase].breakdown(self.micro_batch_size)


def step_memory(
    workload: Workload, settings: Settings, cluster: Cluster, selects_every: int = 1
) -> StepMemory:
    """The memory of a configuration. ``pp_size`` divides the layers; no more of it is followed.

    Selective checkpointing keeps the first of each ``selects_every`` products, and attention.
    Raises ZeroDivisionError: settings of more ranks than the cluster has.
    """
    return followed(Step, workload.part(settings.cp_size), settings, cluster, selects_every)


def followed(
    kind: Callable[..., "Step"],
    workload: Workload,
    settings: Settings,
    cluster: Cluster,
    option: Hashable,
) -> StepMemory:
    """The memory of a step of some kind, which takes an option beside what all take."""
    accumulates, size = settings.gradient_accumulation_steps > 1, settings.micro_batch_size
    highest: dict[Phase, Moment] = {}
    for moment in _moments(kind, workload, settings.layout, accumulates, cluster, option):
        known = highest.get(moment.phase)
        if known is None or moment.total(size) > known.total(size):
            highest[moment.phase] = moment
    return StepMemory(moments={p: highest[p] for p in Phase}, micro_batch_size=size)


# All micro-batch sizes of a layout share their moments.
@lru_cache(maxsize=8192)
def _moments(kind: Callable[..., "Step"], *of: Any) -> tuple[Moment, ...]:
    return kind(*of).run()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBound:
    """Holds what puts probes in order of memory."""

    floor_bytes: int  # what the step's peak cannot be below
    total_bytes: int  # estimate of the step's peak


# A study is planned again after every probe, and its arithmetic is the same.
@lru_cache(maxsize=2**15)
def memory_bound(workload: Workload, settings: Settings, cluster: Cluster) -> MemoryBound:
    """The bound of a configuration; it does not fall when only the micro-batch size grows.

    The floor is parameters, optimizer state, and gradients as they must be between micro-batches.
    Raises ZeroDivisionError: settings of more ranks than the cluster has.
    """
    total = step_memory(workload, settings, cluster).total_bytes
    held, on_device = shards(workload, settings, cluster), not settings.cpu_offload
    sharded, weights = axis_sizes(settings, cluster).is_fsdp, WEIGHT_BYTES[workload.precision]
    elements = (held.shard, held.trained_shard) if sharded else (held.whole, held.trained_whole)
    own = on_device * parameter_bytes(workload, *elements)
    gradients = on_device * weights * elements[1]
    state = held.trained_shard if settings.sharding is not Sharding.ZERO1 else 0.0
    state *= on_device * state_bytes(workload, cluster)
    waits = 0.0  # whole gradients that wait for the step's last micro-batch
    if settings.gradient_accumulation_steps > 1 and not sharded:
        waits = weights * held.trained_whole
    elif settings.gradient_accumulation_steps > 1 and not settings.sync_each_batch:
        waits = (
            REDUCE_BYTES[reduced_in(workload, axis_sizes(settings, cluster))] * held.trained_whole
        )
    floor = min(own + state + max(gradients, waits), total)
    return MemoryBound(floor_bytes=int(floor), total_bytes=int(total))


class Step(Wrapping):
    """One micro-batch and the optimizer, on a tape."""

    def run(self) -> tuple[Moment, ...]:
        tape, parts = self.tape, self.parts
        # what is there all the time, and what waits from one micro-batch to the next
        whole = parts.shard if self.fsdp else parts.whole
        own = parts.trained_shard if self.fsdp else parts.trained_whole
        tape.fixed(PARAMETERS, self.on_device * parameter_bytes(self.workload, whole, own))
        state = own / self.replicas
        if self.settings.sharding is not Sharding.ZERO1:
            state = parts.trained_shard
        if not self.turns:  # rotary frequencies are too few to count
            tape.fixed(PARAMETERS, buffer_bytes(self.model))
        tape.fixed(PARAMETERS, scales_bytes(self.model, self.workload.adapter))
        state *= state_bytes(self.workload, self.cluster)
        tape.fixed(OPTIMIZER_STATE, self.on_device * state)
        if not self.fsdp and self.replicas > 1:
            tape.fixed(DDP_BUCKETS, self.w * own)
        if self.whole_waits:
            waiting = (self.reduce if self.fsdp else self.w) * parts.trained_whole
            tape.fixed(GRADIENTS_UNSHARDED, waiting)
        elif self.part_waits:  # on the device also where gradients are not
            tape.fixed(GRADIENTS_SHARDED, self.reduce * parts.trained_shard)
        elif self.accumulates:
            tape.fixed(GRADIENTS_SHARDED, self.on_device * self.w * parts.trained_shard)
        tape.enter(Phase.OPTIMIZER)  # between micro-batches, what waits is there
        tape.enter(Phase.FORWARD)
        self._forward()
        tape.enter(Phase.LOSS)
        self._loss()
        tape.enter(Phase.BACKWARD)
        self._loss_backward()
        self._backward()
        tape.enter(Phase.OPTIMIZER)
        if self.on_device:
            taken = step_bytes(self.workload, self.cluster, own, parts.largest)
            tape.fixed(TEMPORARIES, taken)
        return tape.moments()

    def _forward(self) -> None:
        tape, layers, count = self.tape, self.parts.layers, len(self.parts.layers)
        # Tokens are embedded of the whole sequence; tensor parallelism sums and cuts them at the
        # first layer. transformers' decoder holds the embedded tokens to its end.
        self.gather(self.parts.tail if self.tied else self.parts.embedding)
        if self.tp == 1:
            tape.sequence(TEMPORARIES, self.stream)
        elif self.cut == 1:
            tape.sequence(TEMPORARIES, 2 * self.stream, -self.stream)
        else:
            whole = self.stream * self.tp
            tape.sequence(TEMPORARIES, 2 * whole, self.stream - whole)
            self.embedded_held = whole
        if self.embedded_mask:
            tape.sequence(TEMPORARIES, self.stream)
            tape.sequence(ACTIVATIONS, self.embedded_mask)
            tape.sequence(TEMPORARIES, -self.stream)
        self._hold_turns(1)
        self._hold_masks(1)
        if not self.tied:
            self.release(self.parts.embedding)
        self._forward_layer(layers[0], first=True)
        if count > 2:
            span = self.parts.inner
            tape.sequence(ACTIVATIONS, span.kept_bytes)
            cast = span.unsaved_cast_elements + span.cast_elements
            tape.fixed(GATHERED_PARAMETERS, self.c * cast)
            if self.fsdp:
                if not self.reshards:
                    tape.fixed(GATHERED_PARAMETERS, self.c * span.padded)
                last = self.c * layers[-2].unit.padded
                tape.fixed(GATHERED_PARAMETERS, last - self.gathered)
                self.gathered = last
        if count > 1:
            self._forward_layer(layers[-1])
        if not self.tied and not self.frozen:
            self.gather(self.parts.tail)
        kept, out = self._normed
        self.tape.sequence(ACTIVATIONS, kept + out)
        self.tape.sequence(TEMPORARIES, -self.stream, -self.embedded_held)
        if not self.masks_kept:
            self._hold_masks(-1)

    @property
    def masks_kept(self) -> bool:
        """Whether masks are needed by backward: of layers that compute again, of ``masked_fill`` in
        MPT's, or of layers that keep the batch's."""
        own = self.model.has_biased_scores or is_block_diagonal(self.workload)
        return self.checkpoints or own

    def _hold_turns(self, sign: int) -> None:
        """Cosines and sines: of one sequence, or of each where positions begin anew in them."""
        packing = self.workload.packing
        each = packing is not None and packing.restarts
        hold = self.tape.sequence if each else self.tape.fixed
        hold(ACTIVATIONS, sign * self.turns)

    def _hold_masks(self, sign: int) -> None:
        """Masks that layers share: born (1), or freed (-1).

        A window's is of bytes, for all sequences together. Attention that is computed by operators
        takes a wide one for each sequence and kind of layer. transformers' decoder holds them to
        the end of forward, and checkpoints of layers hold them to the end of backward.
        """
        square = sign * float(self.tokens) ** 2
        if self.model.has_biased_scores:
            # whether a key is masked, in a byte; and the bias of each distance
            self.tape.sequence(ACTIVATIONS, square)
            bias = sign * 4 * self.model.heads * self.model.max_sequence_length
            self.tape.fixed(ACTIVATIONS, bias)
        elif self.model.has_capped_scores:
            kinds = {kind.attention for kind in self.model.layer_kinds}
            self.tape.sequence(ACTIVATIONS, len(kinds) * self.c * square)
        elif self.workload.masked:  # of each sequence, for its documents lie in their own way
            kinds = {kind.attention for kind in self.model.layer_kinds}
            shared = is_block_diagonal(self.workload)
            self.tape.sequence(ACTIVATIONS, square * (self.c if shared else len(kinds)))
        elif any(v.masked for v in layer_variants(self.model, self.tokens, self.workload.masked)):
            self.tape.fixed(ACTIVATIONS, square)

    @property
    def embedded_mask(self) -> float:
        """Bytes that dropout of the embedded tokens keeps, per sequence."""
        fields = self.model.fields
        rate = fields.get("embd_pdrop", fields.get("hidden_dropout"))
        return dropout_mask(self.stream, self.r, self.cluster.gpu.device) if rate else 0.0

    def _forward_layer(self, layer: Layer, *, first: bool = False) -> None:
        self.gather(layer.unit)
        program, plain = layer.program, layer.checkpointing is Checkpointing.NONE
        if plain:
            self.replay(program.forward)
        else:
            selects = layer.checkpointing is Checkpointing.SELECTIVE
            self.replay(program.selected if selects else program.unsaved)
            self.tape.sequence(TEMPORARIES, -self.stream)
            on_host = layer.checkpointing is Checkpointing.OFFLOAD
            self.tape.sequence(ACTIVATIONS, 0.0 if on_host else self.stream)
            self.tape.sequence(ACTIVATIONS, layer.staying_bytes)
        left = not program.saves_input if plain else layer.checkpointing is Checkpointing.OFFLOAD
        if first and self.cut == 1 and left:
            self.tape.sequence(TEMPORARIES, self.stream)
            self.embedded_held = self.stream
        self.release(layer.unit)
        if first and not plain and self.model.has_biased_scores:
            # MPT's decoder holds the last layer's probabilities until the next one has returned
            held = self.c * self.model.heads * float(self.tokens) ** 2
            self.tape.sequence(TEMPORARIES, held)
            self.embedded_held += held

    @property
    def _normed(self) -> tuple[float, float]:
        """Bytes that the last norm keeps, and its output, which the head keeps; per sequence."""
        if ARCHITECTURES[self.model.model_type].layer_norm:
            return self.stream, self.stream
        own = self.stream / self.r
        if self.frozen:  # its weight needs no more; nor does the head's
            return 4 * own, self.stream
        if self.model.model_type in WIDE_NORMS:
            return 8 * own, self.stream
        return (4 + self.r) * own if self.r < 4 else 8 * own, self.stream

    @property
    def _gathers(self) -> bool:
        return self.tp > 1 and self.logit_ranks == 1

    @property
    def _head_input(self) -> float:
        """Bytes that the head keeps beside the norm's output: gathered, or cast."""
        whole = self.c * self.tokens * self.model.hidden_size
        if self.cut > 1:
            return 0.0 if self.settings.tp_recompute_allgather else whole
        return whole if self.casts else 0.0

    def _loss(self) -> None:
        """Logits, their copy as the loss has them, and its log-softmax; capped logits keep their
        tanh too."""
        if self.settings.fused_loss and self.tp == 1:
            self._fused_loss()
            return
        if self.frozen and not self.tied:  # the last norm is the root's, so the head comes alone
            self.gather(self.parts.tail)
        tape, v = self.tape, self.vocabulary
        width = loss_width(self.workload, self.settings, self.cluster)
        if self.cut > 1 and self.settings.tp_recompute_allgather:
            whole = self.c * self.tokens * self.model.hidden_size
            tape.sequence(LOGITS_AND_LOSS, whole, self.c * v, -whole)
        elif self._gathers:  # a buffer of all parts, and these side by side
            part = self.c * v / self.tp
            tape.sequence(
                LOGITS_AND_LOSS, self._head_input + part, 2 * self.c * v, -(part + self.c * v)
            )
        else:
            tape.sequence(LOGITS_AND_LOSS, self._head_input + self.c * v)
        if self.casts:
            tape.fixed(GATHERED_PARAMETERS, self.c * self.parts.tail.whole)
        if self.model.fields.get("final_logit_softcapping"):
            tape.sequence(LOGITS_AND_LOSS, self.c * v)
        wide = width * v if self.c < width else 0.0
        tape.sequence(LOGITS_AND_LOSS, wide + width * v)
        if self.fsdp:
            tape.fixed(GATHERED_PARAMETERS, -self.gathered)
            self.gathered = 0.0
        tape.sequence(LOGITS_AND_LOSS, -(wide + self.c * v))
        if self.casts:  # autocast forgets its casts; nothing else holds them
            tape.fixed(GATHERED_PARAMETERS, -self.c * self.parts.all_layers.unsaved_cast_elements)

    def _fused_loss(self) -> None:
        """A part's logits at a time, and both gradients (``workers/probe/fused_loss.py``).

        Of a part there are its log-softmax and what that is computed of, in fp32; of capped logits
        their tanh too.
        """
        tape, tail = self.tape, self.parts.tail
        whole = self.c * self.tokens * self.model.hidden_size
        capped = bool(self.model.fields.get("final_logit_softcapping"))
        if self.casts:
            tape.sequence(LOGITS_AND_LOSS, whole)
            tape.fixed(GATHERED_PARAMETERS, self.c * tail.whole)
        tape.sequence(LOGITS_AND_LOSS, whole)
        tape.fixed(LOGITS_AND_LOSS if self.casts else GRADIENTS_UNSHARDED, self.c * tail.whole)
        part = (12 if capped else 8) * self.vocabulary / LOSS_PARTS
        tape.sequence(LOGITS_AND_LOSS, part, -part)
        if self.casts:
            tape.sequence(LOGITS_AND_LOSS, -whole)
            tape.fixed(GATHERED_PARAMETERS, -self.c * tail.whole)
        if self.fsdp:
            tape.fixed(GATHERED_PARAMETERS, -self.gathered)
            self.gathered = 0.0
        tape.sequence(ACTIVATIONS, -self._normed[1])
        if self.casts:  # autocast forgets its casts; nothing else holds them
            tape.fixed(GATHERED_PARAMETERS, -self.c * self.parts.all_layers.unsaved_cast_elements)

    # ---------------------------------------------------------------- backward

    def _fused_loss_backward(self) -> None:
        """Scales the gradients that forward has left; autocast's are copied to fp32."""
        tape, tail = self.tape, self.parts.tail
        whole = self.c * self.tokens * self.model.hidden_size
        self.prefetch(self.parts.layers[-1].unit)
        if self.casts:
            tape.sequence(TEMPORARIES, self.stream)
            tape.fixed(GRADIENTS_UNSHARDED, self.w_gradient * tail.whole)
            tape.fixed(LOGITS_AND_LOSS, -self.c * tail.whole)
            tape.sequence(LOGITS_AND_LOSS, -whole)
        else:
            tape.sequence(LOGITS_AND_LOSS, -whole)
            tape.sequence(TEMPORARIES, whole)
        if not self.tied and self.whole_waits:
            tape.fixed(GRADIENTS_UNSHARDED, -self.w_gradient * tail.whole)
        tape.sequence(TEMPORARIES, self.stream)  # of the norm's input
        tape.sequence(TEMPORARIES, -self.stream)
        tape.sequence(ACTIVATIONS, -self._normed[0])
        if not self.tied:
            self.reduce_unit(tail, one_weight=True)

    def _loss_backward(self) -> None:
        """Down to the gradient of the last layer's output."""
        if self.settings.fused_loss and self.tp == 1:
            self._fused_loss_backward()
            return
        tape, v = self.tape, self.vocabulary
        width, apart = loss_width(self.workload, self.settings, self.cluster), self.logit_ranks == 1
        kept, out = self._normed
        copied = self.casts or (self.cut > 1 and not self.settings.tp_recompute_allgather)
        if copied or self.frozen:
            # the head keeps a copy, or nothing; the norm's output ended with the model's forward
            tape.sequence(ACTIVATIONS, -out)
            out = 0.0
        tape.sequence(
            LOGITS_AND_LOSS, (2 if apart else 1) * width * v, (-2 if apart else -1) * width * v
        )
        if self.c < width:
            tape.sequence(LOGITS_AND_LOSS, self.c * v, -width * v)
        if self.model.fields.get("final_logit_softcapping"):
            tape.sequence(LOGITS_AND_LOSS, self.c * v, -2 * self.c * v)
        of_logits = self.c * v
        if self._gathers:  # this rank's part is copied
            of_logits /= self.tp
            tape.sequence(LOGITS_AND_LOSS, of_logits, -self.c * v)
        self._head_backward(of_logits, kept + out)

    def _head_backward(self, of_logits: float, of_norm: float) -> None:
        """Takes bytes of logits' gradients, and of what the last norm keeps, per sequence."""
        tape, tail = self.tape, self.parts.tail
        self.prefetch(self.parts.layers[-1].unit)
        whole = self.c * self.tokens * self.model.hidden_size
        again = self.cut > 1 and self.settings.tp_recompute_allgather
        if again:
            tape.sequence(TEMPORARIES, 2 * whole, -whole)
        if self.tied:  # waits for the embedding's part
            tape.fixed(GRADIENTS_UNSHARDED, self.w_gradient * tail.trained.whole)
        else:
            self.weight_gradient(tail.trained.whole)
        if again:
            tape.sequence(TEMPORARIES, -whole)
        tape.sequence(TEMPORARIES, whole)
        if self.cut > 1:
            tape.sequence(TEMPORARIES, whole, -whole)
        tape.sequence(TEMPORARIES, self.stream - whole)
        if self.tp > self.cut:  # the sum over ranks is a new tensor
            tape.sequence(TEMPORARIES, self.stream, -self.stream)
        tape.sequence(LOGITS_AND_LOSS, -of_logits - self._head_input)
        if self.casts:
            tape.fixed(GATHERED_PARAMETERS, -self.c * tail.whole)
        tape.sequence(ACTIVATIONS, -of_norm)
        if not self.tied:
            self.reduce_unit(tail, one_weight=True)

    def _backward(self) -> None:
        layers = self.parts.layers
        near = min(NEAR_ENDS, len(layers))
        self.cast_full_buckets(len(layers))
        for index in reversed(range(max(near, len(layers) - NEAR_ENDS), len(layers))):
            self._backward_layer(index)
        if self.parts.middle.count:
            tape, span = self.tape, self.parts.middle
            tape.sequence(ACTIVATIONS, -span.kept_bytes)
            tape.fixed(GATHERED_PARAMETERS, -self.c * span.cast_elements)
            self.reduce_between(span)
            self.cast_full_buckets(near)
        for index in reversed(range(near)):
            self._backward_layer(index)
        self._embedding_backward()

    def _backward_layer(self, index: int) -> None:
        layer = self.parts.layers[index]
        self.take_prefetched(layer.unit)
        if index:
            self.prefetch(self.parts.layers[index - 1].unit)
        elif not self.tied:
            self.prefetch(self.parts.embedding)
        program = layer.program
        selects = layer.checkpointing is Checkpointing.SELECTIVE
        on_host = layer.checkpointing is Checkpointing.OFFLOAD
        if selects:
            self.replay(program.selected_again)
        elif on_host:  # until the layer is computed again its input is a copy from the host
            self.tape.sequence(ACTIVATIONS, self.stream)
            self.replay(program.again)
            self.tape.sequence(ACTIVATIONS, 0.0 if program.saves_input else -self.stream)
        elif layer.checkpointing is Checkpointing.FULL:
            self.replay(program.again)
        self.replay(program.backward)
        self.tape.sequence(ACTIVATIONS, -layer.staying_bytes)
        if not on_host and layer.checkpointing is not Checkpointing.NONE:
            saved_twice = self.stream if program.saves_input else 0.0
            # the graph counts its input where it saves it; here it was there already
            unused = selects * program.unused_bytes
            self.tape.sequence(ACTIVATIONS, saved_twice - self.stream - unused)
        self.reduce_unit(layer.unit)
        self.cast_full_buckets(index)

    def _embedding_backward(self) -> None:
        tape, embedding, tail = self.tape, self.parts.embedding, self.parts.tail
        self._hold_turns(-1)
        if self.masks_kept:
            self._hold_masks(-1)
        if self.embedded_mask:
            tape.sequence(TEMPORARIES, self.stream, -self.stream)
            tape.sequence(ACTIVATIONS, -self.embedded_mask)
        if self.frozen:  # only adapters are trained: nothing is reduced of the embedding
            tape.sequence(TEMPORARIES, -self.stream if self.checkpoints else 0.0)
            if not self.tied:
                self.take_prefetched(embedding)
            self.reduce_unit(tail if self.tied else embedding)
            self._end_reductions()
            return
        if self.tp > 1:
            tape.sequence(TEMPORARIES, self.stream * self.cut)
        arriving = self.stream * (1 + (self.cut if self.tp > 1 else 0))
        if self.tied:
            # the sum of both parts is a third tensor, as it is wherever a dispatch mode looks on
            tape.fixed(GRADIENTS_UNSHARDED, self.w_gradient * tail.whole)
            tape.sequence(TEMPORARIES, -arriving)
            tape.fixed(
                GRADIENTS_UNSHARDED, self.w_gradient * tail.whole, -2 * self.w_gradient * tail.whole
            )
            if self.whole_waits and not (self.fsdp and self.reduce != self.c):
                tape.fixed(GRADIENTS_UNSHARDED, -self.w_gradient * tail.whole)
        else:
            self.take_prefetched(embedding)
            size = self.w_gradient * embedding.whole
            tape.fixed(GRADIENTS_UNSHARDED, size)
            if self.whole_waits and not (self.fsdp and self.reduce != self.c):
                tape.fixed(GRADIENTS_UNSHARDED, -size)
            tape.sequence(TEMPORARIES, -arriving)
        self.reduce_unit(tail if self.tied else embedding, one_weight=True)
        self._end_reductions()

    def _end_reductions(self) -> None:
        tape = self.tape
        self.cast_full_buckets(-1)
        tape.fixed(DDP_BUCKETS, -self.cast_buckets)  # all is reduced
        self.cast_buckets = 0.0
        tape.fixed(GRADIENTS_UNSHARDED, -self.reducing)
        self.reducing = 0.0
        if self.hybrid and self.reduced_apart:
            tape.fixed(GRADIENTS_SHARDED, -self.reduce * self.parts.trained_shard)
