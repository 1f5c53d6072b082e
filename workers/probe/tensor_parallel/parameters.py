"""Parameters as DTensors on the tensor-parallel axis, and their local tensors in forward.

All parameters are DTensors on the one mesh, split or replicated, so that FSDP2
(``fully_shard``, ``replicate``) adds its own axes to each and an optimizer sees one mesh.
Modules compute on the local tensors, taken from the attribute at each call, because FSDP2
puts another parameter there before each forward.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, distribute_tensor

from workers.probe.tensor_parallel.sequence import Axis


def distribute(parameter: Tensor, axis: Axis, placement: Placement) -> nn.Parameter:
    """This rank's part of a parameter that all ranks hold alike; no communication."""
    part = distribute_tensor(parameter.detach(), axis.mesh, [placement], src_data_rank=None)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


def split_weight(parameter: Tensor) -> Tensor:
    """The local tensor of a split parameter; its gradient is this rank's part, complete."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def replicated_weight(parameter: Tensor) -> Tensor:
    """The local tensor of a parameter that each rank applies to other tokens or heads.

    Its gradient is this rank's summand (``Partial``), so that the sum over ranks is taken
    once where gradients are reduced and not once per micro-batch: FSDP2 takes it before its
    own reduction, elsewhere ``reduce_partial_gradients`` does.
    """
    if not isinstance(parameter, DTensor):
        return parameter
    return parameter.to_local(grad_placements=[Partial()])


def reduce_partial_gradients(parameters: Iterable[Tensor]) -> None:
    """Sum the gradients of replicated parameters over the tensor-parallel axis, in place.

    To be called once per optimizer step, after its last backward and before gradients are
    read. Under FSDP2 it finds nothing left to do: gradients are reduced there by then.
    One all-reduce for each replicated parameter.
    """
    for parameter in parameters:
        grad = parameter.grad
        if not isinstance(grad, DTensor) or not any(p.is_partial() for p in grad.placements):
            continue
        assert grad.device_mesh.ndim == 1, f"partial over more than one axis: {grad.placements}"
        local = grad.to_local().contiguous()
        dist.all_reduce(local, group=grad.device_mesh.get_group())
        parameter.grad = DTensor.from_local(local, grad.device_mesh, [Replicate()], run_check=False)


def replicate(module: nn.Module, axis: Axis) -> None:
    """Replicate all parameters below ``module``, which runs on a part of the work."""
    for child in module.modules():
        for name, parameter in list(child.named_parameters(recurse=False)):
            child.register_parameter(name, distribute(parameter, axis, Replicate()))
    forward: Any = module.forward

    @wraps(forward)
    def local_forward(*args: Any, **kwargs: Any) -> Any:
        with _local_parameters(module):
            return forward(*args, **kwargs)

    set_forward(module, local_forward)


def set_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Replace the forward of one module, inside of all hooks on it."""
    module.__dict__["forward"] = forward


@contextmanager
def _local_parameters(module: nn.Module) -> Iterator[None]:
    """Put local tensors in the place of parameters, as ``torch.func.functional_call`` does."""
    replaced = [
        (child._parameters, name, parameter)
        for child in module.modules()
        for name, parameter in child._parameters.items()
        if parameter is not None
    ]
    entries: Any
    try:
        for entries, name, parameter in replaced:
            entries[name] = replicated_weight(parameter)
        yield
    finally:
        for entries, name, parameter in replaced:
            entries[name] = parameter
