"""Dry runs, and rank 0 alone, against real CPU ranks: the peak that the ranks' tracker counts."""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from tests.workers.preloaded import Preloaded

pytestmark = pytest.mark.xdist_group("dry_measured")

TOLERANCE = 0.01
CASES = {
    "ddp": {"precision": "bf16_mixed", "sync_each_batch": False},
    "ddp reduce fp32": {"precision": "bf16", "reduce_dtype": "fp32", "sync_each_batch": False},
    "shard_grad_op": {"sharding": "shard_grad_op", "sync_each_batch": False, "optimizer": "sgd"},
    "checkpointing": {"sharding": "full_shard", "activation_checkpointing": "full"},
    "reduce fp32": {"sharding": "full_shard", "precision": "bf16", "reduce_dtype": "fp32",
                    "sync_each_batch": False},
    "offload": {"sharding": "full_shard", "cpu_offload": True},
    "tp": {"model": "tied", "tp_size": 2, "tp_recompute_allgather": True,
           "activation_checkpointing": "full"},
    "experts": {"model": "mixtral", "sharding": "full_shard", "precision": "bf16"},
}  # fmt: skip
"""What differs most from one another; ``combinations`` has nearly all else."""
FIRST = ("ddp", "checkpointing", "tp", "experts")
"""Of them, what the others are most like."""
REST = tuple(name for name in CASES if name not in FIRST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab:
    """Where specs are measured and dry-run."""

    measured: ModuleType
    """``measured.py``."""
    preloaded: Preloaded
    """Starts ranks."""
    folder: Path
    """For their records."""


@pytest.fixture
def lab(measured: ModuleType, preloaded: Preloaded, tmp_path: Path) -> Lab:
    return Lab(measured=measured, preloaded=preloaded, folder=tmp_path)


def hold(lab: Lab, ranks: int, specs: dict[str, dict]) -> None:
    """Peaks within 1%, and the very same collectives."""
    measured = lab.measured
    requests = [measured.request(name, values) for name, values in specs.items()]
    traces = measured.traces(lab.preloaded, requests)
    records = measured.measure(lab.preloaded, lab.folder / "ranks", ranks, list(specs.values()))
    blocks = [traces[name]["block_bytes"] for name in specs]
    hold_alone(lab, ranks, list(specs.values()), records, blocks)
    misses = {}
    for name, record in zip(specs, records, strict=True):
        peak = record["memory"]["low_peak_bytes"]
        miss = measured.peak_bytes(traces[name]) / peak - 1
        if abs(miss) > TOLERANCE:
            misses[name] = miss
        assert _collectives(traces[name]["steps"][0]["collectives"]) == _collectives(
            record["collectives"]
        ), name
    assert not misses


def hold_alone(
    lab: Lab, ranks: int, specs: list[dict], records: list[dict], blocks: list[int]
) -> None:
    """Peaks of rank 0 alone within 1%, and the very same collectives and knobs that act.

    On a busy machine real ranks free what they gathered later, and peak a block higher.
    """
    emulated_specs = [{**one, "fidelity": "emulated"} for one in specs]
    alone = lab.measured.measure(lab.preloaded, lab.folder / "alone", ranks, emulated_specs)
    for values, emulated, record, block in zip(specs, alone, records, blocks, strict=True):
        peak, low, high = (
            emulated["memory"]["low_peak_bytes"],
            record["memory"]["low_peak_bytes"],
            record["memory"]["peak_allocated_bytes"],
        )
        near = low - max(TOLERANCE * low, block) <= peak <= (1 + TOLERANCE) * high
        assert near, (values["settings"], peak, low, high)
        rows = [_collectives(found["collectives"]) for found in (emulated, record)]
        assert rows[0] == rows[1], values["settings"]
        assert emulated["reducing_micro_batches"] == record["reducing_micro_batches"]
        assert emulated["optimizer_steps"] == emulated["expected_optimizer_steps"]
        assert emulated["losses"] == emulated["gradient_norms"] == []


def _collectives(rows: list[dict]) -> dict[tuple[str, str], tuple[int, int]]:
    """Counts and bytes by operator and pass (axes get other names in a shared process)."""
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows:
        key = (row["op"], row["phase"].replace("loss", "forward"))
        size = row["bytes"][0] if isinstance(row["bytes"], list) else row["bytes"]
        count, total = found.get(key, (0, 0))
        found[key] = (count + row["count"], total + size)
    return found


@pytest.mark.parametrize(
    "names",
    [pytest.param(FIRST, id="first"), pytest.param(REST, id="rest", marks=pytest.mark.slow)],
)
def test_two_ranks(lab: Lab, names: tuple[str, ...]) -> None:
    specs = {}
    for name in names:
        choices = {"model": "llama", **CASES[name]}
        specs[name] = lab.measured.spec(choices.pop("model"), 2, **choices)
    hold(lab, 2, specs)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_all_combinations(lab: Lab, ranks: int) -> None:
    combinations = lab.measured.combinations(ranks)
    hold(lab, ranks, {str(i): c for i, c in enumerate(combinations)})
