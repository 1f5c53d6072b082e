"""Cross-entropy of logits that are split over the vocabulary."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from workers.probe.tensor_parallel.modules import first_token
from workers.probe.tensor_parallel.sequence import Axis


class VocabParallelCrossEntropy(torch.autograd.Function):
    """Cross-entropy of each token; two all-reduces of vectors of tokens, none in backward.

    Megatron-LM's (megatron/core/tensor_parallel/cross_entropy.py): the largest logit and
    the sum of exponentials are reduced, the whole logits are nowhere.

    Inputs: logits (tokens, vocabulary / size), float32; targets (tokens), counted from the
    first token of this rank, so that those of other ranks are out of range; the axis.
    Output: (tokens), of no meaning for targets that are in no rank's range.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, axis: Axis) -> Tensor:
        highest = logits.amax(-1)
        dist.all_reduce(highest, dist.ReduceOp.MAX, group=axis.group)
        shifted = logits - highest.unsqueeze(-1)
        elsewhere = (targets < 0) | (targets >= logits.shape[-1])
        local = targets.masked_fill(elsewhere, 0).unsqueeze(-1)
        of_target = shifted.gather(-1, local).squeeze(-1).masked_fill_(elsewhere, 0)
        exponentials = shifted.exp_()
        sums = torch.stack((exponentials.sum(-1), of_target))
        dist.all_reduce(sums, group=axis.group)
        probabilities = exponentials.div_(sums[0].unsqueeze(-1))
        ctx.save_for_backward(probabilities, local, elsewhere)
        return sums[0].log() - sums[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        probabilities, local, elsewhere = ctx.saved_tensors
        of_logits = probabilities * grad.unsqueeze(-1)
        here = grad.masked_fill(elsewhere, 0).neg_().unsqueeze(-1)
        return of_logits.scatter_add_(-1, local, here), None, None


class VocabParallelLoss:
    """What transformers' ``ForCausalLMLoss`` computes, from this rank's logits."""

    def __init__(self, axis: Axis) -> None:
        self._axis = axis

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
        """The mean over tokens, or the sum over ``num_items_in_batch``; the same on all ranks.

        Args:
            logits: (batch, sequence, vocabulary / size).
            labels: (batch, sequence), of the whole vocabulary.
            vocab_size: of the whole vocabulary.
            num_items_in_batch: what the sum is divided by.
            ignore_index: label of tokens that do not count.
            shift_labels: labels that are shifted already.
        """
        if shift_labels is None:
            assert labels is not None
            shift_labels = torch.nn.functional.pad(labels, (0, 1), value=ignore_index)[..., 1:]
        targets = shift_labels.reshape(-1)
        ignored = targets == ignore_index
        cross_entropy: Any = VocabParallelCrossEntropy.apply
        local_targets = targets - first_token(vocab_size, self._axis)
        losses = cross_entropy(logits.flatten(0, 1).float(), local_targets, self._axis)
        total: Tensor = losses.masked_fill(ignored, 0).sum()
        return total / ((~ignored).sum() if num_items_in_batch is None else num_items_in_batch)
