"""Tensor parallelism for Hugging Face decoders, with sequence parallelism and without.

With it, the same as nanotron's ``tp_mode: REDUCE_SCATTER`` with its ``tp_recompute_allgather``;
without, as transformers' own plans. On plain PyTorch, so that FSDP2 can be applied on the other
axes of the mesh.
"""

from workers.probe.tensor_parallel.modules import reduce_partial_gradients
from workers.probe.tensor_parallel.plan import (
    GATHERED,
    VERIFIED_MODEL_TYPES,
    UnsupportedByTensorParallel,
    check,
    parallelize,
)

__all__ = [
    "GATHERED",
    "VERIFIED_MODEL_TYPES",
    "UnsupportedByTensorParallel",
    "check",
    "parallelize",
    "reduce_partial_gradients",
]
