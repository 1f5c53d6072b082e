"""The modules and the loss that take the places of a decoder's own, and their parameters.

All parameters are DTensors on the one tensor-parallel axis, split or replicated, so that FSDP2
(``fully_shard``, ``replicate``) adds its own axes to each and an optimizer sees one mesh. They keep
their names, so that optimizers and state dicts see the same model.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Placement,
    Replicate,
    Shard,
    distribute_tensor,
)

from workers.probe.tensor_parallel.collectives import (
    Axis,
    CopyToRanks,
    GatherFeatures,
    GatherLinears,
    ReduceScatterSequence,
    SumOverRanks,
)


def distribute(parameter: Tensor, axis: Axis, placement: Placement) -> nn.Parameter:
    """This rank's part of a parameter that all ranks hold alike; no communication."""
    part = distribute_tensor(parameter.detach(), axis.mesh, [placement], src_data_rank=None)
    return nn.Parameter(part, requires_grad=parameter.requires_grad)


def split_weight(parameter: Tensor) -> Tensor:
    """The local tensor of a split parameter; its gradient is this rank's part, complete."""
    # taken from the attribute at each call: FSDP2 puts another parameter there before each forward
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def replicated_weight(parameter: Tensor, *, alike: bool = False) -> Tensor:
    """The local tensor of a parameter that each rank applies to other tokens or heads, or to
    ``alike`` ones: then each has its whole gradient."""
    if not isinstance(parameter, DTensor):
        return parameter
    if alike:
        return parameter.to_local(grad_placements=[Replicate()])
    # Its gradient is this rank's summand, so that the sum over ranks is taken once where gradients
    # are reduced and not once per micro-batch: FSDP2 takes it before its own reduction, elsewhere
    # ``reduce_partial_gradients`` does.
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


def replicate(module: nn.Module, axis: Axis, *, alike: bool = False) -> None:
    """Replicate all parameters below ``module``, which runs on a part of the work, or ``alike`` on
    all ranks."""
    for child in module.modules():
        for name, parameter in list(child.named_parameters(recurse=False)):
            child.register_parameter(name, distribute(parameter, axis, Replicate()))
    forward: Any = module.forward

    @wraps(forward)
    def local_forward(*args: Any, **kwargs: Any) -> Any:
        # local tensors in the place of parameters, as ``torch.func.functional_call`` puts them
        replaced = [
            (child._parameters, name, parameter)
            for child in module.modules()
            for name, parameter in child._parameters.items()
            if parameter is not None
        ]
        entries: Any
        try:
            for entries, name, parameter in replaced:
                entries[name] = replicated_weight(parameter, alike=alike)
            return forward(*args, **kwargs)
        finally:
            for entries, name, parameter in replaced:
                entries[name] = parameter

    set_forward(module, local_forward)


def set_forward(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Replace the forward of one module, inside of all hooks on it."""
    module.__dict__["forward"] = forward


def first_token(vocab_size: int, axis: Axis) -> int:
    return min(-(-vocab_size // axis.size) * axis.rank, vocab_size)


def sum_over_ranks(partial: Tensor, axis: Axis) -> Tensor:
    apply: Any = SumOverRanks.apply
    total: Tensor = apply(partial, axis)
    return total


def shard_sequence(partial: Tensor, axis: Axis) -> Tensor:
    apply: Any = ReduceScatterSequence.apply
    shard: Tensor = apply(partial, axis)
    return shard


class VocabParallelEmbedding(nn.Module):
    """Looks up the tokens of this rank's part of the vocabulary; zeros for all others."""

    # With sequence parallelism the sum over ranks is left to ``shard_sequence`` at the first layer,
    # because Hugging Face builds the causal mask and the positions from the shape that comes out.

    def __init__(
        self, weight: nn.Parameter, padding_idx: int | None, axis: Axis, *, sums: bool
    ) -> None:
        super().__init__()
        self.weight = weight
        self._axis, self._sums = axis, sums
        self._first_token = first_token(weight.shape[0], axis)
        self._padding_idx = padding_idx

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, sequence) to this rank's summand of (batch, sequence, hidden), or to the sum."""
        weight = split_weight(self.weight)
        local = tokens - self._first_token
        of_others = (local < 0) | (local >= weight.shape[0])
        local = local.masked_fill(of_others, 0)
        padding_idx = None
        if self._padding_idx is not None:
            padding_idx = self._padding_idx - self._first_token
            padding_idx = padding_idx if 0 <= padding_idx < weight.shape[0] else None
        found = nn.functional.embedding(local, weight, padding_idx)
        found = found.masked_fill(of_others.unsqueeze(-1), 0)
        return sum_over_ranks(found, self._axis) if self._sums else found


