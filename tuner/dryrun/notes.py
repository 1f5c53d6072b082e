"""What users are told of a dry run's notes: what changes how far its figures can be trusted."""

from collections.abc import Iterator, Sequence

OF_EVERY_ONE = "followed on fake CPU tensors"
"""Part of a note that all dry runs for GPUs have; it is how they work."""
OF_A_PART = "moments differ between micro-batch sizes"
"""Part of a note that each part of a step may have, of which there are some for each layer."""


def told(notes: Sequence[str]) -> tuple[str, ...]:
    """Clauses for people, fit for one answer.

    Args:
        notes: as the dry-run program wrote them (:attr:`tuner.dryrun.Profile.notes`).
    """
    return tuple(_told(notes))


def _told(notes: Sequence[str]) -> Iterator[str]:
    yield from (note for note in notes if OF_EVERY_ONE not in note and OF_A_PART not in note)
    if parts := sum(OF_A_PART in note for note in notes):
        where = "one part" if parts == 1 else f"{parts} parts"
        yield (
            f"in {where} of the step the order of allocations depends on the micro-batch size, so"
            " only the peaks there are followed, from the sizes that were run to others"
        )
