"""Shallow copies of a model: which depths show all its kinds of layers, and their configuration."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from tuner.model import ModelConfig
from tuner.model.layers import SLIDING, LayerKind, layer_kinds

SHALLOWEST = 4
"""Layers of the shallowest copy. The first and the last layer differ from those between them in
what is gathered and kept around them; with two at each end, one at each is like the others."""
APART = 2
"""Layers at least between the two depths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """How a model's layers follow one another: ``lead``, then periods, then ``tail``."""

    lead: int
    period: int
    tail: int

    @property
    def shallowest(self) -> int:
        """Layers that have, at each end, the odd ones and one whole period more.

        The first and the last layer are odd in every model.
        """
        return max(SHALLOWEST, 2 * (max(self.lead, self.tail, 1) + self.period))


@lru_cache(maxsize=256)
def depths_of(model: ModelConfig) -> tuple[int, ...]:
    """The depths to dry-run, ascending: two shallow ones, or the model's own alone.

    A shallow copy keeps the layers that lead, whole periods of those that alternate, and the
    last ones. The model's own depth is taken where it costs no more than the two, or
    where its layers follow no such pattern.
    """
    kinds = layer_kinds(model)
    pattern = _pattern(kinds)
    if pattern is None:
        return (model.layers,)
    low = pattern.shallowest
    low += (model.layers - low) % pattern.period
    high = low + pattern.period * -(-APART // pattern.period)
    return (low, high) if low + high < model.layers else (model.layers,)


def at_depth(model: ModelConfig, depth: int) -> dict[str, Any]:
    """The configuration of ``model`` with ``depth`` of its layers, one of :func:`depths_of`.

    Fields that say something of each layer are cut to the layers that are kept.
    """
    config = model.as_config()
    if depth == model.layers:
        return config
    kinds = layer_kinds(model)
    pattern = _pattern(kinds)
    assert pattern is not None, "only models with a pattern have shallow copies"
    kept = kinds[: pattern.lead] + kinds[pattern.lead + model.layers - depth :]
    config["num_hidden_layers"] = depth
    if "layer_types" in config and _any_sliding(kinds):
        config["layer_types"] = [kind.attention for kind in kept]
    if "no_rope_layers" in config:
        config["no_rope_layers"] = [int(kind.rotates) for kind in kept]
    if "mlp_only_layers" in config:
        config["decoder_sparse_step"] = 1
        config["mlp_only_layers"] = [i for i, kind in enumerate(kept) if not kind.sparse]
    return config


def _any_sliding(kinds: Sequence[LayerKind]) -> bool:
    return any(kind.attention == SLIDING for kind in kinds)


@lru_cache(maxsize=8)  # a thousand layers take a fifth of a second, and each class asks again
def _pattern(kinds: tuple[LayerKind, ...]) -> _Pattern | None:
    """The pattern with the shallowest copy; ``None`` where no period comes twice."""
    found = [
        _Pattern(lead=start, period=period, tail=len(kinds) - period - end)
        for period in range(1, len(kinds) // 2 + 1)
        for start, end in [_longest_repeat(kinds, period)]
        if end - start >= period
    ]
    return min(found, key=lambda pattern: pattern.shallowest, default=None)


def _longest_repeat(kinds: Sequence[LayerKind], period: int) -> tuple[int, int]:
    """The longest run of layers that are each like the one a period later: its first and end."""
    best, first = (0, 0), 0
    for i in range(len(kinds) - period + 1):
        if i < len(kinds) - period and kinds[i] == kinds[i + period]:
            continue
        best = max(best, (first, i), key=lambda run: run[1] - run[0])
        first = i + 1
    return best
