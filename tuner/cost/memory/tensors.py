"""A model's parameters one by one, as transformers builds them, without building them.

What is communicated depends on single tensors: FSDP pads each to its ranks, DDP fills buckets with
them in their order, tensor parallelism splits some and not others. A test holds this module against
transformers' models.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from tuner.core.adapter import Adapter
from tuner.model import ModelConfig
from tuner.model.fields import ARCHITECTURES
from tuner.model.shape import linears


class Split(Enum):
    """Names what tensor parallelism does with a parameter (``workers/probe/tensor_parallel/``)."""

    ROWS = 0  # along dimension 0: output features, or the vocabulary
    COLUMNS = 1  # along dimension 1: input features
    NONE = 2  # every rank holds it all, and its gradient is a summand


class Tensor(NamedTuple):
    rows: int  # size of dimension 0, which FSDP2 cuts
    columns: int = 1  # elements of one row
    split: Split = Split.NONE  # under tensor parallelism
    trained: bool = True  # false of what is frozen beside an adapter
    last: int = 0  # size of the last of three dimensions; 0 where there are fewer

    def local(self, tp: int) -> "Tensor":
        """Counts the elements that tensor parallelism leaves to rank 0; as ``torch.chunk``, the
        first is largest."""
        if tp == 1 or self.split is Split.NONE:
            return self
        if self.split is Split.ROWS:
            return self._replace(rows=-(-self.rows // tp))
        return self._replace(columns=-(-self.columns // tp))

    @property
    def elements(self) -> int:
        return self.rows * self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """The parameters of a model by place, in the order of ``model.parameters()``."""

    embedding: tuple[Tensor, ...]  # the token embedding
    positions: tuple[Tensor, ...]  # learned positions, where there are any
    dense_layer: tuple[Tensor, ...]  # a decoder layer with one MLP
    sparse_layer: tuple[Tensor, ...]  # a decoder layer with experts; empty in a dense model
    is_sparse: tuple[bool, ...]  # for each layer whether it has experts
    norm: tuple[Tensor, ...]  # the last norm
    head: tuple[Tensor, ...]  # the output head, empty where it is the embedding
    replicated: tuple[int, ...] = field(init=False)
    """Elements of each that tensor parallelism replicates."""

    def __post_init__(self) -> None:
        whole = tuple(tensor.elements for tensor in self.all if tensor.split is Split.NONE)
        object.__setattr__(self, "replicated", whole)

    @property
    def layers(self) -> Iterator[tuple[Tensor, ...]]:
        for sparse in self.is_sparse:
            yield self.sparse_layer if sparse else self.dense_layer

    @property
    def trained(self) -> Iterator[Tensor]:
        return (tensor for tensor in self.all if tensor.trained)

    @property
    def all(self) -> Iterator[Tensor]:
        yield from (*self.embedding, *self.positions)
        for layer in self.layers:
            yield from layer
        yield from (*self.norm, *self.head)

    def beside(self, model: ModelConfig, adapter: Adapter, frozen_width: int) -> "ModelTensors":
        """The same parameters of a model, all frozen, and after each layer's those of its adapters.

        Quantized weights are as many elements of the frozen model's format as they are packed in,
        two to a byte, or one: FSDP gathers those of four bits with what is not quantized.
        """

        def frozen(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(tensor._replace(trained=False) for tensor in tensors)

        def kept(tensor: Tensor) -> Tensor:
            if adapter.quantizes and tensor.columns > 1:  # of layers all but norms and biases
                return Tensor(-(-tensor.elements // (2 * frozen_width)), trained=False)
            if adapter.eight_bits and tensor.columns > 1:
                return Tensor(-(-tensor.elements // frozen_width), trained=False)
            return tensor._replace(trained=False)

        def layer(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            pairs = (
                (Tensor(adapter.rank, one.inputs), Tensor(one.outputs, adapter.rank))
                for one in adapter.adapted(model)
            )
            return (*map(kept, tensors), *(matrix for pair in pairs for matrix in pair))

        return ModelTensors(
            embedding=frozen(self.embedding),
            positions=frozen(self.positions),
            dense_layer=layer(self.dense_layer),
            sparse_layer=(),  # adapters beside experts are known by dry runs alone
            is_sparse=self.is_sparse,
            norm=frozen(self.norm),
            head=frozen(self.head),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Counts of a model that take a while to find. Tied weights count once."""

    parameters: int
    active_parameters: int  # that one token uses: all but experts that it does not go through
    layer: float  # parameters of one decoder layer, on average
    active: float  # parameters of a layer that one token uses
    embedding: int  # parameters of the token embedding; the output head has as many
    attention: int  # channels of all query heads
    kept: int  # channels that one layer keeps for backward, per token
    expert: float  # parameters of one expert, averaged over all layers, sparse or not


