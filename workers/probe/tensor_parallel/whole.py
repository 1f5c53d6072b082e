"""Collectives where each rank holds whole sequences between the blocks.

As transformers' own plans split a decoder ("colwise", "rowwise" and "colwise_gather_output" in
``transformers/distributed/tensor_parallel.py``, 5.23), and torch's ``ColwiseParallel`` and
``RowwiseParallel`` without ``SequenceParallel``: an all-reduce leads out of each block, and
backward has one for the input of every linear that is split by output features. What is reduced is
a new tensor, as it is of DTensor's functional collectives.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from workers.probe.group import gather_into
from workers.probe.tensor_parallel.sequence import Axis


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
