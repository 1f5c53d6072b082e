"""Blocks of the CUDA caching allocator that are larger than what is in them."""

import pytest

from tests.unit.cost.test_prediction import predicted
from tuner.core.framework import Framework, FrameworkName
from tuner.cost.memory.device import MIB, UNSPLIT, beyond

TORCH = Framework(name=FrameworkName.TORCH)


def test_what_a_tensor_in_new_memory_gets_beyond_its_size():
    for mib, more in [
        (0.5, 0),  # the small pool splits every block
        (1, 0),
        (4, 0),  # five in 20 MiB
        (9.5, 0.5),  # two, and 1 MiB is left, which the second keeps
        (9.0, 0),  # two, and 2 MiB are left, which are given to others
        (43, 1),  # in a segment of 44
        (62.5, 0),  # in one of 64, of which 1.5 MiB are split off
        (125.25, 0.75),
        (126, 0),
    ]:
        assert beyond(mib * MIB) == more * MIB


CODELLAMA = [
    # seen: torch's allocator, 2.13.0, rank 0 alone (benchmarks/results/cuda-allocator.json)
    ("sharding=full_shard,activation_checkpointing=full", 42_720_865_792, 485),
    ("tp_size=8,tp_recompute_allgather=true,activation_checkpointing=full", 43_009_295_872, 720),
]


def test_tensors_of_odd_mebibytes_cost_what_the_allocator_shows():
    """Three matrices of each of 48 layers are 43 MiB on a rank: 720 with what goes with them."""
    for text, seen, more_mib in CODELLAMA:
        found = predicted(text, "8xh200", TORCH, "codellama-34b")
        assert found.allocated_bytes.value == pytest.approx(seen, rel=0.0025)
        assert found.breakdown[UNSPLIT] / MIB == pytest.approx(more_mib, rel=0.1)
        assert sum(found.breakdown.values()) == pytest.approx(max(found.by_phase.values()))
