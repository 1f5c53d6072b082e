"""Tensor parallelism with sequence parallelism for Hugging Face decoders.

What nanotron's ``tp_mode: REDUCE_SCATTER`` and its ``tp_recompute_allgather`` do, on plain
PyTorch, so that FSDP2 can be applied on the other axes of the mesh.
"""

from workers.probe.tensor_parallel.parameters import reduce_partial_gradients
from workers.probe.tensor_parallel.plan import (
    VERIFIED_MODEL_TYPES,
    UnsupportedByTensorParallel,
    check,
    parallelize,
)

__all__ = [
    "VERIFIED_MODEL_TYPES",
    "UnsupportedByTensorParallel",
    "check",
    "parallelize",
    "reduce_partial_gradients",
]
