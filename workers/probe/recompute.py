"""Layers that backward computes again: what activation checkpointing does, seen as it happens.

No collective shows it where nothing is split. Checkpointing runs a layer's forward once more when
backward comes to it. Hooks of the layer itself are run again by some releases of transformers and
not by others, which keep them outside of what is checkpointed (``GradientCheckpointingLayer`` in
transformers/modeling_layers.py); those of the modules in it are run again by all.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import nn

from workers.probe.tracker import Phase


@dataclass(slots=True)
class Recomputed:
    """Counts layers."""

    _layers: list[Counter[str]] = field(default_factory=list)

    @property
    def calls(self) -> int:
        """Forward passes of layers in backward.

        A layer's are those of the module in it that began most often: recomputing stops early,
        when all that was kept is there again, so the last ones may be left out.
        """
        return sum(max(modules.values(), default=0) for modules in self._layers)

    def of(self, layer: nn.Module, phase: Phase) -> Iterator[tuple[nn.Module, Callable[..., None]]]:
        """The modules in a layer, and what is to be called before each one's forward."""
        counts = Counter[str]()
        self._layers.append(counts)
        for name, module in layer.named_children():

            def begins(*_: object, name: str = name) -> None:
                counts[name] += phase.name == "backward"

            yield module, begins


@contextmanager
def recomputing(layers: Sequence[nn.Module], phase: Phase) -> Iterator[Recomputed]:
    """Count, under this, the layers whose forward is run in backward.

    Args:
        layers: the model's blocks. Hooks are in them only under this: timed steps have none.
        phase: what the step is doing, kept current by the step.
    """
    found = Recomputed()
    pairs = [pair for layer in layers for pair in found.of(layer, phase)]
    hooks = [module.register_forward_pre_hook(begins) for module, begins in pairs]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
