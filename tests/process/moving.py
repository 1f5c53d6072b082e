"""Tells which parameters of a model training has moved, bit for bit."""

import torch
from torch.distributed.tensor import DTensor


def values_of(model):
    """Copies of this rank's part of each parameter."""
    whole = {name: p.detach() for name, p in model.named_parameters()}
    return {n: (p.to_local() if isinstance(p, DTensor) else p).clone() for n, p in whole.items()}


def bits(values):
    return values.contiguous().view(-1).view(torch.uint8)


def moved(model, before):
    """How many parameters are not what they were, and of how many; those trained, and frozen."""
    after, counts = values_of(model), {"trained": [0, 0], "frozen": [0, 0]}
    for name, parameter in model.named_parameters():
        count = counts["trained" if parameter.requires_grad else "frozen"]
        # packed weights are no numbers, and some of them NaN
        count[0] += not torch.equal(bits(before[name]), bits(after[name]))
        count[1] += 1
    return counts