@lru_cache(maxsize=64)
def counts(model: ModelConfig) -> Counts:
    """The counts of a model that arithmetic knows.

    ``kept`` is inputs and outputs of norms and blocks (6 hidden), queries, keys and values with
    their rotated copies, attention's output, and four tensors of the MLP: Korthikanti et al. 2022
    (https://arxiv.org/abs/2205.05198), for a gated MLP and fused attention.
    """
    width, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    tensors, idle = model_tensors(model), model.experts - model.experts_per_token

    def count(*of: Tensor) -> int:
        return sum(tensor.elements for tensor in of)

    expert = 3 * model.hidden_size * model.expert_intermediate_size
    whole, ends = count(*tensors.all), count(*tensors.embedding, *tensors.positions, *tensors.head)
    unused = sum(tensors.is_sparse) * idle * expert
    return Counts(
        parameters=whole,
        active_parameters=whole - unused,
        layer=(whole - ends) / model.layers,
        active=(whole - unused - ends) / model.layers,
        embedding=model.vocab_size * model.hidden_size,
        attention=width,
        kept=6 * model.hidden_size + 2 * (width + kv) + 4 * model.mlp_width,
        expert=unused / idle / model.layers if idle else float(expert),
    )


@lru_cache(maxsize=64)
def model_tensors(
    model: ModelConfig, adapter: Adapter | None = None, frozen_width: int = 2
) -> ModelTensors:
    """The parameters beside an adapter, whose frozen model has elements of ``frozen_width`` bytes;
    of those without one that changes nothing."""
    if adapter is not None:
        return model_tensors(model).beside(model, adapter, frozen_width)
    a, hidden = ARCHITECTURES[model.model_type], model.hidden_size
    embedding = Tensor(model.vocab_size, hidden, Split.ROWS)
    learned = (Tensor(model.max_sequence_length, hidden),) if a.learned_positions else ()
    head: tuple[Tensor, ...] = () if model.tied_embeddings else (embedding,)
    head += (Tensor(model.vocab_size, 1, Split.ROWS),) * a.head_bias
    norm, attention = (Tensor(hidden),) * a.norm_weights, _attention(model)

    def layer(*mlp: Tensor) -> tuple[Tensor, ...]:
        if model.model_type in ("gpt2", "gpt_bigcode", "mpt"):
            return (*norm, *attention, *norm, *mlp)
        if model.model_type == "gpt_neox":
            return (*norm * a.norms, *attention, *mlp)
        return (*attention, *mlp, *norm * a.norms)

    sparse: tuple[Tensor, ...] = ()
    if model.experts:  # packed in two tensors, cut by expert, beside router and shared expert
        width, experts = model.expert_intermediate_size, model.experts
        into = Tensor(experts, 2 * width * hidden, last=hidden)
        packed = (into, Tensor(experts, hidden * width, last=width))
        router = (Tensor(experts, hidden),)
        shared = model.fields.get("shared_expert_intermediate_size")
        # as the other experts, the one that every token goes through is whole on each rank
        always: tuple[Tensor, ...] = ()
        if shared:
            always = (
                *(t._replace(split=Split.NONE) for t in _mlp(model, shared)),
                Tensor(1, hidden),
            )
        routed = (*packed, *router) if model.model_type == "qwen3_moe" else (*router, *packed)
        sparse = layer(*routed, *always)
        if model.model_type == "granitemoe":
            sparse = (*attention, *norm * a.norms, *routed)
    return ModelTensors(
        embedding=(embedding,),
        positions=learned,
        dense_layer=layer(*_mlp(model, model.intermediate_size)),
        sparse_layer=sparse,
        is_sparse=tuple(kind.sparse for kind in model.layer_kinds),
        norm=norm,
        head=head,
    )


