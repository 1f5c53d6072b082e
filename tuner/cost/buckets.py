"""DDP's buckets: which gradients are reduced together, and when each bucket is full."""

from collections.abc import Sequence
from functools import lru_cache

from tuner.cost.tensors import Tensor, model_tensors
from tuner.model import ModelConfig

FIRST_BUCKET_BYTES = 2**20
"""DDP's first bucket is small, so that reducing starts early."""
BUCKET_BYTES = 25 * 2**20
"""``bucket_cap_mb`` of ``DistributedDataParallel`` where nobody sets it."""


@lru_cache(maxsize=256)
def ddp_buckets(model: ModelConfig, weight_bytes: int) -> tuple[int, ...]:
    """Bytes of DDP's buckets, from the last parameter to the first.

    A bucket is closed by the gradient that brings it to its cap
    (``compute_bucket_assignment_by_size``), so a large gradient makes a large bucket.
    """
    closed: list[int] = []
    filling, cap = 0, FIRST_BUCKET_BYTES
    for tensor in reversed(list(model_tensors(model).all)):
        filling += weight_bytes * tensor.elements
        if filling >= cap:
            closed.append(filling)
            filling, cap = 0, BUCKET_BYTES
    return (*closed, filling) if filling else tuple(closed)


@lru_cache(maxsize=256)
def full_buckets_bytes(model: ModelConfig, weight_bytes: int) -> tuple[int, ...]:
    """Bytes of the buckets that are full as backward comes down to each layer.

    Item ``i`` is for when ``i`` layers are left to do, so the first is for when only the
    embedding's gradient is missing.
    """
    tensors, there = model_tensors(model), 0
    parts: list[Sequence[Tensor]] = [*reversed(list(tensors.layers))]
    found: list[int] = []
    for part in [(*tensors.norm, *tensors.head), *parts]:
        there += weight_bytes * sum(tensor.elements for tensor in part)
        found.append(_full(ddp_buckets(model, weight_bytes), there))
    return tuple(reversed(found))


def _full(buckets: tuple[int, ...], there: int) -> int:
    """Bytes of the first buckets that gradients of ``there`` bytes fill."""
    full = 0
    for size in buckets:
        if full + size > there:
            break
        full += size
    return full