class Projected:
    """The outputs of the linears after one all-gather, passed in the activation's place.

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
    """A linear split by input features; its sum over ranks is scattered along the sequence, or
    whole on each."""

    def __init__(self, linear: nn.Linear, axis: Axis, *, whole: bool) -> None:
        super().__init__()
        self._axis, self._whole = axis, whole
        self.weight = distribute(linear.weight, axis, Shard(1))
        bias: Tensor | None = linear.bias
        self.bias = None if bias is None else distribute(bias, axis, Replicate())

    def forward(self, activation: Tensor) -> Tensor:
        """(batch, sequence, in_features / size) to (batch, sequence / size, out_features), or to
        the whole sequence."""
        partial = nn.functional.linear(activation, split_weight(self.weight))
        leads_out = sum_over_ranks if self._whole else shard_sequence
        out = leads_out(partial, self._axis)
        if self.bias is None:
            return out
        return out + replicated_weight(self.bias, alike=self._whole).to(out.dtype)


class WholeInputLinear(nn.Module):
    """A linear split by output features, of whole sequences; it may gather its output."""

    def __init__(
        self, linear: nn.Linear, weight: nn.Parameter, axis: Axis, *, gathers: bool = False
    ) -> None:
        super().__init__()
        self._axis, self._gathers, self._features = axis, gathers, linear.out_features
        self.weight = weight
        bias: Tensor | None = linear.bias
        self.bias = None if bias is None else distribute(bias, axis, Shard(0))

    def forward(self, whole: Tensor) -> Tensor:
        """(batch, sequence, in_features) to (batch, sequence, out_features / size), or to all."""
        copy: Any = CopyToRanks.apply
        gather: Any = GatherFeatures.apply
        bias = None if self.bias is None else split_weight(self.bias)
        weight = split_weight(self.weight)
        part: Tensor = nn.functional.linear(copy(whole, self._axis), weight, bias)
        return gather(part, self._features, self._axis) if self._gathers else part


def gather_linears(
    shard: Tensor, linears: Sequence[ColumnParallelLinear], axis: Axis, *, recompute_allgather: bool
) -> Projected:
    """All-gather (batch, sequence / size, in_features) once and apply all the linears."""
    weights = [split_weight(linear.weight) for linear in linears]
    biases = [None if x.bias is None else split_weight(x.bias) for x in linears]
    tensors = [shard, *weights, *biases]
    # Cast as autocast does for a linear, outside the function, so that autograd casts back. What is
    # gathered, saved and scattered is then in the lower precision too.
    if torch.is_autocast_enabled(shard.device.type):
        dtype = torch.get_autocast_dtype(shard.device.type)
        tensors = [None if t is None else t.to(dtype) for t in tensors]
    first, *parameters = tensors
    apply: Any = GatherLinears.apply
    outputs = apply(first, axis, recompute_allgather, *parameters)
    batch, length, features = shard.shape
    shape = torch.Size((batch, axis.size * length, features))
    return Projected(shape, dict(zip(linears, outputs, strict=True)))


class VocabParallelCrossEntropy(torch.autograd.Function):
    """Cross-entropy of each token; two all-reduces of vectors of tokens, none in backward.

    Megatron-LM's (megatron/core/tensor_parallel/cross_entropy.py): the largest logit and
    the sum of exponentials are reduced, the whole logits are nowhere.

    Inputs: logits (tokens, vocabulary / size); targets (tokens), counted from the
    first token of this rank, so that those of other ranks are out of range; the axis.
    Output: (tokens), of no meaning for targets that are in no rank's range.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, axis: Axis) -> Tensor:
        highest = logits.amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=axis.group)
        shifted = logits - highest.unsqueeze(-1)
        of_others = (targets < 0) | (targets >= logits.shape[-1])
        local = targets.masked_fill(of_others, 0).unsqueeze(-1)
        of_target = shifted.gather(-1, local).squeeze(-1).masked_fill_(of_others, 0)
        exponentials = shifted.exp_()  # in place: logits are the largest tensors of a step
        sums = torch.stack((exponentials.sum(-1), of_target))
        dist.all_reduce(sums, group=axis.group)
        probabilities = exponentials.div_(sums[0].unsqueeze(-1))
        ctx.save_for_backward(probabilities, local, of_others)
        return sums[0].log() - sums[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, of_others = ctx.saved_tensors
        of_logits = probabilities * grad.unsqueeze(-1)
        here = grad.masked_fill(of_others, 0).neg_().unsqueeze(-1)
        return of_logits.scatter_add_(-1, local, here), None, None


class VocabParallelLoss:
    """The loss of transformers' ``ForCausalLMLoss``, from this rank's logits."""

    def __init__(self, axis: Axis, *, widens: bool = True) -> None:
        self._axis, self._widens = axis, widens

    def __call__(
        self,
        logits: Tensor,
        labels: Tensor | None,
        vocab_size: int,
        num_items_in_batch: Tensor | int | None = None,
        ignore_index: int = -100,
        shift_labels: Tensor | None = None,
        **_: Any,
    ) -> Tensor:
        """The mean over tokens, or the sum over ``num_items_in_batch``; the same on all ranks."""
        if shift_labels is None:
            assert labels is not None
            shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        targets = shift_labels.reshape(-1)
        ignored = targets == ignore_index
        cross_entropy: Any = VocabParallelCrossEntropy.apply
        local_targets = targets - first_token(vocab_size, self._axis)
        flat = logits.flatten(0, 1)
        losses = cross_entropy(flat.float() if self._widens else flat, local_targets, self._axis)
        total: Tensor = losses.masked_fill(ignored, 0).sum()
        return total / ((~ignored).sum() if num_items_in_batch is None else num_items_in_batch)
