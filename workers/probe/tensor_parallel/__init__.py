"""Tensor parallelism for Hugging Face decoders, with sequence parallelism and without.

With it, the same as nanotron's ``tp_mode: REDUCE_SCATTER`` with its ``tp_recompute_allgather``;
without, as transformers' own plans. On plain PyTorch, so that FSDP2 can be applied on the other
axes of the mesh. Here is the plan by which a decoder is split, and the decoders it is known for.
"""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard

from workers.probe.tensor_parallel.collectives import Axis
from workers.probe.tensor_parallel.modules import (
    ColumnParallelLinear,
    Projected,
    RowParallelLinear,
    VocabParallelEmbedding,
    VocabParallelLoss,
    WholeInputLinear,
    distribute,
    gather_linears,
    reduce_partial_gradients,
    replicate,
    set_forward,
    shard_sequence,
)

__all__ = [
    "GATHERED",
    "VERIFIED_MODEL_TYPES",
    "UnsupportedByTensorParallel",
    "check",
    "parallelize",
    "reduce_partial_gradients",
]

# Model types whose training was seen equal to that of one process.
VERIFIED_MODEL_TYPES = frozenset({"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"})

# Configuration fields that must be zero or false, and why.
_REFUSED: Mapping[str, str] = {
    "attention_dropout": "each rank would need a random stream of its own",
    "router_jitter_noise": "each rank would need a random stream of its own",
    "output_router_logits": "the router's auxiliary loss is not linear in the tokens of a rank",
}


class UnsupportedByTensorParallel(ValueError):  # noqa: N818  (reads as a sentence where raised)
    """The model, or its shape, cannot be trained with tensor parallelism here."""


def check(model_type: str, config: Any) -> None:
    """Refuse what has no verified plan. Raises UnsupportedByTensorParallel, with the reason."""
    if model_type not in VERIFIED_MODEL_TYPES:
        known = ", ".join(sorted(VERIFIED_MODEL_TYPES))
        raise UnsupportedByTensorParallel(
            f"model type {model_type!r} has no verified tensor-parallel plan; these have: {known}"
        )
    for field, reason in _REFUSED.items():
        value = getattr(config, field, None)
        if value:
            raise UnsupportedByTensorParallel(f"{field} is {value}: {reason}")


# How a decoder may be split; the third way, ``sharded_logits``, leaves ranks their vocabulary's.
SEQUENCE, GATHERED = "sequence_parallel", "gathered_logits"


