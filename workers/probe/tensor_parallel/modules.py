"""The modules that take the places of a decoder's embedding and linears.

Parameters keep their names, so that optimizers and state dicts see the same model.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import Replicate, Shard

from workers.probe.tensor_parallel.parameters import (
    distribute,
    replicated_weight,
    split_weight,
)
from workers.probe.tensor_parallel.sequence import Axis, GatherLinears, ReduceScatterSequence


class VocabParallelEmbedding(nn.Module):
    """Looks up the tokens of this rank's part of the vocabulary; zeros for all others.

    The sum over ranks is left to ``shard_sequence`` at the first layer, because Hugging Face
    builds the causal mask and the positions from the shape that comes out here.
    """

    def __init__(self, weight: nn.Parameter, padding_idx: int | None, axis: Axis) -> None:
        super().__init__()
        self.weight = weight
        self._first_token = first_token(weight.shape[0], axis)
        self._padding_idx = padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) to this rank's summand of (batch, sequence, hidden)."""
        weight = split_weight(self.weight)
        local = tokens - self._first_token
        elsewhere = (local < 0) | (local >= weight.shape[0])
        local = local.masked_fill(elsewhere, 0)
        found = nn.functional.embedding(local, weight, self._local_padding_idx(weight))
        return found.masked_fill(elsewhere.unsqueeze(-1), 0)

    def _local_padding_idx(self, weight: Tensor) -> int | None:
        if self._padding_idx is None:
            return None
        local = self._padding_idx - self._first_token
        return local if 0 <= local < weight.shape[0] else None


def first_token(vocab_size: int, axis: Axis) -> int:
    """The first token of this rank's part, split as ``torch.chunk`` splits."""
    return min(-(-vocab_size // axis.size) * axis.rank, vocab_size)


def shard_sequence(partial: Tensor, axis: Axis) -> Tensor:
    """Sum summands of (batch, sequence, features) over ranks into each rank's sequence part."""
    apply: Any = ReduceScatterSequence.apply
    shard: Tensor = apply(partial, axis)
    return shard


class Projected:
    """What the linears after one all-gather have computed, passed in the activation's place.

    The model's own code reads ``shape`` and calls its linears; each takes out its result.
    """

    def __init__(self, shape: torch.Size, outputs: Mapping[nn.Module, Tensor]) -> None:
        self.shape = shape
        self._outputs = dict(outputs)

    def take(self, linear: nn.Module) -> Tensor:
        """The linear's output; it is not kept here, so it can be freed as early as usual."""
        return self._outputs.pop(linear)


class ColumnParallelLinear(nn.Module):
    """A linear split by output features, computed by ``gather_linears`` with its siblings."""

    def __init__(self, linear: nn.Linear, weight: nn.Parameter, axis: Axis) -> None:
        super().__init__()
        self.weight = weight
        bias: Tensor | None = linear.bias
        self.bias = None if bias is None else distribute(bias, axis, Shard(0))

    def forward(self, projected: Projected) -> Tensor:
        """(batch, sequence, out_features / size)."""
        return projected.take(self)


class RowParallelLinear(nn.Module):
    """A linear split by input features; the sum over ranks is scattered along the sequence."""

    def __init__(self, linear: nn.Linear, axis: Axis) -> None:
        super().__init__()
        self._axis = axis
        self.weight = distribute(linear.weight, axis, Shard(1))
        bias: Tensor | None = linear.bias
        self.bias = None if bias is None else distribute(bias, axis, Replicate())

    def forward(self, activation: Tensor) -> Tensor:
        """(batch, sequence, in_features / size) to (batch, sequence / size, out_features)."""
        partial = nn.functional.linear(activation, split_weight(self.weight))
        shard = shard_sequence(partial, self._axis)
        if self.bias is None:
            return shard
        return shard + replicated_weight(self.bias).to(shard.dtype)


def gather_linears(
    shard: Tensor,
    linears: Sequence[ColumnParallelLinear],
    axis: Axis,
    *,
    recompute_allgather: bool,
) -> Projected:
    """All-gather (batch, sequence / size, in_features) once and apply all the linears."""
    weights = [split_weight(linear.weight) for linear in linears]
    biases = [None if x.bias is None else split_weight(x.bias) for x in linears]
    shard, *parameters = _autocast(shard, *weights, *biases)
    apply: Any = GatherLinears.apply
    outputs = apply(shard, axis, recompute_allgather, *parameters)
    batch, length, features = shard.shape
    shape = torch.Size((batch, axis.size * length, features))
    return Projected(shape, dict(zip(linears, outputs, strict=True)))


def _autocast(shard: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """Cast as autocast does for a linear, outside the function, so that autograd casts back.

    What is gathered, saved and scattered is then in the lower precision too.
    """
    tensors = (shard, *others)
    device = shard.device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    return tuple(None if t is None else t.to(dtype) for t in tensors)
