"""Collectives of tensor parallelism, and the autograd functions around them.

With sequence parallelism (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198) each rank
holds ``1 / size`` of every sequence between the blocks; inside attention and MLP it holds the
whole sequence and a part of the features. An all-gather leads in, a reduce-scatter leads
out, and each is the other's backward.

Without it each rank holds whole sequences between the blocks, as transformers' own plans split a
decoder ("colwise", "rowwise" and "colwise_gather_output" in
``transformers/distributed/tensor_parallel.py``, 5.23), and torch's ``ColwiseParallel`` and
``RowwiseParallel`` without ``SequenceParallel``: an all-reduce leads out of each block, and
backward has one for the input of every linear that is split by output features. What is reduced is
a new tensor, as it is of DTensor's functional collectives.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from workers.probe.group import gather_into, reduce_scatter_into


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """The mesh axis that a model is split over."""

    mesh: DeviceMesh  # one-dimensional
    group: dist.ProcessGroup  # the ranks on it
    size: int  # number of ranks
    rank: int  # this rank's place, from 0

    @classmethod
    def of(cls, mesh: DeviceMesh) -> "Axis":
        """Raises ``ValueError`` if the mesh has more than one axis."""
        if mesh.ndim != 1:
            raise ValueError(f"tensor parallelism takes a mesh of one axis, got {mesh}")
        return cls(mesh=mesh, group=mesh.get_group(), size=mesh.size(), rank=mesh.get_local_rank())


def all_gather_sequence(shard: Tensor, axis: Axis) -> Tensor:
    """(batch, sequence / size, features) on each rank to (batch, sequence, features) on all."""
    batch, length, *features = shard.shape
    gathered = shard.new_empty((axis.size * batch, length, *features))
    gather_into(gathered, shard.contiguous(), group=axis.group)
    by_rank = gathered.view(axis.size, batch, length, *features)
    return by_rank.transpose(0, 1).reshape(batch, axis.size * length, *features)


def reduce_scatter_sequence(partial: Tensor, axis: Axis) -> Tensor:
    """Sum (batch, sequence, features) over ranks, each rank keeping its part of the sequence.
    Raises ValueError: the sequence cannot be split evenly."""
    batch, sequence, *features = partial.shape
    if sequence % axis.size:
        raise ValueError(f"a sequence of {sequence} tokens does not split over {axis.size} ranks")
    length = sequence // axis.size
    by_rank = partial.reshape(batch, axis.size, length, *features).transpose(0, 1).contiguous()
    shard = partial.new_empty((batch, length, *features))
    reduce_scatter_into(shard, by_rank.flatten(0, 1), group=axis.group)
    return shard


class ReduceScatterSequence(torch.autograd.Function):
    """``reduce_scatter_sequence``, whose backward is the all-gather of the gradient."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return reduce_scatter_sequence(partial, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return all_gather_sequence(grad, ctx.axis), None


class GatherLinears(torch.autograd.Function):
    """One all-gather along the sequence, and the column-parallel linears that share it.

    Backward needs the gathered activation for the gradients of the weights. It is kept, or,
    with ``recompute_allgather``, only this rank's shard is and the all-gather is done once
    more; nothing else differs.

    Inputs: the shard (batch, sequence / size, in_features), the axis, recompute_allgather,
    then the weights (out_features, in_features) of this rank, then as many biases
    (out_features) or ``None``. All are of one dtype.
    Outputs: for each weight (batch, sequence, out_features).
    """

    # It must be one function: hooks on saved tensors train wrongly under activation checkpointing,
    # which runs forward twice.

    @staticmethod
    def forward(
        ctx: Any,
        shard: Tensor,
        axis: Axis,
        recompute_allgather: bool,
        *weights_and_biases: Tensor | None,
    ) -> tuple[Tensor, ...]:
        count = len(weights_and_biases) // 2
        weights, biases = weights_and_biases[:count], weights_and_biases[count:]
        gathered = all_gather_sequence(shard, axis)
        ctx.axis, ctx.recompute_allgather = axis, recompute_allgather
        ctx.save_for_backward(shard if recompute_allgather else gathered, *weights)
        linear: Any = torch.nn.functional.linear
        return tuple(linear(gathered, w, b) for w, b in zip(weights, biases, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved, *weights = ctx.saved_tensors
        needs_shard, _, _, *needs = ctx.needs_input_grad
        gathered = all_gather_sequence(saved, ctx.axis) if ctx.recompute_allgather else saved
        by_token = [grad.flatten(0, 1) for grad in grads]
        of_weights = [
            g.t() @ gathered.flatten(0, 1) if need else None
            for g, need in zip(by_token, needs, strict=False)
        ]
        of_biases = [
            g.sum(0) if need else None
            for g, need in zip(by_token, needs[len(weights) :], strict=True)
        ]
        shape = gathered.shape
        del gathered  # before as much again is allocated
        of_shard = None
        if needs_shard:
            # the sum over linears of (tokens, out_features) times (out_features, in_features)
            total = by_token[0] @ weights[0]
            for grad, weight in zip(by_token[1:], weights[1:], strict=True):
                total.addmm_(grad, weight)
            of_shard = reduce_scatter_sequence(total.view(shape), ctx.axis)
        return of_shard, None, None, *of_weights, *of_biases


def _summed(partial: Tensor, axis: Axis) -> Tensor:
    total = partial.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=axis.group)
    return total


class SumOverRanks(torch.autograd.Function):
    """Sums ranks' parts; each rank's backward has the whole gradient already."""

    @staticmethod
    def forward(ctx: Any, partial: Tensor, axis: Axis) -> Tensor:
        return _summed(partial, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class CopyToRanks(torch.autograd.Function):
    """Passes on what all ranks hold alike; backward sums their parts of its gradient."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return whole.view_as(whole)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _summed(grad, ctx.axis), None


class GatherFeatures(torch.autograd.Function):
    """Joins ranks' parts of the last dimension, which is ``features`` long; ``torch.chunk`` has
    cut it. Backward takes this rank's part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, features: int, axis: Axis) -> Tensor:
        width = -(-features // axis.size)
        ctx.first, ctx.own = min(axis.rank * width, features), part.shape[-1]
        batch, *others, _ = part.shape
        padded = functional.pad(part, (0, width - ctx.own)) if ctx.own < width else part
        gathered = part.new_empty((axis.size * batch, *others, width))
        gather_into(gathered, padded.contiguous(), group=axis.group)
        ends = [min(width, max(0, features - rank * width)) for rank in range(axis.size)]
        parts = zip(gathered.chunk(axis.size), ends, strict=True)
        return torch.cat([one[..., :end] for one, end in parts], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return grad.narrow(-1, ctx.first, ctx.own).clone(), None, None