def parallelize(
    model: nn.Module,
    mesh: DeviceMesh,
    *,
    recompute_allgather: bool = False,
    style: str = SEQUENCE,
    widens: bool = True,
) -> None:
    """Split a Hugging Face decoder over a mesh axis, in place; as a rule with sequence parallelism.

    To be called before data parallelism is applied (``fully_shard``, or ``replicate``, on
    the mesh's other axes). All ranks of the axis hold the same whole weights, or parameters
    on the meta device; each is left with its part. Nothing is communicated.

    Afterwards ``model(input_ids, labels=...)`` takes the same tokens on all ranks of the
    axis and gives the same loss, while ``logits`` are this rank's part of the vocabulary
    (all of it where they are gathered; then the loss stays the model's own). After the last
    backward of an optimizer step call ``reduce_partial_gradients``.

    ========================  =====================================================
    embedding, lm_head        split by vocabulary; one tensor if they are tied
    q, k, v, gate, up         split by output features, one all-gather for each group
    o, down                   split by input features, then a reduce-scatter
    norms, biases of o, down  replicated, each rank's on its own tokens (or heads)
    router, experts           replicated, each rank's on its own tokens
    ========================  =====================================================

    A mixture of experts stays on its sequence shard, for a token's experts depend on no
    other token: 1 / size of the computation and of the activations, no all-gather, at the
    price of summing the experts' gradients over the axis once per reduction.

    In the styles without sequence parallelism each rank has all tokens between the blocks: what
    leads out is an all-reduce, nothing leads in, and of the norms only those of heads are summed.

    Args:
        model: ``...ForCausalLM`` of a verified type.
        mesh: one axis.
        recompute_allgather: keep only the shard of gathered activations for backward, and
            gather again there. Without sequence parallelism nothing is gathered.
        style: ``sequence_parallel``, ``sharded_logits`` or ``gathered_logits``.
        widens: whether the loss is of an fp32 copy of the logits, or of these as they are.

    Raises:
        UnsupportedByTensorParallel: no verified plan, or sizes that the axis does not divide.
    """
    parts: Any = model
    config = parts.config
    check(config.model_type, config)
    axis, whole = Axis.of(mesh), style != SEQUENCE
    sizes = {f: getattr(config, f) for f in ("num_attention_heads", "num_key_value_heads")}
    for layer in parts.model.layers:
        if hasattr(layer.mlp, "gate_proj"):  # not of experts
            sizes["intermediate_size"] = layer.mlp.gate_proj.out_features
        elif whole:
            raise UnsupportedByTensorParallel(f"experts are split by tokens alone, and not {style}")
    for field, value in sizes.items():
        if value % axis.size:
            raise UnsupportedByTensorParallel(
                f"{field} is {value}, which {axis.size} does not divide"
            )
    # the embedding and lm_head, which may share their weight, and the norm before lm_head
    embedding, head = parts.model.embed_tokens, parts.lm_head
    embedding_weight = distribute(embedding.weight, axis, Shard(0))
    tied = config.tie_word_embeddings or head.weight is embedding.weight
    head_weight = embedding_weight if tied else distribute(head.weight, axis, Shard(0))
    parts.model.embed_tokens = VocabParallelEmbedding(
        embedding_weight, embedding.padding_idx, axis, sums=whole
    )
    replicate(parts.model.norm, axis, alike=whole)
    for layer in parts.model.layers:
        _split_layer(layer, axis, recompute_allgather, whole)
    if whole:
        gathers = style == GATHERED
        parts.lm_head = WholeInputLinear(head, head_weight, axis, gathers=gathers)
    else:
        parts.lm_head = ColumnParallelLinear(head, head_weight, axis)
        _gather_before(parts.lm_head, [parts.lm_head], axis, recompute_allgather)

        def shard_input(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (shard_sequence(args[0], axis), *args[1:])

        # A hook, unlike the others: a layer's class, and so its forward, is changed by FSDP2. Where
        # transformers checkpoints the layer's ``forward`` (5.23) the hook is outside of the
        # checkpoint, where it checkpoints ``__call__`` (5.17) inside, and runs once more.
        parts.model.layers[0].register_forward_pre_hook(shard_input)
    if style != GATHERED:
        parts.loss_function = VocabParallelLoss(axis, widens=widens)
    parts._tp_size = axis.size  # what transformers and accelerate ask for
    left = [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]
    if left:
        raise UnsupportedByTensorParallel(f"parameters without a place in the plan: {left}")


def _split_layer(layer: Any, axis: Axis, recompute_allgather: bool, whole: bool) -> None:
    replicate(layer.input_layernorm, axis, alike=whole)
    replicate(layer.post_attention_layernorm, axis, alike=whole)
    attention, how = layer.self_attn, (axis, recompute_allgather, whole)
    _split_block(attention, ("q_proj", "k_proj", "v_proj"), "o_proj", *how)
    for norm in ("q_norm", "k_norm"):
        if hasattr(attention, norm):
            replicate(getattr(attention, norm), axis)
    if hasattr(layer.mlp, "gate_proj"):
        _split_block(layer.mlp, ("gate_proj", "up_proj"), "down_proj", *how)
    else:
        replicate(layer.mlp, axis)


def _split_block(
    block: nn.Module,
    columns: tuple[str, ...],
    row: str,
    axis: Axis,
    recompute_allgather: bool,
    whole: bool,
) -> None:
    kind = WholeInputLinear if whole else ColumnParallelLinear
    for name in columns:
        linear = getattr(block, name)
        setattr(block, name, kind(linear, distribute(linear.weight, axis, Shard(0)), axis))
    setattr(block, row, RowParallelLinear(getattr(block, row), axis, whole=whole))
    if not whole:
        linears = [getattr(block, name) for name in columns]
        _gather_before(block, linears, axis, recompute_allgather)


def _gather_before(
    block: nn.Module, linears: list[ColumnParallelLinear], axis: Axis, recompute_allgather: bool
) -> None:
    def project(shard: Any) -> Projected:
        return gather_linears(shard, linears, axis, recompute_allgather=recompute_allgather)

    forward: Any = block.forward

    def gathering_forward(*args: Any, **kwargs: Any) -> Any:
        if args:
            return forward(project(args[0]), *args[1:], **kwargs)
        return forward(**{**kwargs, "hidden_states": project(kwargs["hidden_states"])})

    set_forward(block, gathering_forward)
