"""One optimizer step, as a training script with accelerate writes it."""

from collections.abc import Callable, Sequence

import torch

from workers.probe.stack import Stack

# Told the name of each phase as it begins: forward, backward, optimizer.
EnterPhase = Callable[[str], None]


def optimizer_step(
    stack: Stack,
    batches: Sequence[torch.Tensor],
    enter: EnterPhase,
    before_optimizer: Callable[[], None] | None = None,
) -> torch.Tensor:
    """Train on ``batches`` and step the optimizer once.

    Returns:
        The mean loss of this rank's micro-batches, a scalar on the device, detached.
    """
    total = torch.zeros((), device=batches[0].device)
    for tokens in batches:
        with stack.accelerator.accumulate(stack.model):
            stack.defer_all_reduce()
            enter("forward")
            batch = stack.batch(tokens)
            with stack.compute():
                loss = stack.model(**batch).loss
            total += loss.detach()
            enter("backward")
            stack.accelerator.backward(loss)
            del loss, batch
            if stack.accelerator.sync_gradients:
                stack.finish_gradients()
                if before_optimizer is not None:
                    before_optimizer()
            enter("optimizer")
            stack.optimizer.step()
            stack.optimizer.zero_grad()
    return total / len(batches)
