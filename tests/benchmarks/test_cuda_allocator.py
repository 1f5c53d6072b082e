"""The benchmark against torch's CUDA allocator: what it runs, keeps and says, without a run."""

import json
from types import ModuleType

import pytest

pytestmark = pytest.mark.long


@pytest.fixture
def allocator(benchmark) -> ModuleType:
    return benchmark("cuda_allocator")


def row(key: str, **other: object) -> dict:
    """Settings that reserve 1.2 times the 100 GiB allocated, and are predicted 0.4% too low."""
    told = {"allocated_bytes": 99.6 * 2**30, "error": -0.004, "by_phase": {}}
    return {
        "key": key, "model": "llama-3.2-1b", "cluster": "8xh200", "sharding": "full_shard",
        "tp_size": 1, "cpu_offload": False, "activation_checkpointing": "full", "outcome": "ok",
        "detail": "", "allocated_bytes": 100 * 2**30, "reserved_bytes": 120 * 2**30,
        "dry_run": told, "arithmetic": told, **other,
    }  # fmt: skip


def test_the_cases_are_many_and_of_all_kinds(allocator) -> None:
    found = [one.case for one in allocator.cases()]
    assert len({case.text for case in found}) == len(found) >= 40
    assert len({case.workload.model.model_type for case in found}) >= 6
    assert {str(case.workload.precision) for case in found} == {"bf16", "bf16_mixed", "fp32"}
    assert {str(case.workload.optimizer) for case in found} == {"adamw", "adamw_8bit", "sgd"}
    knobs = [case.settings for case in found]
    assert {str(one.sharding) for one in knobs} == {
        "ddp", "full_shard", "shard_grad_op", "hybrid_shard"
    }  # fmt: skip
    assert {one.tp_recompute_allgather for one in knobs if one.tp_size > 1} == {True, False}
    waits = {one.sync_each_batch for one in knobs if one.gradient_accumulation_steps > 1}
    assert waits == {True, False}
    assert any(one.cpu_offload for one in knobs)


def test_rows_are_kept_after_each_and_read_again(allocator, tmp_path) -> None:
    path = tmp_path / "found.json"
    results = allocator.Results(path)
    first = allocator.cases()[0]
    results.add(row(first.case.text))
    results.add(row("another"))
    again = allocator.Results(path)
    assert [one["key"] for one in again.rows] == [first.case.text, "another"]
    assert again.row(first) == row(first.case.text)
    assert json.loads(path.read_text())["device"] == "torch's CUDA allocator, no GPU"


def test_the_goals_are_of_what_ended_well(allocator) -> None:
    rows = [row("a"), row("b", dry_run=None), row("c", outcome="oom")]
    values = {goal.name: goal.value for goal in allocator.goals(rows)}
    assert values["dry run: peak allocated, largest error"] == 0.004
    assert values["dry run: share within 0.5%"] == 1
    assert values["settings compared"] == 2
    assert all(goal.value is None for goal in allocator.goals([])[:-1])
