"""What a step of a script really does: backward passes and optimizer steps are counted."""

import sys
from collections import Counter
from functools import wraps
from typing import Any

from tuner.integrations.torch_here import torch_here


class Counts:
    """Backward passes and optimizer steps since :meth:`start`.

    A pass within another, as activation checkpointing makes them, is a part of that. Each optimizer
    is counted on its own, since a script may have several.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._started = False
        self.backwards = 0
        """Backward passes since the last call of :meth:`take_step`."""
        self._optimizers: Counter[int] = Counter()

    def start(self) -> None:
        """Count from here on, once torch is imported."""
        torch = torch_here()
        if torch is None or self._started:
            return
        self._started = True
        torch.autograd.backward = self._counted(torch.autograd.backward)
        optimizer = sys.modules["torch.optim.optimizer"]  # the package hides it
        optimizer.register_optimizer_step_post_hook(self._after_optimizer)

    @property
    def started(self) -> bool:
        """Whether anything is counted."""
        return self._started

    @property
    def optimizer_steps(self) -> int:
        """Of the optimizer that stepped most often; 0 where none was seen."""
        return max(self._optimizers.values(), default=0)

    def take_step(self) -> int:
        """Backward passes of the step that has ended."""
        passes, self.backwards = self.backwards, 0
        return passes

    def _counted(self, backward: Any) -> Any:
        @wraps(backward)
        def run(*values: Any, **named: Any) -> Any:
            self.backwards += self._depth == 0
            self._depth += 1
            try:
                return backward(*values, **named)
            finally:
                self._depth -= 1

        return run

    def _after_optimizer(self, optimizer: Any, *_: Any) -> None:
        self._optimizers[id(optimizer)] += 1
