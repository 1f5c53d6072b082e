"""Builds the graph of one decoder layer, operator by operator, as transformers computes it."""

from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from tuner.core.adapter import BLOCK, Adapter
from tuner.core.cluster import Device
from tuner.cost.memory.attention import Attention, Backend, leaves_groups, ring_buffers
from tuner.cost.memory.graph import Graph, Program
from tuner.model import ModelConfig
from tuner.model.fields import ARCHITECTURES
from tuner.model.shape import attention_names, mlp_names

# Model types whose norms multiply by their weight in fp32.
WIDE_NORMS = frozenset({"gemma", "gemma2", "gemma3_text", "olmo2"})
# Model types with one linear for queries, keys and values.
_FUSED = frozenset({"gpt2", "gpt_bigcode", "gpt_neox", "mpt", "phi3"})
# Model types that multiply what a block gives before it is added.
_SCALED = frozenset({"granite", "granitemoe"})
# Model types that may rotate a part of each head, and join it with the rest (``torch.cat``).
_JOINED = frozenset({"phi", "phi3", "gpt_neox"})
# Activations that transformers computes operator by operator.
_SPELLED_OUT = frozenset({"gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"})


class LayerKey(NamedTuple):
    model: ModelConfig
    sequence_length: int
    compute_bytes: int  # bytes of an element in matrix products
    residual_bytes: int  # bytes of an element between the blocks; under autocast these stay fp32
    tp: int
    recompute: bool  # whether backward gathers activations again (``tp_recompute_allgather``)
    device: Device
    attention: Attention  # what computes attention
    selects_every: int = 1
    """Selective checkpointing keeps the first of so many linears' products, and attention's."""
    splits_sequence: bool = True  # whether tensor parallelism, if there is any, splits the sequence
    adapter: Adapter | None = None  # what is trained, where the model is frozen
    adapter_bytes: int = 0  # bytes of an element of its matrices
    masked: bool | None = None  # whether packing gives all layers a mask, or none; None: neither
    mask_is_shared: bool = False  # whether layers keep one mask, and none of their own
    ring: int = 1  # ranks that split the sequence (context parallelism); its length is of a part


@lru_cache(maxsize=4096)
def layer_program(key: LayerKey, *, sparse: bool, sliding: bool, starts: bool = False) -> Program:
    """The events of one layer: ``sparse`` with experts, ``sliding`` with a mask.

    Where it ``starts``, its input needs no gradient.
    """
    return _Layer(key, sparse=sparse, sliding=sliding, starts=starts).program()


def dropout_mask(size: float, width: int, device: Device) -> float:
    """Bytes that dropout of ``size`` bytes keeps: CUDA's kernel a byte for each element of
    ``width`` bytes, CPU's a mask in the tensor's own precision."""
    return size / width if device is Device.CUDA else size


