"""Which part of the model computes now, told by hooks that leave the graph as it is."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from workers.probe.dry.ledger import LOSS
from workers.probe.tracker import Phase

BEFORE, AFTER = "before", "after"
"""The embedding, and the last norm with the output embedding."""

Enter = Callable[[str], None]
"""Told the part that begins."""


def follow(layers: list[nn.Module], phase: Phase, enter: Enter) -> None:
    """Call ``enter`` whenever another part of the model begins to compute.

    Forward goes through before, ``layer 0`` and so on, after; backward the other way. A
    layer's backward begins when the gradient of its output is there. Hooks that run while
    backward does a layer's forward again are passed over.

    Args:
        layers: decoder layers, in order.
        phase: what the step is doing.
        enter: told the name of the part.
    """
    for index, layer in enumerate(layers):
        name = f"layer {index}"
        layer.register_forward_pre_hook(_starts(name, phase, enter), prepend=True, with_kwargs=True)
        layer.register_forward_hook(_ends(name, phase, enter, last=layer is layers[-1]))
    layers[0].register_forward_pre_hook(_embedded(phase, enter), prepend=True, with_kwargs=True)


def follow_loss(head: nn.Module, phase: Phase, enter_phase: Enter) -> None:
    """Call ``enter_phase`` when the output embedding begins to compute."""

    def starts(*_: Any) -> None:
        if phase.name == "forward":
            enter_phase(LOSS)

    head.register_forward_pre_hook(starts, prepend=True)


def _starts(name: str, phase: Phase, enter: Enter) -> Callable[..., None]:
    def starts(*_: Any) -> None:
        if phase.name == "forward":
            enter(name)

    return starts


def _ends(name: str, phase: Phase, enter: Enter, *, last: bool) -> Callable[..., None]:
    def ends(_: nn.Module, __: Any, output: Any) -> None:
        if phase.name != "forward":
            return
        if last:
            enter(AFTER)
        _on_gradient(output, name, enter)

    return ends


def _embedded(phase: Phase, enter: Enter) -> Callable[..., None]:
    def embedded(_: nn.Module, args: Any, kwargs: Any) -> None:
        if phase.name == "forward":
            _on_gradient((args, kwargs.get("hidden_states")), BEFORE, enter)

    return embedded


def _on_gradient(tree: Any, name: str, enter: Enter) -> None:
    """Enter ``name`` when the gradient of the first tensor that gets one is there."""
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad:
            leaf.register_hook(lambda _: enter(name))
            return
