"""What a configuration file says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a configuration file says; the rest is for whoever asks."""

    format_name: str
    """Whose file it is."""
    knobs: Mapping[str, Any]
    """Values of the knobs that it decides."""
    unsaid: frozenset[str] = frozenset()
    """Those of them of which it says nothing, so that the default of its stack holds."""
    may: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    """Values that the file leaves open, by field (``precision``, ``sequence_length``, ...); where
    nothing is said otherwise the first one holds. A field that is not named may have any."""
    ranks: int | None = None
    """Ranks of the whole job."""
    ranks_field: str = ""
    """The field that says so."""
    nodes: int | None = None
    """Nodes of the whole job."""
    groups: tuple[int, int] | None = None
    """Number and size of the groups of ranks that shard, where that is not one group of all."""
    layer_classes: tuple[str, ...] = ()
    """Classes of the layers that are sharded one by one; the model's own where none are named."""
    needs: Mapping[str, str] = field(default_factory=dict)
    """Knobs without a value that can be taken for granted, with who decides them."""
    notes: tuple[str, ...] = ()
    """What is taken for granted, and what to know of the figures."""
