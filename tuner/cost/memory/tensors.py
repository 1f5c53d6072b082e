"""A model's parameters one by one, as transformers builds them, without building them.

What is communicated depends on single tensors: FSDP pads each to its ranks, DDP fills buckets with
them in their order, tensor parallelism splits some and not others. A test holds this module against
transformers' models.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NamedTuple

from tuner.model import ModelConfig
from tuner.model.fields import ARCHITECTURES
from tuner.model.shape import layer_kinds


class Split(Enum):
    """Names what tensor parallelism does with a parameter
    (``workers/probe/tensor_parallel/plan.py``).
    """

    ROWS = 0  # along dimension 0: output features, or the vocabulary
    COLUMNS = 1  # along dimension 1: input features
    NONE = 2  # every rank holds it all, and its gradient is a summand


class Tensor(NamedTuple):
    """One parameter."""

    rows: int
    """Size of dimension 0, which FSDP2 cuts."""
    columns: int = 1
    """Elements of one row."""
    split: Split = Split.NONE
    """Under tensor parallelism."""

    def local(self, tp: int) -> "Tensor":
        """Counts the elements that tensor parallelism leaves to rank 0; as ``torch.chunk``, the
        first is largest.
        """
        if tp == 1 or self.split is Split.NONE:
            return self
        if self.split is Split.ROWS:
            return self._replace(rows=-(-self.rows // tp))
        return self._replace(columns=-(-self.columns // tp))

    @property
    def elements(self) -> int:
        """Numbers in it."""
        return self.rows * self.columns


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTensors:
    """The parameters of a model by place, in the order of ``model.parameters()``."""

    embedding: tuple[Tensor, ...]
    """The token embedding."""
    positions: tuple[Tensor, ...]
    """Learned positions, where there are any."""
    dense_layer: tuple[Tensor, ...]
    """A decoder layer with one MLP."""
    sparse_layer: tuple[Tensor, ...]
    """A decoder layer with experts; empty in a dense model."""
    is_sparse: tuple[bool, ...]
    """For each layer whether it has experts."""
    norm: tuple[Tensor, ...]
    """The last norm."""
    head: tuple[Tensor, ...]
    """The output head, empty where it is the embedding."""

    @property
    def layers(self) -> Iterator[tuple[Tensor, ...]]:
        """Decoder layers, in order."""
        for sparse in self.is_sparse:
            yield self.sparse_layer if sparse else self.dense_layer

    @property
    def all(self) -> Iterator[Tensor]:
        """Every parameter once."""
        yield from (*self.embedding, *self.positions)
        for layer in self.layers:
            yield from layer
        yield from (*self.norm, *self.head)


@lru_cache(maxsize=64)
def model_tensors(model: ModelConfig) -> ModelTensors:
    """The parameters of a model."""
    a, hidden = ARCHITECTURES[model.model_type], model.hidden_size
    embedding = Tensor(model.vocab_size, hidden, Split.ROWS)
    learned = (Tensor(model.max_sequence_length, hidden),) if a.rope is None else ()
    head: tuple[Tensor, ...] = () if model.tied_embeddings else (embedding,)
    head += (Tensor(model.vocab_size, 1, Split.ROWS),) * a.head_bias
    return ModelTensors(
        embedding=(embedding,),
        positions=learned,
        dense_layer=_layer(model, _mlp(model, model.intermediate_size)),
        sparse_layer=_layer(model, _experts(model)) if model.experts else (),
        is_sparse=tuple(kind.sparse for kind in layer_kinds(model)),
        norm=_norm(model),
        head=head,
    )


@lru_cache(maxsize=64)
def buffer_bytes(model: ModelConfig) -> int:
    """Bytes of the model's buffers: rotary frequencies in fp32, each twice, and Gemma's scale."""
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


def _layer(model: ModelConfig, mlp: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    a = ARCHITECTURES[model.model_type]
    norms = _norm(model) * a.norms
    if model.model_type == "gpt2":
        return (*_norm(model), *_attention(model), *_norm(model), *mlp)
    if model.model_type == "gpt_neox":
        return (*norms, *_attention(model), *mlp)
    return (*_attention(model), *mlp, *norms)


def _norm(model: ModelConfig) -> tuple[Tensor, ...]:
    return (Tensor(model.hidden_size),) * ARCHITECTURES[model.model_type].norm_weights


def _attention(model: ModelConfig) -> tuple[Tensor, ...]:
    a, hidden = ARCHITECTURES[model.model_type], model.hidden_size
    width, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    bias, out_bias = (_flag(model, flag) for flag in (a.qkv_bias, a.output_bias))
    out = (Tensor(hidden, width, Split.COLUMNS), *(Tensor(hidden),) * out_bias)
    if model.model_type == "phi3":
        return (*out, Tensor(width + 2 * kv, hidden, Split.ROWS))
    if model.model_type in ("gpt2", "gpt_neox"):
        rows = width + 2 * kv
        fused = Tensor(hidden, rows) if model.model_type == "gpt2" else Tensor(rows, hidden)
        return (fused, *(Tensor(rows),) * bias, *out)
    projections: list[Tensor] = []
    for rows in (width, kv, kv):
        projections += [Tensor(rows, hidden, Split.ROWS)]
        projections += [Tensor(rows, 1, Split.ROWS)] * bias
    norms: tuple[Tensor, ...] = ()
    if _flag(model, a.head_norms):
        norms = (Tensor(model.head_dim),) * a.norm_weights * 2
    if a.wide_norms:
        norms = (Tensor(width), Tensor(kv))
    return (*projections, *out, *norms)


def _mlp(model: ModelConfig, width: int) -> tuple[Tensor, ...]:
    a, hidden = ARCHITECTURES[model.model_type], model.hidden_size
    bias = _flag(model, a.mlp_bias)
    into, out = Tensor(width, hidden, Split.ROWS), Tensor(hidden, width, Split.COLUMNS)
    if model.model_type == "gpt2":  # its linears hold the transpose
        into, out = Tensor(hidden, width), Tensor(width, hidden)
    if model.model_type == "phi3":
        return (Tensor(2 * width, hidden, Split.ROWS), out)
    first = (into, *(Tensor(width, 1, Split.ROWS),) * bias)
    return (*first * (2 if a.gated else 1), out, *(Tensor(hidden),) * bias)


def _experts(model: ModelConfig) -> tuple[Tensor, ...]:
    """Experts packed in two tensors, cut by expert, beside router and shared expert."""
    hidden, width, experts = model.hidden_size, model.expert_intermediate_size, model.experts
    packed = (Tensor(experts, 2 * width * hidden), Tensor(experts, hidden * width))
    router = (Tensor(experts, hidden),)
    shared = model.fields.get("shared_expert_intermediate_size")
    always = (*_mlp(model, shared), Tensor(1, hidden)) if shared else ()
    if model.model_type == "qwen3_moe":
        return (*packed, *router)
    return (*router, *packed, *always)


def _flag(model: ModelConfig, condition: bool | str) -> bool:
    return bool(model.fields[condition]) if isinstance(condition, str) else condition
