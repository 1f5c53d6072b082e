"""Parameters that FSDP2 gathers together, in elements: accelerate's units.

accelerate wraps the embedding, each decoder layer, and the last norm with the head; what is left is
the root's (``fsdp2_prepare_model`` in ``accelerate/utils/fsdp_utils.py``). Where the head is the
embedding, both are one unit.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from tuner.cost.tensors import Split, Tensor, model_tensors
from tuner.model import ModelConfig


class Unit(NamedTuple):
    """Elements of parameters that are gathered together."""

    whole: int = 0
    """What one rank computes with: the tensor-parallel rank's part."""
    padded: int = 0
    """The same with what sharding pads: whole rows of dimension 0 for every rank."""
    shard: int = 0
    """What one rank keeps."""
    summed: int = 0
    """Of the largest weight whose gradient is summed over tensor-parallel ranks."""

    def beside(self, other: "Unit") -> "Unit":
        """Both as one unit."""
        return Unit(
            whole=self.whole + other.whole,
            padded=self.padded + other.padded,
            shard=self.shard + other.shard,
            summed=max(self.summed, other.summed),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The units of a model."""

    embedding: Unit
    """The token embedding, also where it is the head too."""
    layers: tuple[Unit, ...]
    """Decoder layers, in order."""
    tail: Unit
    """The last norm, and the head where it is not the embedding."""
    root: Unit
    """Learned positions, where there are any."""


@lru_cache(maxsize=4096)
def model_units(model: ModelConfig, tp_size: int, ranks: int) -> Units:
    """The units of a model that is sharded over ``ranks``."""
    tensors = model_tensors(model)

    def unit(*parts: Tensor) -> Unit:
        return _unit(parts, tp_size, ranks)

    dense, sparse = unit(*tensors.dense_layer), unit(*tensors.sparse_layer)
    return Units(
        embedding=unit(*tensors.embedding),
        layers=tuple(sparse if is_sparse else dense for is_sparse in tensors.is_sparse),
        tail=unit(*tensors.norm, *tensors.head),
        root=unit(*tensors.positions),
    )


@lru_cache(maxsize=256)
def largest_shard(model: ModelConfig, tp_size: int, ranks: int) -> int:
    """Elements of the largest single parameter's shard."""
    return max(shard_elements(t.local(tp_size), ranks) for t in set(model_tensors(model).all))


def shard_elements(tensor: Tensor, ranks: int) -> int:
    """What rank 0 keeps: FSDP2 cuts dimension 0, and every shard has room for the largest.

    For packed experts that dimension is the expert: each rank holds room for whole ones, even if
    there are more ranks than experts.
    """
    return -(-tensor.rows // ranks) * tensor.columns


def _unit(parts: Iterable[Tensor], tp_size: int, ranks: int) -> Unit:
    local = [part.local(tp_size) for part in parts]
    shard = sum(shard_elements(part, ranks) for part in local)
    summed = [part.elements for part in local if tp_size > 1 and part.split is Split.NONE]
    return Unit(
        whole=sum(part.elements for part in local),
        padded=shard * ranks,
        shard=shard,
        summed=max(summed, default=0),
    )
