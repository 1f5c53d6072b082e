"""What transformers asks of values, answered for tensors that have none."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from transformers import masking_utils

_DETECTION = "find_packed_sequence_indices"


@contextlib.contextmanager
def unpacked_sequences() -> Iterator[None]:
    """Under this, transformers knows that each row is one sequence.

    It reads positions to find several sequences in one row, and where it cannot read them it
    builds a causal mask of (sequence, sequence), which a real step does without.
    """
    original: Any = getattr(masking_utils, _DETECTION, None)

    def none_found(position_ids: torch.Tensor) -> None:
        original(position_ids)  # its allocations are a real step's too

    if original is not None:
        setattr(masking_utils, _DETECTION, none_found)
    try:
        yield
    finally:
        if original is not None:
            setattr(masking_utils, _DETECTION, original)