class _Layer:
    """Builds the graph of one layer. ``x`` are tensors of the graph."""

    def __init__(self, key: LayerKey, *, sparse: bool, sliding: bool, starts: bool) -> None:
        model = key.model
        self.key, self.model, self.sparse, self.sliding = key, model, sparse, sliding
        self.architecture, self.fields = ARCHITECTURES[model.model_type], model.fields
        self.c, self.r, self.tp = key.compute_bytes, key.residual_bytes, key.tp
        self.casts = self.r > self.c
        self.copies = 2 if key.device is Device.CPU else 1  # gloo scatters a copy
        self.tokens = key.sequence_length
        self.hidden = model.hidden_size
        self.cut = self.tp if key.splits_sequence else 1
        """Ranks that share the tokens between the blocks."""
        self.own = key.sequence_length / self.cut
        """Tokens of a sequence that this rank holds between the blocks."""
        self.queries = model.heads * model.head_dim / self.tp
        self.keys = model.kv_heads * model.head_dim / self.tp
        self.stream = self.r * self.own * self.hidden
        self.scores = model.heads / self.tp * float(self.tokens) ** 2  # of all heads of this rank
        self.drops_out = bool(self.fields.get("attention_dropout") or self.fields.get("attn_pdrop"))
        self.memory: dict[int, int] = {}  # of tensors that are parts of others
        self.returned: tuple[int, ...] = ()  # what attention returns beside its output
        self.linears = 0  # so far
        self.frozen = key.adapter is not None
        self.widens = self.frozen and key.adapter_bytes > self.c
        self.graph = Graph(
            self.stream,
            casts_weights=self.casts or self.widens,
            input_needs_gradient=not starts,
            keeps_casts=self.tp == 1,
        )

    def program(self) -> Program:
        if self.model.model_type in ("phi", "gpt_neox"):
            return self.graph.compile(self._parallel())
        x = 0
        for block in (self._attention, self._moe if self.sparse else self._mlp):
            normed = x if self.model.model_type == "olmo2" else self._norm(x)
            given = block(normed)
            x = self._add(x, self._after(given))
            if self.model.model_type in _SCALED:
                self.graph.hold(given)
        self.graph.hold(*self.returned)
        return self.graph.compile(x)

    def _after(self, x: int) -> int:
        """Adds what some types do with a block's output before it is added."""
        if self.model.model_type in ("olmo2", "gemma2", "gemma3_text"):
            return self._norm(x)
        if self.model.model_type in _SCALED:
            return self.graph.op(self.c * self.own * self.hidden, x)
        if not self.fields.get("resid_pdrop", self.fields.get("hidden_dropout")):
            return x
        mask = dropout_mask(self.stream, self.r, self.key.device)
        index = self.graph.next + 1
        return self.graph.ops((self.stream, mask), x, saves=(index,))[0]

    def _parallel(self) -> int:
        """Attention and MLP beside each other, on one norm or two."""
        attention = self._norm(0)
        if self.fields.get("use_parallel_residual") is False:  # one after the other all the same
            middle = self._add(0, self._after(self._attention(attention)))
            return self._add(middle, self._after(self._mlp(self._norm(middle))))
        mlp = attention if self.model.model_type == "phi" else self._norm(0)
        side = self._after(self._attention(attention))
        return self._add(self._add(side, self._after(self._mlp(mlp))), 0)

    def _add(self, x: int, y: int) -> int:
        return self.graph.op(self.stream, x, y, passes=True)

    def _norm(self, x: int) -> int:
        return self._normed(x, self.own, self.hidden, self.r, weights=self.hidden)

    def _inner_norm(self, x: int, channels: float, heads: int) -> int:
        if self.architecture.wide_norms:
            return self._normed(
                x, self.tokens, channels, self.c, weights=self.model.head_dim * heads
            )
        rows, channels = self.tokens * channels / self.model.head_dim, self.model.head_dim
        return self._normed(x, rows, channels, self.c, weights=self.model.head_dim)

    def _normed(self, x: int, rows: float, channels: float, width: int, *, weights: int) -> int:
        """RMSNorm in fp32, or LayerNorm, of elements of ``width`` bytes.

        Each row's root mean square, or its mean and deviation, is kept in fp32.
        """
        graph, size, index = self.graph, rows * channels, self.graph.next + 1
        if self.architecture.layer_norm:
            sizes, weights = (width * size, 8 * rows), weights * self.architecture.norm_weights
            own = () if self.frozen else (weights,)
            return graph.ops(sizes, x, saves=(x, index), weights=own)[0]
        wide = x if width == 4 else graph.op(4 * size, x)
        normed = graph.ops(
            (4 * size, 4 * rows), wide, saves=(wide, graph.next + 1),
            forward_work=4 * size, backward_work=8 * size,
        )[0]  # fmt: skip
        saves: tuple[int, ...] = (normed,)
        if self.frozen:
            saves, weights = (), 0
        if self.model.model_type in WIDE_NORMS:
            weighed = graph.op(
                4 * size, normed, saves=saves, backward_work=4 * size * bool(saves), weight=weights
            )
            return weighed if width == 4 else graph.op(width * size, weighed)
        narrow = normed if width == 4 else graph.op(width * size, normed)
        saves = (narrow,) if saves else ()
        work = width * size * bool(saves)
        return graph.op(width * size, narrow, saves=saves, backward_work=work, weight=weights)

    def _cast(self, x: int, size: float) -> int:
        return self.graph.op(self.c * size, x) if self.casts else x

    def _columns(
        self, x: int, outputs: tuple[float, ...], names: Sequence[str], bias: bool | str = False
    ) -> tuple[int, ...]:
        """Linears that share an input of the hidden size; ``outputs`` are of this rank."""
        graph, whole = self.graph, self.tokens * self.hidden
        if self.cut == 1:
            return tuple(
                self._linear(self._copied(x), self.hidden, width, name, bias=bias)
                for width, name in zip(outputs, names, strict=True)
            )
        shard = self._cast(x, self.own * self.hidden)
        again = self.key.recompute
        gathered = graph.op(
            self.c * whole, shard, saves=(shard,) if again else (),
            forward_work=self.c * whole, backward_work=self.copies * self.c * whole,
        )  # fmt: skip
        return graph.ops(
            [self.c * self.tokens * width for width in outputs], gathered,
            saves=() if again else (gathered,),
            backward_work=2 * self.c * whole if again else 0.0,
            weights=[(self.hidden + self._has(bias)) * width for width in outputs],
        )  # fmt: skip

    def _copied(self, x: int) -> int:
        """The same tensor on all ranks of tensor parallelism, whose gradients of it are summed."""
        if self.tp == 1:
            return x
        (copy,) = self.graph.ops((self.stream,), x, views=True)
        self.memory[copy] = self.memory.get(x, x)
        return copy

    def _linear(
        self,
        x: int,
        into: float,
        out: float,
        name: str,
        *,
        wide: bool = True,
        bias: bool | str = False,
    ) -> int:
        """A linear; ``wide`` inputs are in the residual stream's precision."""
        size = self.c * self.tokens * out
        adapter = self.key.adapter
        if adapter is not None:
            if adapter.quantizes:
                # elements of the weight once it is whole, and of the fp32 that is made of its
                # scales where they are quantized too
                scales = adapter.double_quant * 4 * ceil(into * out / BLOCK) / self.c
                product = self.graph.op(size, x, unpacks=(into * out, scales))
            elif adapter.eight_bits:
                product = self._in_eight_bits(x, into, out)
            else:
                product = self._product(self.graph.op(size, x))
            return self._adapted(x, product, into, out) if adapter.targets(name) else product
        cast = self._cast(x, self.tokens * into) if wide else x
        weight = (into + self._has(bias)) * out
        kept = self.memory.get(cast, cast)
        return self._product(self.graph.op(size, cast, saves=(kept,), weight=weight))

    def _in_eight_bits(self, x: int, into: float, out: float) -> int:
        """bitsandbytes' ``MatMul8bitLt`` (autograd/_functions.py and backends/cuda/ops.py, 0.50.2).

        Its node of autograd's graph has the input as an attribute (``ctx.tensors``), and not among
        saved tensors, which are all that a checkpoint that is not reentrant drops (seen on CPU
        tensors). Forward makes bytes of the input, and the product in int32 and fp16; backward a
        whole weight. Columns of outliers, which it keeps apart, are few, and not counted.
        """
        kept = self.memory.get(x, x)
        self.graph.stay(kept)
        return self.graph.op(
            self.c * self.tokens * out, x, saves=(kept,),
            forward_work=self.tokens * (into + (4 + 2) * out), unpacks=(into * out, 0.0),
        )  # fmt: skip

    def _adapted(self, x: int, product: int, into: float, out: float) -> int:
        """LoRA beside a product (``Linear.forward`` in peft/tuners/lora/layer.py, 0.21).

        Its input is cast to the adapter's format, dropped out, and multiplied twice, under autocast
        in the narrow format again; what comes of it is scaled, and added. Of quantized layers
        (``Linear4bit.forward`` in bnb.py) the product is copied first, and of them and those in
        eight bits autocast's input is not cast, for which peft asks of CUDA's autocast alone.
        """
        graph, adapter = self.graph, self.key.adapter
        assert adapter is not None
        copies, by_bitsandbytes = adapter.quantizes, adapter.quantizes or adapter.eight_bits
        widens = self.widens and not (by_bitsandbytes and self.key.device is Device.CUDA)
        width = self.key.adapter_bytes if widens else self.c
        narrow, wide = self.c * self.tokens * into, width * self.tokens * into
        size, inner, given = self.c * self.tokens * out, self.c * self.tokens * adapter.rank, x
        if copies:
            product = graph.op(size, product, passes=True)
        if widens:
            x = given = graph.op(wide, x)
        if adapter.dropout:
            mask = dropout_mask(wide, width, self.key.device)
            index = graph.next + 1
            x = graph.ops((wide, mask), x, saves=(index,))[0]
        if widens:
            x = graph.op(narrow, x)
        down = self._product(graph.op(inner, x, saves=(x,), weight=into * adapter.rank))
        up = self._product(graph.op(size, down, saves=(down,), weight=out * adapter.rank))
        scaled = graph.op(size, up)
        added = graph.op(size, product, scaled, passes=True)
        graph.hold(given, product)
        return added

    def _product(self, x: int) -> int:
        """Notes that ``x`` is a matrix product, which selective checkpointing may keep."""
        if self.linears % self.key.selects_every == 0:
            self.graph.select(x)
        self.linears += 1
        return x

    def _has(self, condition: bool | str) -> bool:
        """A property of the architecture, or the flag of the configuration that decides it."""
        return bool(self.fields[condition]) if isinstance(condition, str) else condition

    def _row(self, x: int, into: float, name: str, bias: bool | str = False) -> int:
        """The linear that leads back to the hidden size."""
        out = self._linear(x, into, self.hidden, name, wide=False, bias=bias)
        if self.tp == 1:
            return out
        whole = self.c * self.tokens * self.hidden
        if self.cut == 1:  # the sum over ranks
            return self.graph.op(whole, out, passes=True)
        return self.graph.op(
            whole / self.tp, out, forward_work=self.copies * whole, backward_work=whole
        )

    def _queries_keys_values(self, x: int) -> tuple[int, int, int]:
        """Three linears, or one whose parts they are."""
        widths, names = (self.queries, self.keys, self.keys), attention_names(self.model)[:-1]
        if self.model.model_type not in _FUSED:
            q, k, v = self._columns(x, widths, names, self.architecture.qkv_bias)
            return q, k, v
        bias = self.architecture.qkv_bias
        whole = self._linear(x, self.hidden, sum(widths), names[0], bias=bias)
        sizes = [self.c * self.tokens * width for width in widths]
        q, k, v = self.graph.ops(sizes, whole, views=True)
        self.memory |= dict.fromkeys((q, k, v), whole)
        return q, k, v

    def _attention(self, x: int) -> int:
        q, k, v = self._queries_keys_values(x)
        if self._has(self.architecture.head_norms) or self.architecture.wide_norms:
            q = self._inner_norm(q, self.queries, self.model.heads)
            k = self._inner_norm(k, self.keys, self.model.kv_heads)
        if self.architecture.rope is not None:
            straight = q, k
            q, k = self._rotate(q, self.queries), self._rotate(k, self.keys)
            self.graph.hold(*straight)
        backend = self.key.attention.of(masked=self.sliding)
        if backend is Backend.EAGER:
            capped = self.model.has_capped_scores
            attended = self._capped(q, k, v) if capped else self._biased(q, k, v)
        elif backend is Backend.MATH:
            attended = self._math(q, k, v)
        elif self.drops_out and self.key.device is Device.CPU:
            attended = self._unfused(q, k, v)
        else:
            attended = self._fused(q, k, v)
            if self.model.model_type in _JOINED:
                # joined heads lie one after the other, and so do their outputs: these are copied
                attended = self.graph.op(self.c * self.tokens * self.queries, attended)
        name = attention_names(self.model)[-1]
        out = self._row(attended, self.queries, name, self.architecture.output_bias)
        self.graph.hold(x, q, k, v)
        return out

    def _rotate(self, x: int, width: float) -> int:
        """Rotary positions: two products and their sum, of which nothing is kept."""
        size = self.tokens * width
        wide = 4 if self.casts else self.c
        turned = self.graph.op(
            wide * size, x, forward_work=3 * wide * size, backward_work=2 * wide * size
        )
        return self._cast(turned, size)

    def _repeated(self, x: int, width: int | None = None) -> int:
        """Keys or values for every query head, where the kernel does not do it itself.

        They have elements of ``width`` bytes; by default those of matrix products.
        """
        if self.keys == self.queries:
            return x
        return self.graph.op((width or self.c) * self.tokens * self.queries, x)

    def _fused(self, q: int, k: int, v: int) -> int:
        """A fused kernel keeps its inputs, its output, and one fp32 per head and token.

        cuDNN's and the efficient one keep what flash attention keeps; what cuDNN's backward takes
        beside it is not known, and not counted.

        With a window it takes a mask: each layer keeps it in the scores' precision, unless it is
        of numbers already (``convert_boolean_attn_mask`` in ATen's attention.cpp), and keys and
        values are repeated for all query heads (transformers, ``use_gqa_in_sdpa``). So do packed
        documents.
        """
        size, heads = self.c * self.tokens * self.queries, self.model.heads / self.tp
        first = self.graph.next
        mask = 0.0
        if self.sliding or not leaves_groups(self.model):
            k, v = self._repeated(k), self._repeated(v)
            first = self.graph.next
        if self.sliding and not self.key.mask_is_shared:
            mask = self.c * self.tokens**2
        outputs = (size, 4 * self.tokens * heads, mask)
        given = (self.memory.get(t, t) for t in (q, k, v))
        saves = (*given, first, first + 1, first + 2)
        sent = self.keys if leaves_groups(self.model) else self.queries
        work, again = ring_buffers(
            self.tokens * self.queries, self.tokens * sent, self.c, self.key.ring
        )
        out, rows, _ = self.graph.ops(
            outputs, q, k, v, saves=saves, forward_work=work, backward_work=again
        )
        self.graph.select(out, rows)
        return out

    def _capped(self, q: int, k: int, v: int) -> int:
        """Attention operator by operator, with capped scores.

        Softmax copies scores to fp32 first: ATen's kernel of both does so for fp16 only. The layer
        holds the probabilities, which attention returns, to its end.
        """
        graph, c, scores = self.graph, self.c, self.scores
        size = c * self.tokens * self.queries
        k, v = self._repeated(k), self._repeated(v)
        repeated = k, v
        q = graph.op(size, q)
        raw = graph.op(c * scores, q, k, saves=(q, k), forward_work=c * scores)
        capped = graph.op(
            c * scores, raw, output_saved=True, forward_work=c * scores, backward_work=c * scores
        )
        masked = graph.op(c * scores, capped, forward_work=c * scores, backward_work=c * scores)
        soft = graph.op(
            4 * scores, masked, output_saved=True, backward_work=4 * scores,
            forward_work=4 * scores if c < 4 else 0.0,
        )  # fmt: skip
        narrow = soft if c == 4 else graph.op(c * scores, soft)
        graph.hold(masked)
        out = graph.op(size, narrow, v, saves=(narrow, v), forward_work=size)
        joined = graph.op(size, out)
        graph.hold(*repeated)
        self.returned = (narrow,)
        return joined

    def _biased(self, q: int, k: int, v: int) -> int:
        """Attention operator by operator, with ALiBi (``MptAttention`` in ``modeling_mpt.py``).

        The bias is in fp32, and so are the scores from there on. The layer returns probabilities.
        """
        graph, c, scores = self.graph, self.c, self.scores
        size = c * self.tokens * self.queries
        q, k = graph.op(size, q), graph.op(size, k)
        raw = graph.op(c * scores, q, k, saves=(q, k))
        scaled = graph.op(c * scores, raw)
        biased = graph.op(4 * scores, scaled, passes=c == 4)
        masked = graph.op(4 * scores, biased)
        work = 4 * scores * (self.key.device is Device.CUDA)
        soft = graph.op(4 * scores, masked, output_saved=True, backward_work=work)
        narrow = soft if c == 4 else graph.op(c * scores, soft)
        v = graph.op(size, v)
        out = graph.op(size, narrow, v, saves=(narrow, v))
        joined = graph.op(size, out)
        graph.hold(masked, q, k)
        self.returned = (narrow,)
        return joined

    def _math(self, q: int, k: int, v: int) -> int:
        """Attention by torch's operators (``_scaled_dot_product_attention_math`` in
        ``aten/src/ATen/native/transformers/attention.cpp``), in fp32 whatever comes in.

        Kept are queries and keys as they were multiplied, the probabilities, and the values. What
        is not grouped is copied for the products, for its heads lie beside each other. The mask is
        added out of place, as it is wherever a mode looks on; ``_safe_softmax`` marks scores in a
        byte each, and softmax's backward has a buffer (``softmax_backward_cuda_out`` in
        ``SoftMax.cu``). The mask itself, one for all heads, is not counted.
        """
        graph, wide, scores = self.graph, 4 * self.tokens * self.queries, 4 * self.scores
        repeats = leaves_groups(self.model) and not self.sliding
        if not repeats:
            k, v = self._repeated(k), self._repeated(v)
        given = k, v
        if self.c < 4:
            less = wide * self.keys / self.queries if repeats else wide
            q, k, v = (graph.op(size, x) for size, x in ((wide, q), (less, k), (less, v)))
        scaled, held = graph.op(wide, q), (q, k, v)
        if repeats:
            k, v = self._repeated(k, 4), self._repeated(v, 4)
        turned = graph.op(wide, k)
        queries = graph.op(wide, scaled)
        keys = turned if repeats else graph.op(wide, turned)
        raw = graph.op(scores, queries, keys, saves=(queries, keys))
        graph.hold(turned)
        masked = graph.op(scores, raw, passes=True)
        soft = graph.op(
            scores, masked, output_saved=True, forward_work=scores / 4, backward_work=scores
        )
        weights = soft
        if self.drops_out:
            index = graph.next + 1
            weights = graph.ops((scores, scores / 4), soft, saves=(index,))[0]
        values = v if repeats else graph.op(wide, v)
        out = graph.op(wide, weights, values, saves=(weights, values))
        if self.c < 4:
            out = graph.op(wide * self.c / 4, out, forward_work=self.c * scores / 4)
        graph.hold(*given, *held, k, v, scaled, weights)
        return graph.op(wide * self.c / 4, out)

    def _unfused(self, q: int, k: int, v: int) -> int:
        """CPU's attention with dropout: in fp32, with its weights, a mask and their product."""
        graph, scores, size = self.graph, self.scores, 4 * self.tokens * self.queries
        k, v = self._repeated(k), self._repeated(v)
        q, k, v = graph.op(size, q), graph.op(size, k), graph.op(size, v)
        raw = graph.op(4 * scores, q, k, saves=(q, k), forward_work=4 * scores)
        soft = graph.op(4 * scores, raw, output_saved=True)
        first = graph.next
        dropped = graph.ops((4 * scores, 4 * scores), soft, saves=(first + 1,))[0]
        out = graph.op(
            size, dropped, v, saves=(dropped, v), forward_work=self.c * scores if self.c < 4 else 0
        )
        return graph.op(self.c * self.tokens * self.queries, out, forward_work=size / 2)

    def _mlp(self, x: int) -> int:
        out = self._dense(x)
        self.graph.hold(x)
        return out

    def _dense(self, x: int) -> int:
        width = self.model.intermediate_size / self.tp
        names = ("hidden_act", "hidden_activation", "activation_function")
        name = str(next((self.fields[n] for n in names if n in self.fields), "silu"))
        bias = self.architecture.mlp_bias
        *into, out = mlp_names(self.model)

        def activated(x: int) -> int:
            graph, size = self.graph, self.c * self.tokens * width
            if name not in _SPELLED_OUT:
                return graph.op(size, x, saves=(x,))
            half = graph.op(size, x)
            work = 2 * size
            inner = graph.op(
                size, x, saves=(x,), output_saved=True, forward_work=work, backward_work=work
            )
            more = graph.op(size, inner, passes=True)
            return graph.op(size, half, more, saves=(half, more))

        if not self.architecture.gated:
            inner = self._columns(x, (width,), into, bias)[0]
            return self._row(activated(inner), width, out, bias)
        if self.model.model_type == "phi3":
            size = self.c * self.tokens * width  # gate and up from one linear
            both = self._linear(x, self.hidden, 2 * width, into[0])
            gate, up = self.graph.ops((size, size), both, views=True)
            active = self.graph.op(size, gate, saves=(both,))
            return self._row(self.graph.op(size, active, up, saves=(active, both)), width, out)
        if self.cut > 1:
            gate, up = self._columns(x, (width, width), into, bias)
            active = activated(gate)
        else:
            (gate,) = self._columns(x, (width,), into[:1], bias)
            active = activated(gate)
            (up,) = self._columns(x, (width,), into[1:], bias)
        size = self.c * self.tokens * width
        return self._row(self.graph.op(size, active, up, saves=(active, up)), width, out, bias)

    def _moe(self, x: int) -> int:
        """A router, and the grouped products of transformers' ``grouped_mm_experts_forward``.

        Tokens are copied for each of their experts. Autocast passes over grouped products, so
        experts compute in the precision that they get. Each rank's own tokens only.
        """
        graph, model, e = self.graph, self.model, self.r
        chosen = self.own * model.experts_per_token
        width, experts = model.expert_intermediate_size, model.experts
        tokens, inner = e * chosen * self.hidden, e * chosen * width
        # Granite's router rounds what experts are weighed with
        wide = e if model.model_type in _SCALED else 4.0
        weighed = wide * chosen * self.hidden
        first = graph.next
        routed = graph.ops(
            (4 * self.own * experts, 32 * chosen), x, saves=(x, first, first + 1),
            weights=(experts * self.hidden,),
        )[0]  # fmt: skip
        sent = graph.op(tokens, x)
        into, out_of = experts * 2 * width * self.hidden, experts * width * self.hidden
        if self.tp > 1:  # replicated weights get their gradients at the block's end, together
            into, out_of = into + out_of, 0
        both = self._product(graph.op(2 * inner, sent, saves=(sent,), weight=into, casts=False))
        gate, up = graph.ops((inner, inner), both, views=True)
        active = graph.op(inner, gate, saves=(both,))
        product = graph.op(inner, active, up, saves=(active, both))
        down = self._product(
            graph.op(tokens, product, saves=(product,), weight=out_of, casts=False)
        )
        scaled = graph.op(weighed, down, routed, saves=(down,), backward_work=weighed)
        back = graph.op(weighed, scaled)
        out = graph.op(self.stream, back, forward_work=4 * self.own * self.hidden)
        graph.hold(x, sent, down)
        shared = self.fields.get("shared_expert_intermediate_size")
        if not shared:
            return out
        # the expert that every token goes through, and its gate
        size = self.c * self.own * shared
        *names, name = mlp_names(model)
        gate, up = (self._linear(x, self.hidden, shared, one) for one in names)
        active = graph.op(size, gate, saves=(gate,))
        always = self._linear(
            graph.op(size, active, up, saves=(active, up)), shared, self.hidden, name, wide=False
        )
        gated = graph.op(self.stream, always, saves=(always,), weight=self.hidden)
        return self._add(out, gated)
