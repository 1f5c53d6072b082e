"""The tracked steps' instruments beside the tracker: gradients' norm, and layers computed again."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from workers.probe.quantized import scales
from workers.probe.tracker import Phase

# Integers of as many bytes as a parameter's elements have.
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Elements that are summed at once: torch makes 8 bytes of each (``sum_out`` in
# aten/src/ATen/native/ReduceOps.cpp converts what it sums), in memory that the step may need.
_PIECE = 2**22


def frozen_sums(model: nn.Module) -> list[int]:
    """The sum of the bits, read as integers, of this rank's part of each frozen parameter, and of
    each tensor of scales of what is quantized."""
    frozen = [p.detach() for p in model.parameters() if not p.requires_grad]
    parts = [p.to_local() if isinstance(p, DTensor) else p for p in frozen]
    sums = []
    for part in (*parts, *scales(model)):
        pieces = part.view(_BITS[part.element_size()]).flatten().split(_PIECE)
        sums.append(torch.stack([piece.sum(dtype=torch.int64) for piece in pieces]).sum())
    # of a model that is offloaded some are on the host
    return [int(one) for one in torch.stack([one.cpu() for one in sums]).tolist()] if sums else []


def total_gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The Euclidean norm of the whole model's gradient, the same on all ranks.

    ``torch.nn.utils.clip_grad_norm_`` needs all gradients on one mesh and rounds to their
    dtype; this takes each gradient's own mesh and placements, squares in float32 and sums
    in float64. Plain tensors count as the same on all ranks. One all-reduce of a scalar for each
    mesh axis of each kind of split.

    Returns:
        A float64 scalar on the gradients' device; zero if no parameter has a gradient.

    Raises:
        ValueError: a gradient is yet to be summed over ranks (``Partial``).
    """
    # by the mesh and those of its axes that a gradient is split over; ``None`` for plain tensors
    squares: defaultdict[tuple[DeviceMesh, tuple[int, ...]] | None, list[Tensor]]
    squares = defaultdict(list)
    for grad in (parameter.grad for parameter in parameters):
        if grad is None:
            continue
        split, local = None, grad
        if isinstance(grad, DTensor):
            if any(p.is_partial() for p in grad.placements):
                raise ValueError(
                    "a gradient is not yet summed over ranks: reduce_partial_gradients first"
                )
            axes = [i for i, p in enumerate(grad.placements) if not p.is_replicate()]
            split, local = (grad.device_mesh, tuple(axes)), grad.to_local()
        norm: Tensor = torch.linalg.vector_norm(local, dtype=torch.float32)
        if split is not None:  # it may be offloaded to the host, where ranks do not communicate
            norm = norm.to(split[0].device_type)
        squares[split].append(norm.double().square())
    sums = []
    for split, parts in squares.items():
        total = torch.stack(parts).sum()
        if split is not None:
            mesh, axes_of_mesh = split
            for axis in axes_of_mesh:
                dist.all_reduce(total, group=mesh.get_group(axis))
        sums.append(total)
    return torch.stack(sums).sum().sqrt() if sums else torch.zeros((), dtype=torch.float64)


@dataclass(slots=True)
class Recomputed:
    """Counts layers whose forward runs in backward."""

    modules_of_layers: list[Counter[str]] = field(default_factory=list)
    """For each layer, how often forward of each module in it began."""

    @property
    def calls(self) -> int:
        # Those of the module that began most often: recomputing stops early, when all that was
        # kept is there again, so a layer's last modules may be left out.
        return sum(max(modules.values(), default=0) for modules in self.modules_of_layers)


@contextmanager
def watching(head: nn.Module) -> Iterator[list[bool]]:
    """Note, under this, whether the output head returns logits, and not a loss; by call."""
    found: list[bool] = []

    def look(_: nn.Module, __: object, output: object) -> None:
        found.append(not (torch.is_tensor(output) and output.dim() == 0))

    hook = head.register_forward_hook(look)
    try:
        yield found
    finally:
        hook.remove()


@contextmanager
def recomputing(layers: Sequence[nn.Module], phase: Phase) -> Iterator[Recomputed]:
    """Count, under this, the layers whose forward is run in backward: activation checkpointing.

    No collective shows it where nothing is split.
    """
    found, hooks = Recomputed(), []
    for layer in layers:
        counts = Counter[str]()
        found.modules_of_layers.append(counts)
        # Hooks of the layer itself are run again by some releases of transformers and not by
        # others, which keep them outside of what is checkpointed (``GradientCheckpointingLayer``
        # in transformers/modeling_layers.py); those of the modules in it are run again by all.
        for name, module in layer.named_children():

            def begins(*_: object, name: str = name, counts: Counter[str] = counts) -> None:
                counts[name] += phase.name == "backward"

            hooks.append(module.register_forward_pre_hook(begins))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
