"""Synthetic tokens: the same global batch for every settings of a study."""

import zlib

import torch

from workers.probe.spec import Spec


def micro_batches(spec: Spec, *, step: int, count: int, data_rank: int) -> list[torch.Tensor]:
    """Tokens of one optimizer step of one data-parallel rank.

    All ranks draw the whole global batch of ``step`` from the same seed and take their own
    rows, so that every settings trains on the same sequences in some order. A rank that runs
    alone draws its own only: nothing is compared with other ranks.

    Args:
        spec: the probe.
        step: optimizer step, from 0.
        count: micro-batches in the step (fewer than the settings' own see its first rows).
        data_rank: this rank's place among the data-parallel ranks.

    Returns:
        ``count`` int64 tensors of shape (micro_batch_size, sequence_length), on the CPU.
    """
    generator = torch.Generator().manual_seed(mixed_seed(spec.seed, step))
    ranks = 1 if spec.is_emulated else spec.data_parallel_size
    rows = ranks * spec.settings.micro_batch_size * count
    size = (rows, spec.sequence_length)
    tokens = torch.randint(0, int(spec.model["vocab_size"]), size, generator=generator)
    grid = tokens.view(count, ranks, -1, spec.sequence_length)
    # copies: a view would hold the tokens of all ranks
    return [grid[index, data_rank % ranks].clone() for index in range(count)]


def mixed_seed(seed: int, what: object) -> int:
    """A seed of 32 bits, which is all that torch's CPU generator looks at."""
    return zlib.crc32(f"{seed} {what}".encode())