@lru_cache(maxsize=64)
def trained_elements(model: ModelConfig, adapter: Adapter | None) -> int:
    return sum(tensor.elements for tensor in model_tensors(model, adapter).trained)


@lru_cache(maxsize=64)
def scales_bytes(model: ModelConfig, adapter: Adapter | None) -> int:
    """Bytes that each rank holds beside quantized weights, of which it may have a shard alone."""
    if adapter is None:
        return 0
    each = (adapter.scale_bytes(one.inputs, one.outputs) for one in linears(model))
    return model.layers * sum(each)


@lru_cache(maxsize=64)
def buffer_bytes(model: ModelConfig) -> int:
    """Bytes of the model's buffers: rotary frequencies in fp32, each twice, Gemma's scale, and
    GPTBigCode's mask."""
    if model.model_type == "gpt_bigcode":
        return model.max_sequence_length**2
    rotated = rotated_channels(model)
    scale = 4 * model.model_type.startswith("gemma") if rotated else 0
    return sum(2 * 4 * (size // 2) for size in rotated) + scale


@lru_cache(maxsize=64)
def rotated_channels(model: ModelConfig) -> tuple[int, ...]:
    """Channels of a head that are rotated, for each kind of rotary embedding; they are even."""
    parameters = model.fields.get("rope_parameters")
    if parameters is None:
        return ()
    pattern = model.fields.get("sliding_window_pattern") or 1  # every so many layers are full
    short = ("sliding_attention",) if model.layers < pattern else tuple(parameters)
    used = set(model.fields.get("layer_types") or short)
    nested = (parameters[name] for name in parameters.keys() & used)
    kinds = [kind for kind in nested if isinstance(kind, Mapping)] or [parameters]
    shares = (kind.get("partial_rotary_factor", 1.0) for kind in kinds)
    return tuple(2 * ((int(model.head_dim * share) + 1) // 2) for share in shares)


def _attention(model: ModelConfig) -> tuple[Tensor, ...]:
    a, hidden = ARCHITECTURES[model.model_type], model.hidden_size
    width, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    bias, out_bias, head_norms = (
        bool(model.fields[flag]) if isinstance(flag, str) else flag
        for flag in (a.qkv_bias, a.output_bias, a.head_norms)
    )
    out = (Tensor(hidden, width, Split.COLUMNS), *(Tensor(hidden),) * out_bias)
    if model.model_type == "phi3":
        return (*out, Tensor(width + 2 * kv, hidden, Split.ROWS))
    if model.model_type in ("gpt2", "gpt_bigcode", "gpt_neox", "mpt"):
        rows = width + 2 * kv
        fused = Tensor(hidden, rows) if model.model_type == "gpt2" else Tensor(rows, hidden)
        return (fused, *(Tensor(rows),) * bias, *out)
    projections: list[Tensor] = []
    for rows in (width, kv, kv):
        projections += [Tensor(rows, hidden, Split.ROWS)]
        projections += [Tensor(rows, 1, Split.ROWS)] * bias
    norms: tuple[Tensor, ...] = ()
    if head_norms:
        norms = (Tensor(model.head_dim),) * a.norm_weights * 2
    if a.wide_norms:
        norms = (Tensor(width), Tensor(kv))
    return (*projections, *out, *norms)


def _mlp(model: ModelConfig, width: int) -> tuple[Tensor, ...]:
    a, hidden = ARCHITECTURES[model.model_type], model.hidden_size
    bias = bool(model.fields[a.mlp_bias]) if isinstance(a.mlp_bias, str) else a.mlp_bias
    into, out = Tensor(width, hidden, Split.ROWS), Tensor(hidden, width, Split.COLUMNS)
    if model.model_type == "gpt2":  # its linears hold the transpose
        into, out = Tensor(hidden, width), Tensor(width, hidden)
    if model.model_type == "phi3":
        return (Tensor(2 * width, hidden, Split.ROWS), out)
    first = (into, *(Tensor(width, 1, Split.ROWS),) * bias)
    return (*first * (2 if a.gated else 1), out, *(Tensor(hidden),) * bias)
