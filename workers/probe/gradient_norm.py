"""The norm of all gradients together, whatever each parameter is split over."""

from collections import defaultdict
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

_Split = tuple[DeviceMesh, tuple[int, ...]] | None
"""The mesh and those of its axes that a gradient is split over; ``None`` for plain tensors."""


def total_gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of the whole model's gradient, the same on all ranks.

    ``torch.nn.utils.clip_grad_norm_`` needs all gradients on one mesh and rounds to their
    dtype; this takes each gradient's own mesh and placements, squares in float32 and sums
    in float64. One all-reduce of a scalar for each mesh axis of each kind of split.

    Args:
        parameters: of the model, each once. Plain tensors count as the same on all ranks.

    Returns:
        A float64 scalar on the gradients' device; zero if no parameter has a gradient.

    Raises:
        ValueError: a gradient is yet to be summed over ranks (``Partial``).
    """
    squares: defaultdict[_Split, list[Tensor]] = defaultdict(list)
    for parameter in parameters:
        if parameter.grad is not None:
            squares[_split(parameter.grad)].append(_square(parameter.grad))
    sums = [_sum_over_ranks(torch.stack(parts).sum(), split) for split, parts in squares.items()]
    return torch.stack(sums).sum().sqrt() if sums else torch.zeros((), dtype=torch.float64)


def _split(grad: Tensor) -> _Split:
    if not isinstance(grad, DTensor):
        return None
    if any(p.is_partial() for p in grad.placements):
        raise ValueError("a gradient is not yet summed over ranks: reduce_partial_gradients first")
    axes = [i for i, p in enumerate(grad.placements) if not p.is_replicate()]
    return grad.device_mesh, tuple(axes)


def _square(grad: Tensor) -> Tensor:
    """The sum of squares of this rank's part, on the device that ranks communicate on."""
    local = grad.to_local() if isinstance(grad, DTensor) else grad
    norm: Tensor = torch.linalg.vector_norm(local, dtype=torch.float32)
    if isinstance(grad, DTensor):  # it may be offloaded to the host
        norm = norm.to(grad.device_mesh.device_type)
    return norm.double().square()


def _sum_over_ranks(square: Tensor, split: _Split) -> Tensor:
    if split is not None:
        mesh, axes = split
        for axis in axes:
            dist.all_reduce(square, group=mesh.get_group(axis))
    return square
